// Package optional has what objects of the software device can do and those of adapters cannot, and that
// only packages of this module need: interfaces as the optional ones of package verbs, which callers find
// in the same way. Without them everything works, later or with more packets.
package optional

import "github.com/verbena-rdma/verbena/verbs"

// ExpectKeyQP is a queue pair that bounds the number of remote keys that its peer's host can
// try. Those of the software device do: after too many failed tries, they delay requests of
// the host with keys that its connection has not used before.
type ExpectKeyQP interface {
	// ExpectKey says that the peer has been given a key, so that requests with it are never
	// delayed. It holds for the key of the last call, until the queue pair is closed.
	ExpectKey(rkey uint32) error
}

// WatchableMR is a memory region whose device notices when a peer changes the memory. The
// regions of the software device implement it; no adapter notices.
type WatchableMR interface {
	// Watch calls f after a peer has written to any of the n bytes from offset off of the
	// region, or has done an atomic on them: once for each packet, with its bytes in place.
	// The results of the program's own work requests (reads, received messages) do not count.
	// f runs under the rules for functions that a driver calls, until cancel is called or the
	// region is closed, and on several goroutines at a time where queue pairs work at the same
	// time. After cancel has returned, f is not running and will not run again. A range that
	// is empty, or not all in the region, is an error that matches verbs.ErrInvalid.
	Watch(off, n uint64, f func()) (cancel func(), err error)
}

// DisconnectDataCMID is an ID whose request to end the connection can carry private data. The IDs
// of the software device implement it. librdmacm has no call for it.
type DisconnectDataCMID interface {
	// DisconnectWith is Disconnect with private data, at most 220 bytes. The peer's
	// verbs.CMDisconnected has it, unless the peer has asked first.
	DisconnectWith(privateData []byte) error
}

// HeldDisconnectCMID is an ID whose device tells the program of the peer's disconnect only when the
// queue pair's requests are complete. The IDs of the software device implement it.
type HeldDisconnectCMID interface {
	// DisconnectHeld reports whether the peer has asked to end the connection, and
	// verbs.CMDisconnected has not been reported. The peer may serve no requests any more.
	DisconnectHeld() bool
}

// MemoryDevice is a device that allocates memory which, when registered, it accesses faster
// than other memory. The software device is one: it can share such memory with the peer's
// process.
type MemoryDevice interface {
	// AllocMemory returns size zeroed bytes of memory outside the Go heap, which begin at a
	// page. free gives them back; call it when they are in no region, and before the device is
	// closed. Where such memory is no faster, or used up, the error matches verbs.ErrNotSupported:
	// use other memory.
	AllocMemory(size int) (mem []byte, free func() error, err error)
}

// CountersQP is a queue pair that counts. The queue pairs of the software device implement it, but
// for those of SRD.
type CountersQP interface {
	// Counters are the present counters. It may be called from any goroutine, and after Close,
	// when they do not change any more.
	Counters() verbs.QPCounters
}

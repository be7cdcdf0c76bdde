package verbs

// Access is a set of access rights to a memory region (IBTA 10.6.3.1), also
// those a queue pair grants its peer. Local reads are always allowed.
type Access uint32

// The access rights.
const (
	AccessLocalWrite   Access = 1 << iota // the device may write for this program
	AccessRemoteWrite                     // a peer may write
	AccessRemoteRead                      // a peer may read
	AccessRemoteAtomic                    // a peer may do atomics
	// AccessRelaxedOrdering lets writes reach the memory in any order, where the
	// device has that, and is ignored where it has not (ibv_reg_mr(3)).
	AccessRelaxedOrdering
	AccessMWBind // memory windows may be bound to the region
	// AccessZeroBased has peers name the bytes of a memory window of type 2 by their
	// offset in it, and not by their address. It is for windows only.
	AccessZeroBased
)

// PD is a protection domain: regions, queue pairs, shared receive queues and
// address handles work together only within one.
type PD interface {
	// Device is the device that the domain was allocated on.
	Device() Device
	// RegMR registers memory (IBTA 11.2.7.2). Remote rights to write need
	// AccessLocalWrite too. The region's addresses are those of the bytes. The
	// slice must not be empty, and stay where it is until the region is closed:
	// memory of the Go heap has to be pinned by the caller. Memory that is not
	// mapped, or that AccessLocalWrite would have written though it is mapped for
	// reading only, is refused with an error that matches syscall.EFAULT.
	RegMR(mem []byte, access Access) (MR, error)
	// CreateQP creates a queue pair in the state Reset (IBTA 11.2.4.1).
	CreateQP(init QPInit) (QP, error)
	// CreateSRQ creates a shared receive queue (IBTA 11.2.3.1).
	CreateSRQ(init SRQInit) (SRQ, error)
	// CreateAH creates an address handle for datagrams (IBTA 11.2.2.1).
	CreateAH(attr AddressAttr) (AH, error)
	// Close frees the domain. While anything belongs to it, it fails with an
	// error that matches ErrInUse.
	Close() error
}

// DMABuf names bytes of a dma-buf, and the addresses that they are to have.
type DMABuf struct {
	FD     int    // its file descriptor, which may be closed after registration
	Offset uint64 // bytes into the dma-buf
	Length uint64 // bytes, at least 1
	// IOVA is the address of the first byte in work requests. It must have the
	// same place in its page as Offset has (ibv_reg_mr(3)).
	IOVA uint64
}

// DMABufPD is a protection domain that can register the memory of a dma-buf, such
// as that of a GPU. The protection domains of both drivers are, on Linux; whether
// the device and the exporter of the dma-buf agree shows when it is tried.
type DMABufPD interface {
	// RegDMABufMR registers the bytes of a dma-buf, with the rules of RegMR for the
	// access. The error matches ErrNotSupported where the kernel, the device or the
	// exporter does not allow it, and ErrInvalid where the file is no dma-buf, or
	// does not have all the bytes.
	RegDMABufMR(buf DMABuf, access Access) (MR, error)
}

// MR is a registered memory region.
type MR interface {
	Addr() uint64   // of the first byte, as work requests name it
	Len() uint64    // bytes
	Access() Access // the rights that it was registered with
	LKey() uint32   // for scatter-gather entries of this program
	RKey() uint32   // for requests of peers
	// Close ends the registration. Once it has returned, the device neither
	// reads nor writes the memory, and the keys are refused.
	Close() error
}

// WatchableMR is a memory region whose device notices when a peer changes the
// memory. Those of the software device are; no adapter notices.
type WatchableMR interface {
	// Watch calls f after a peer has written to any of the n bytes from the offset
	// off of the region, or has done an atomic on them: once for each packet, with
	// its bytes in place. What the program's own work requests place there (results
	// of reads, messages received) does not count. f runs under the rules for
	// functions that a driver calls, on several goroutines at a time where queue pairs
	// work at the same time, until cancel is called or the region is closed.
	// After cancel has returned, f is not running and will not run again. A range
	// that is empty, or not all in the region, is an error that matches ErrInvalid.
	Watch(off, n uint64, f func()) (cancel func(), err error)
}

// MemoryDevice is a device that makes memory itself which it reaches better than other memory
// once it is registered. The software device is one: it can show such memory to the peer's
// process.
type MemoryDevice interface {
	// AllocMemory returns size bytes of memory outside the Go heap, which are zero and begin
	// at a page. free gives them back, once no region has them and before the device is
	// closed. Where the device would gain nothing, or has no more to give, the error matches
	// ErrNotSupported: other memory does.
	AllocMemory(size int) (mem []byte, free func() error, err error)
}

// SGE is a scatter-gather entry: a piece of registered local memory.
type SGE struct {
	Addr   uint64 // of the first byte
	Length uint32 // bytes
	LKey   uint32 // of the memory region that all of them lie in
}

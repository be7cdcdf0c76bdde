package verbs

// Access is a set of access rights to a memory region (IBTA 10.6.3.1), also
// those a queue pair grants its peer. Local reads are always allowed.
type Access uint32

// The access rights.
const (
	AccessLocalWrite Access = 1 << iota
	AccessRemoteWrite
	AccessRemoteRead
	AccessRemoteAtomic
	AccessRelaxedOrdering
)

// PD is a protection domain: regions, queue pairs, shared receive queues and
// address handles work together only within one.
type PD interface {
	Device() Device
	// RegMR registers memory (IBTA 11.2.7.2). Remote rights to write need
	// AccessLocalWrite too. The region's addresses are those of the bytes. The
	// slice must not be empty, and stay where it is until the region is closed:
	// memory of the Go heap has to be pinned by the caller.
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

// DMABufPD is a protection domain that can register the memory of a dma-buf, such
// as that of a GPU. Those of both drivers are one on Linux; whether the device and
// the exporter of the dma-buf go along shows when it is tried.
type DMABufPD interface {
	PD
	// RegDMABufMR registers length bytes from offset on of the dma-buf that the
	// file descriptor fd is of (ibv_reg_mr(3)). The region's addresses begin at
	// iova, which must lie in its page where offset does. The descriptor may be
	// closed afterwards. The error matches ErrNotSupported where the kernel, the
	// device or the exporter does not have it, and ErrInvalid where fd is no
	// dma-buf, or the bytes are not all in it.
	RegDMABufMR(fd int, offset, length, iova uint64, access Access) (MR, error)
}

// MR is a registered memory region.
type MR interface {
	Addr() uint64
	Len() uint64
	Access() Access
	LKey() uint32
	RKey() uint32
	// Close ends the registration. Once it has returned, the device neither
	// reads nor writes the memory, and the keys are refused.
	Close() error
}

// MRWatcher is implemented by the memory regions of devices that can tell when a
// peer changes the memory: the software device's. Adapters cannot.
type MRWatcher interface {
	// Watch has f called after a peer has written or done an atomic to any of the
	// n bytes from the offset off of the region, until cancel is called or the
	// region is closed: once for each packet, with its bytes in place. What the
	// program's own work requests place, results of reads and messages received,
	// does not count. f runs under the rules for functions that a driver calls.
	// After cancel has returned, f is not running and will not run again. A range
	// that is empty or leaves the region is an error that matches ErrInvalid.
	Watch(off, n uint64, f func()) (cancel func(), err error)
}

// SGE is a scatter-gather entry: a piece of registered local memory.
type SGE struct {
	Addr   uint64
	Length uint32 // bytes
	LKey   uint32
}

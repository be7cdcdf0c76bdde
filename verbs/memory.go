package verbs

// Access is a set of access rights to a memory region (IBTA 10.6.3.1), or of rights that a
// queue pair grants its peer. Local reads are always allowed.
type Access uint32

// The access rights.
const (
	AccessLocalWrite   Access = 1 << iota // the device may write for this program
	AccessRemoteWrite                     // a peer may write
	AccessRemoteRead                      // a peer may read
	AccessRemoteAtomic                    // a peer may do atomics
	// AccessRelaxedOrdering lets writes reach the memory in any order (ibv_reg_mr(3)). Devices
	// without it ignore it.
	AccessRelaxedOrdering
	AccessMWBind // memory windows may be bound to the region
	// AccessZeroBased makes peers address the bytes of a memory window of type 2 by their
	// offset in it. It is for windows only.
	AccessZeroBased
)

// PD is a protection domain: regions, queue pairs, shared receive queues and address handles
// work together only within one domain.
type PD interface {
	// Device is the device that the domain was allocated on.
	Device() Device
	// RegMR registers memory (IBTA 11.2.7.2). Remote rights to write need AccessLocalWrite
	// too. The region's addresses are those of the bytes. The slice must not be empty, and
	// must stay where it is until the region is closed: the caller pins memory of the Go heap.
	// Memory that is not mapped, or mapped read-only although access has AccessLocalWrite, is
	// refused with an error that matches syscall.EFAULT.
	RegMR(mem []byte, access Access) (MR, error)
	// CreateQP creates a queue pair in the state Reset (IBTA 11.2.4.1).
	CreateQP(init QPInit) (QP, error)
	// CreateSRQ creates a shared receive queue (IBTA 11.2.3.1).
	CreateSRQ(init SRQInit) (SRQ, error)
	// CreateAH creates an address handle for datagrams (IBTA 11.2.2.1).
	CreateAH(attr AddressAttr) (AH, error)
	// Close frees the domain. It fails with an error that matches ErrInUse while any object
	// belongs to the domain.
	Close() error
}

// DMABuf names bytes of a dma-buf, and the addresses that work requests use for them.
type DMABuf struct {
	FD     int    // its file descriptor, which may be closed after registration
	Offset uint64 // bytes into the dma-buf
	Length uint64 // bytes, at least 1
	// IOVA is the address of the first byte in work requests. Its offset in its page must be
	// that of Offset (ibv_reg_mr(3)).
	IOVA uint64
}

// DMABufPD is a protection domain that can register the memory of a dma-buf, such as that of a
// GPU. The protection domains of both drivers implement it on Linux. Only an attempt shows
// whether the device and the exporter of the dma-buf agree.
type DMABufPD interface {
	// RegDMABufMR registers the bytes of a dma-buf, with RegMR's rules for access. The error
	// matches ErrNotSupported where the kernel, the device or the exporter does not allow it,
	// and ErrInvalid where the file is no dma-buf or is too short.
	RegDMABufMR(buf DMABuf, access Access) (MR, error)
}

// MR is a registered memory region.
type MR interface {
	Addr() uint64   // of the first byte, as work requests name it
	Len() uint64    // bytes
	Access() Access // the rights that it was registered with
	LKey() uint32   // for scatter-gather entries of this program
	RKey() uint32   // for requests of peers
	// Close ends the registration. When it has returned, the device neither reads nor writes
	// the memory, and refuses the keys.
	Close() error
}

// SGE is a scatter-gather entry: a piece of registered local memory.
type SGE struct {
	Addr   uint64 // of the first byte
	Length uint32 // bytes
	LKey   uint32 // of the memory region that holds all the bytes
}

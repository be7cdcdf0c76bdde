package verbs

import (
	"net/netip"
)

// Driver finds and opens the devices of one kind.
type Driver interface {
	// Name is the driver's name: "soft", "ibverbs".
	Name() string
	// Devices lists the devices that the driver can open on this machine now. If the driver
	// cannot read all of them, the list is incomplete and the error says what is missing.
	Devices() ([]DeviceInfo, error)
	// Open opens the device with that name. A name that the driver does not have gives an
	// error that matches ErrNoDevice.
	Open(name string) (Device, error)
}

// DeviceInfo names a device that can be opened.
type DeviceInfo struct {
	Name      string // the name Open takes
	Driver    string // the driver's name
	GUID      uint64 // node GUID, host byte order; zero if there is none
	Interface string // the network interface behind it; empty if unknown
}

// Device is an open device.
type Device interface {
	// Name is the name that the device was opened by.
	Name() string
	// Driver is the name of the driver behind the device.
	Driver() string
	// Query returns the device's limits and capabilities (IBTA 11.2.1.2).
	Query() (DeviceAttr, error)
	// QueryPort returns the attributes of a port; ports count from 1.
	QueryPort(port int) (PortAttr, error)
	// GIDs returns the GID table of a port, empty entries left out.
	GIDs(port int) ([]GIDEntry, error)
	// Counters returns the device's counters, in a stable order. Their names are those that
	// the kernel's drivers use under hw_counters.
	Counters() ([]Counter, error)
	// DefaultPD is the protection domain of all objects on this open device that were made
	// without one. It lives as long as the device; do not close it.
	DefaultPD() PD
	// AllocPD allocates a protection domain (IBTA 11.2.1.5).
	AllocPD() (PD, error)
	// CreateCQ creates a completion queue (IBTA 11.2.8.1).
	CreateCQ(init CQInit) (CQ, error)
	// SubscribeEvents calls handle for every asynchronous event of the device
	// until cancel is called (IBTA 11.6.3). After cancel has returned, handle
	// is not running and will not run again.
	SubscribeEvents(handle func(Event)) (cancel func())
	// Close releases the device. While protection domains or completion queues
	// are open it fails with an error that matches ErrInUse.
	Close() error
}

// ClosingDevice is a Device that closes the objects made on it. The devices of both drivers
// implement it.
type ClosingDevice interface {
	// OnClose makes Close call f, until remove is called. While a queue pair, a completion
	// queue or a protection domain is open, Close fails and calls nothing. Otherwise Close
	// calls the functions on its own goroutine, the latest first, and then checks for other
	// open objects. If a function fails, Close stops there and returns its error, and the next
	// Close calls the function again.
	OnClose(f func() error) (remove func())
}

// DeviceAttr holds the limits and capabilities of a device. A limit of zero means that the
// device lacks the feature.
type DeviceAttr struct {
	FirmwareVersion   string // of software devices, that of the software
	NodeGUID          uint64 // host byte order
	VendorID          uint32 // of the manufacturer, an IEEE OUI
	MaxMRSize         uint64 // bytes of one memory region
	MaxQP             int    // queue pairs
	MaxQPWR           int    // outstanding work requests on one queue
	MaxSGE            int    // scatter-gather entries in one work request
	MaxCQ             int    // completion queues
	MaxCQE            int    // completions in one completion queue
	MaxMR             int    // memory regions
	MaxPD             int    // protection domains
	MaxSRQ            int    // shared receive queues
	MaxSRQWR          int    // receives in one shared receive queue
	MaxSRQSGE         int    // scatter-gather entries in one of them
	MaxAH             int    // address handles
	MaxQPReadAtomic   int    // reads and atomics a queue pair answers at a time
	MaxInitReadAtomic int    // reads and atomics a queue pair has outstanding at a time
	MaxInline         int    // bytes of inline data in one work request
	MaxMessage        uint32 // bytes in one message
	Ports             int    // they are counted from 1
	// Transports are the transport services of the device's queue pairs.
	Transports Transports
	Atomics    bool // 64-bit compare-and-swap and fetch-and-add
	// AtomicsGlobal: they are atomic to the processor and other devices too, not only to each
	// other (IBTA 9.4.5.1).
	AtomicsGlobal bool
	AtomicWrite   bool // OpAtomicWrite

	MaxMW int // memory windows; zero: there are none
	// MWTypes are the types of memory windows that the device has.
	MWTypes MWTypes
	// Invalidation: the device has OpLocalInvalidate and OpSendInvalidate.
	Invalidation bool
	// CMPathMTU: the connection manager uses the path MTU of CMDial and CMListen. The kernel's
	// manager uses that of the network interface.
	CMPathMTU bool
	// MaxMulticastGroups is how many multicast groups queue pairs can be attached to.
	MaxMulticastGroups int
	// MaxMulticastQPs is how many queue pairs can be attached to one of them.
	MaxMulticastQPs int
	// CompletionFields are the fields that a completion queue can be asked for.
	CompletionFields WCFields
	ClockFrequency   uint64 // ticks of the device's clock in a second; zero: it has none
	// NUMANode is the node of the machine's memory that is nearest to the device. Drivers set -1 where it is not
	// known.
	NUMANode int
	// SRD describes SRD queue pairs.
	SRD SRDAttr
}

// SRDAttr describes the SRD queue pairs of a device (efadv_query_device(3)). It is zero where
// Transports lacks SRD. They have no atomics, no shared receive queues, and no flags except
// FlagInline, in sends, and FlagSignaled, which every request needs unless its queue pair
// signals all. A peer can be read and written only while it has an address handle for this
// device.
type SRDAttr struct {
	MaxSendWR, MaxRecvWR   int    // requests on one queue
	MaxSendSGE, MaxRecvSGE int    // scatter-gather entries of each
	MaxReadSGE             int    // of a read or write
	MaxInline              int    // bytes of inline data
	MaxMessage             uint32 // bytes of a send: those of one packet
	MaxRDMA                uint32 // bytes of a write or read
	Read                   bool   // OpRead
	Write                  bool   // OpWrite and OpWriteImm
	// UnsolicitedWriteRecv: QPInit.UnsolicitedWriteRecv can be set.
	UnsolicitedWriteRecv bool
	// RNRRetry: QPAttr.RNRRetry can be set in the transition to RTS.
	RNRRetry bool
}

// Transports is a set of transport services.
type Transports uint32

// Has reports whether the set holds t.
func (s Transports) Has(t QPType) bool { return s&TransportSet(t) != 0 }

// TransportSet makes a set of transport services. Values outside 0 to 31 are left
// out.
func TransportSet(types ...QPType) Transports {
	var s Transports
	for _, t := range types {
		if t >= 0 {
			s |= 1 << t
		}
	}
	return s
}

// MTU is a path MTU in bytes of payload: 256, 512, 1024, 2048 or 4096.
type MTU int

// Valid reports whether m is one of the five path MTUs of IBTA 9.4.3.
func (m MTU) Valid() bool {
	switch m {
	case 256, 512, 1024, 2048, 4096:
		return true
	}
	return false
}

// PortState is the state of a port (IBTA 14.2.5.6).
type PortState int

// The port states.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
)

// LinkLayer is the kind of network that a port is on.
type LinkLayer int

// The link layers.
const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

// PortAttr holds the attributes of a port.
type PortAttr struct {
	State      PortState // packets pass only in PortActive
	LinkLayer  LinkLayer // the network below the transport
	MaxMTU     MTU       // the largest that the port can have, bytes
	ActiveMTU  MTU       // the largest that can be used now, bytes
	GIDTable   int       // entries in the GID table
	LID        uint16    // zero on Ethernet
	Interface  string    // the network interface behind the port; empty if unknown
	ActiveRate uint64    // bits per second; zero if unknown
}

// GID is a global identifier: 16 bytes, an IPv6 address or, on RoCEv2 over
// IPv4, an IPv4-mapped one (IBTA annex A17.4.5.2).
type GID [16]byte

// GIDFromAddr makes the GID of an address.
func GIDFromAddr(a netip.Addr) GID { return a.As16() }

// Addr is the IP address that the GID stands for, IPv4 when it is mapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String prints the GID in the eight groups of the verbs' tools.
func (g GID) String() string { return netip.AddrFrom16(g).StringExpanded() }

// GIDType is the wire protocol of a GID.
type GIDType int

// The GID types.
const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1
	GIDRoCEv2
)

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	Index     int     // in the table, from 0
	GID       GID     // the address
	Type      GIDType // the format of packets to and from this address
	Interface string  // the network interface it belongs to; empty if unknown
	// UDPPort is the device's UDP port at this address: 4791, or (software device only) a port
	// that peers put into AddressAttr.UDPPort. Zero: the GID is not for RoCEv2.
	UDPPort uint16
	// SharesPort: packets to port 4791 come to the device, too, by their queue pair numbers.
	SharesPort bool
	// SourceUDPPort is the source port of packets from this address, which peers may put into
	// AddressAttr.SourceUDPPort. Zero: it varies, as with adapters.
	SourceUDPPort uint16
}

// Counter is a counter of a device, or of what was made on it, with its description.
type Counter struct {
	Name  string // the kernel's name for it, if a driver of the kernel counts the same
	Value uint64 // in Unit
	Help  string `json:",omitempty"` // what it counts, in a line; empty: the documents of the adapter's driver say
	Unit  string `json:",omitempty"` // "bytes", "words" (of 4 bytes), "nanoseconds"; empty: it is a number
	// Gauge: Value is what is there now. Otherwise it is the total since the object was made;
	// of an adapter, since the kernel's driver was loaded.
	Gauge bool `json:",omitempty"`
	Port  int  `json:",omitempty"` // that of the device to which it belongs; zero: the whole device, or no device
}

// EventType is the kind of an asynchronous event (IBTA 11.6.3).
type EventType int

// The asynchronous events.
const (
	EventCQError EventType = iota + 1
	EventQPFatal
	EventQPRequestError  // the responder refused a request as invalid
	EventQPAccessError   // the responder refused a request for its rkey, bounds or permission
	EventCommEstablished // the first packet has come to a queue pair in RTR
	EventSRQError
	EventSRQLimitReached  // see SRQ.SetLimit
	EventQPLastWQEReached // a queue pair in error takes no more of its shared receive queue
	EventPortActive
	EventPortError
	EventGIDChange   // of the port's GID table
	EventDeviceFatal // the device has failed or is gone: close it
	// EventPeerGone: the peer's process is dead, and the queue pair in error (software device
	// only, where both are on one machine).
	EventPeerGone
	EventLIDChange  // of an InfiniBand port
	EventPKeyChange // of a port's table of P_Keys
)

// Event is an asynchronous event. Fields that do not apply to its type are zero.
type Event struct {
	Type EventType // what happened
	QPN  uint32    // the queue pair it happened to
	CQ   CQ        // the completion queue
	SRQ  SRQ       // the shared receive queue
	Port int       // the port, from 1
}

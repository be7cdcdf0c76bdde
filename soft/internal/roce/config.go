package roce

import (
	"io"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config configures a device.
type Config struct {
	// Owner is what protection domains return as their device (verbs.PD.Device).
	// Nil: the device itself.
	Owner verbs.Device
	// Name is the name the device goes by.
	Name string
	// Interface is the network interface that the addresses belong to.
	Interface string
	// Addresses become the entries of the GID table, in order. Port 0 stands
	// for 4791, or for any other port where that one is taken.
	Addresses []netip.AddrPort
	// Broadcasts are the addresses of all hosts of networks that this host is in: they are
	// no peer's.
	Broadcasts []netip.Addr
	// InterfaceMTU bounds the path MTU; zero means no bound.
	InterfaceMTU int

	// Offloads of the sockets, in use where the kernel has them.
	DisableSegmentation bool
	DisableCoalescing   bool
	DisableBatch        bool

	// DisableLocal sends packets to devices of this machine by UDP too.
	DisableLocal bool

	// MaxShards bounds how many programs can poll at the same time without waiting for each
	// other (verbs.CQInit.Poller). Zero: as many as there are cores for this process; at most 16.
	MaxShards int

	// Spin is how long the device's goroutines look for more before they sleep, at most, while
	// that has been of use. Zero: defaultSpin; negative: they sleep at once.
	Spin time.Duration

	// CongestionControl lets connections by UDP share links with others; without it they react
	// to loss alone.
	CongestionControl bool

	// SRDSeed is where the order of packets of SRD comes from.
	SRDSeed uint64

	Faults  faults.Faults
	Capture io.Writer
	Log     zerolog.Logger
}

package roce

import (
	"io"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/network"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config configures a device.
type Config struct {
	// Network is what the device runs on. Nil: the system.
	Network network.Network
	// Owner is the device that protection domains return (verbs.PD.Device). Nil: this device.
	Owner verbs.Device
	// Name is the device's name.
	Name string
	// NodeGUID is the GUID that Query reports, host byte order. Zero: a random one. Several
	// processes can have devices with one GUID, so connection management uses another.
	NodeGUID uint64
	// Interface is the network interface that the addresses belong to.
	Interface string
	// Addresses become the entries of the GID table, in order. Port 0 means 4791, or any other
	// port if 4791 is taken.
	Addresses []netip.AddrPort
	// Broadcasts are the broadcast addresses of this host's networks. They are refused as peer
	// addresses.
	Broadcasts []netip.Addr
	// InterfaceMTU bounds the path MTU. Zero: no bound.
	InterfaceMTU int

	// DisableSegmentation, DisableCoalescing and DisableBatch turn off socket offloads, which
	// are used where the kernel has them.
	DisableSegmentation bool
	DisableCoalescing   bool
	DisableBatch        bool

	// DisableLocal makes packets to devices of this machine go by UDP too.
	DisableLocal bool

	// MaxShards bounds how many programs can poll at the same time without waiting for each
	// other (verbs.CQInit.Poller). Zero: the number of cores of this process; at most 16.
	MaxShards int

	// Spin bounds how long the device's goroutines poll for more work before they sleep. They
	// poll only while that has paid off. Zero: defaultSpin; negative: they sleep at once.
	Spin time.Duration

	// CongestionControl makes connections over UDP share links with others. Without it they
	// react to loss alone.
	CongestionControl bool

	// SRDSeed is the seed of the order in which SRD sends packets.
	SRDSeed uint64

	// EFA makes the device look like an EFA.
	EFA bool

	Faults  faults.Faults
	Capture io.Writer
	Log     zerolog.Logger
}

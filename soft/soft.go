package soft

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/soft/internal/roce"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// EFAVendorID is the vendor ID of devices that were opened with Config.EFA.
const EFAVendorID = roce.EFAVendorID

// Config configures a software device. Set at most one of Interface and Address; with neither,
// the device is on the loopback interface.
type Config struct {
	// Interface is the name of a network interface. All its addresses become
	// entries of the GID table, IPv4 first.
	Interface string
	// Address is the only address of the device. Port 0 is 4791, or another one if that is taken.
	Address netip.AddrPort

	// SRDSeed is the seed of the message order on SRD queue pairs. Zero is a seed like any
	// other.
	SRDSeed uint64

	// EFA makes the device look like one of Amazon's EFA: the vendor ID is EFAVendorID, and UD and
	// SRD are the only transport services. Programs that have code for EFA then use it.
	EFA bool

	// Faults are applied to the packets that arrive. The zero value means none.
	Faults Faults
	// Capture takes all packets sent and received, also those that the device refuses, in the
	// pcap format. The link type is Linux cooked, which says of each packet whether it was sent
	// or received. Faults have been applied to those received.
	// The goroutine that drives the device writes to it. If the file's header cannot be
	// written, Open fails; a later error ends the capture, and Close returns it. Nil means no
	// capture.
	Capture io.Writer

	// These disable offloads of the UDP socket, which are used where the kernel has them.
	DisableSegmentation bool // packets to one peer sent in one piece (UDP_SEGMENT)
	DisableCoalescing   bool // packets of one peer that arrive in one piece (UDP_GRO)
	DisableBatch        bool // several of either with one system call (sendmmsg, recvmmsg)

	// DisableLocal sends packets to software devices of this machine by UDP, as to other
	// machines, and not through shared memory. Faults and Capture have the same effect.
	DisableLocal bool

	// MaxShards bounds the number of engines that can work on the device at a time without
	// waiting for each other: the connections of each have their own sockets and lock. Zero:
	// one for each core that the program may use; 16 at most, 8 at a shared port. With a Capture, or with Faults
	// from the beginning, there is one.
	MaxShards int

	// Spin is the longest time that the device's goroutines, which work while no engine polls,
	// look for more packets before they sleep. They spin only while recent packets arrived
	// shortly after they slept. Spinning spares a stream of requests the tens of microseconds
	// of a wake-up for each batch, and takes a processor meanwhile. Zero: 50 µs; negative:
	// they sleep at once. The longest is a millisecond.
	Spin time.Duration

	// CongestionControl slows down connections by UDP where a network marks their packets or a
	// queue grows, so that many share a link. Without it only losses slow them down. Leave it
	// off towards peers that are not software devices: with it, reads from the kernel's rxe
	// that lose packets have been seen to fail.
	CongestionControl bool

	// Log is where the device logs. The zero value is silent.
	Log zerolog.Logger
}

// Faults are faults of the network, for tests: the probabilities Loss, Duplicate, Reorder, Corrupt
// and Mark with the Seed of their draws, and the Delay and Rate of packets that arrive.
type Faults = faults.Faults

// Device is an open software device. It implements [verbs.Device]. Its methods may
// be called from any goroutine.
type Device struct {
	dev     *roce.Device
	capture io.Closer // nil: the caller owns the capture
}

var (
	_ verbs.Device          = (*Device)(nil)
	_ verbs.ClosingDevice   = (*Device)(nil)
	_ verbs.XRCDevice       = (*Device)(nil)
	_ optional.MemoryDevice = (*Device)(nil)
)

// String is the device's name.
func (d *Device) String() string { return d.Name() }

// Name implements [verbs.Device]. It is the name without options.
func (d *Device) Name() string { return d.dev.Name() }

// Driver implements [verbs.Device]; it is "soft".
func (d *Device) Driver() string { return Driver{}.Name() }

// Query implements [verbs.Device].
func (d *Device) Query() (verbs.DeviceAttr, error) { return d.dev.Query() }

// QueryPort implements [verbs.Device]. The device has port 1 only.
func (d *Device) QueryPort(port int) (verbs.PortAttr, error) { return d.dev.QueryPort(port) }

// GIDs implements [verbs.Device].
func (d *Device) GIDs(port int) ([]verbs.GIDEntry, error) { return d.dev.GIDs(port) }

// Counters implements [verbs.Device]. docs/software-device.md describes each counter;
// soft/internal/roce/counters.go lists them.
func (d *Device) Counters() ([]verbs.Counter, error) { return d.dev.Counters() }

// DefaultPD implements [verbs.Device].
func (d *Device) DefaultPD() verbs.PD { return d.dev.DefaultPD() }

// AllocPD implements [verbs.Device].
func (d *Device) AllocPD() (verbs.PD, error) { return d.dev.AllocPD() }

// CreateCQ implements [verbs.Device].
func (d *Device) CreateCQ(init verbs.CQInit) (verbs.CQ, error) { return d.dev.CreateCQ(init) }

// SubscribeEvents implements [verbs.Device].
func (d *Device) SubscribeEvents(handle func(verbs.Event)) (cancel func()) {
	return d.dev.SubscribeEvents(handle)
}

// OpenXRCDomain implements [verbs.XRCDevice].
func (d *Device) OpenXRCDomain() (verbs.XRCDomain, error) { return d.dev.OpenXRCDomain() }

// OpenCM implements [verbs.CMDevice].
func (d *Device) OpenCM(handle func(verbs.CMEvent)) (verbs.CM, error) { return d.dev.OpenCM(handle) }

// OnClose implements [verbs.ClosingDevice].
func (d *Device) OnClose(f func() error) (remove func()) { return d.dev.OnClose(f) }

// AllocMemory allocates memory that this device accesses faster. The memory can be shared with other processes
// of the same user, which then read what they are sent in place. All of its pages are
// allocated when it returns.
func (d *Device) AllocMemory(size int) (mem []byte, free func() error, err error) {
	return d.dev.AllocMemory(size)
}

// SetFaults changes the faults of packets that arrive from now on, except those of peers with
// faults of their own. Held packets still arrive. A value out of its range is an error that
// matches [verbs.ErrInvalid]. Connections use shared memory while there are no faults.
func (d *Device) SetFaults(f Faults) error { return d.dev.SetFaults(f) }

// SetPeerFaults is SetFaults for the packets from one address, which replace the device's
// faults there. The zero value restores the device's faults; a Seed alone means no faults at
// all.
func (d *Device) SetPeerFaults(peer netip.Addr, f Faults) error {
	return d.dev.SetPeerFaults(peer, f)
}

// Close implements [verbs.Device]. It also returns an error of the packet capture; the device
// is closed then.
func (d *Device) Close() error {
	err := d.dev.Close()
	if d.capture != nil && !errors.Is(err, verbs.ErrInUse) {
		err = errors.Join(err, d.capture.Close())
		d.capture = nil
	}
	return err
}

// Open opens a software device. An unknown interface gives an error that matches
// [verbs.ErrNoDevice]; an address that another program uses gives one that matches
// [syscall.EADDRINUSE].
func Open(cfg Config) (*Device, error) {
	i, err := cfg.find()
	switch {
	case err != nil:
		return nil, err
	case cfg.Address.IsValid():
		return open(cfg.roce(cfg.name(), i, cfg.Address))
	}
	return openInterface(cfg, i)
}

// find returns the interface for the device.
func (cfg Config) find() (networkInterface, error) {
	var none networkInterface
	if cfg.Interface != "" && cfg.Address.IsValid() {
		return none, fmt.Errorf("open software device: Interface is %q and Address is %v; set only one of them: %w", cfg.Interface, cfg.Address, verbs.ErrInvalid)
	}
	list, err := interfaces()
	if err != nil {
		return none, err
	}
	for _, i := range list {
		if cfg.Address.IsValid() && i.has(cfg.Address.Addr()) ||
			!cfg.Address.IsValid() && (i.Name == cfg.Interface || cfg.Interface == "" && i.loopback) {
			return i, nil
		}
	}
	switch {
	case cfg.Address.IsValid():
		return none, fmt.Errorf("open device %s: no interface that is up has the address %v: %w", cfg.name(), cfg.Address.Addr(), verbs.ErrNoDevice)
	case cfg.Interface == "":
		return none, fmt.Errorf("open software device: this host has no loopback interface; name another interface: %w", verbs.ErrNoDevice)
	}
	return none, fmt.Errorf("open software device: interface %q does not exist, is down, or has no address: %w", cfg.Interface, verbs.ErrNoDevice)
}

// name returns the name of a device with an address of its own.
func (cfg Config) name() string { return prefix + cfg.Address.String() }

func (cfg Config) roce(name string, i networkInterface, addresses ...netip.AddrPort) roce.Config {
	return roce.Config{
		Name: name, NodeGUID: i.guid(), Interface: i.Name, Addresses: addresses, Broadcasts: i.broadcasts, InterfaceMTU: i.MTU,
		DisableSegmentation: cfg.DisableSegmentation, DisableCoalescing: cfg.DisableCoalescing,
		DisableBatch: cfg.DisableBatch, DisableLocal: cfg.DisableLocal, CongestionControl: cfg.CongestionControl,
		MaxShards: cfg.MaxShards, Spin: cfg.Spin, SRDSeed: cfg.SRDSeed, EFA: cfg.EFA, Faults: cfg.Faults, Capture: cfg.Capture, Log: cfg.Log,
	}
}

func open(cfg roce.Config) (*Device, error) {
	d := &Device{}
	cfg.Owner = d
	var err error
	if d.dev, err = roce.Open(cfg); err != nil {
		return nil, err
	}
	d.tellPorts(&cfg)
	return d, nil
}

// tellPorts logs the addresses at which the device has another port than the one that adapters
// and the kernel send to, and does not share that one. On the loopback interface there are no adapters.
func (d *Device) tellPorts(cfg *roce.Config) {
	gids, err := d.dev.GIDs(1)
	if err != nil {
		return
	}
	for _, g := range gids {
		addr := g.GID.Addr()
		cause := d.dev.NotShared(g.Index)
		if g.UDPPort == wire.UDPPort || addr.IsLoopback() || cause == nil || !slices.ContainsFunc(cfg.Addresses, func(a netip.AddrPort) bool {
			return a.Port() == 0 && a.Addr().WithZone("") == addr
		}) {
			continue // or the caller asked for it
		}
		cfg.Log.Warn().Err(cause).Str("device", cfg.Name).Stringer("address", addr).Uint16("udp_port", g.UDPPort).Uint16("in_use", wire.UDPPort).
			Msg("RoCEv2's port of this address is in use, so the device has another: software devices can reach it there, adapters and the kernel cannot")
	}
}

func openInterface(cfg Config, i networkInterface) (*Device, error) {
	name := prefix + i.Name
	if i.loopback {
		return openLoopback(cfg, name, i)
	}
	return open(cfg.roce(name, i, i.defaultAddresses()...))
}

// The first addresses of 127.0.0.0/8 are tried in order, because they are easy to read. Then
// some others are tried at random: nearly all of the 16 million are free, however many devices
// there are.
const (
	firstLoopbacks  = 4
	randomLoopbacks = 16
)

// loopbackAddresses yields the addresses to try, in turn.
func loopbackAddresses(yield func(netip.Addr) bool) {
	for i := range firstLoopbacks {
		if !yield(netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)})) {
			return
		}
	}
	for range randomLoopbacks {
		r := rand.Uint32()
		if !yield(netip.AddrFrom4([4]byte{127, byte(r), byte(r >> 8), byte(1 + r>>16%254)})) {
			return
		}
	}
}

// openLoopback takes a free address of 127.0.0.0/8, all of which is local on Linux. If only
// 127.0.0.1 exists, or the port is taken everywhere (the kernel's own RoCEv2 does that), it
// takes another port. It has the interface's other addresses as well.
func openLoopback(cfg Config, name string, i networkInterface) (*Device, error) {
	others := i.defaultAddresses()[1:]
	at := func(addr netip.Addr, port uint16) (*Device, error) {
		return open(cfg.roce(name, i, append([]netip.AddrPort{netip.AddrPortFrom(addr, port)}, others...)...))
	}
	if d, err := openFirst(func(addr netip.Addr) (*Device, error) { return at(addr, wire.UDPPort) }); d != nil || err != nil {
		return d, err
	}
	return at(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
}

// openFirst opens a device at the first free address. If there is none, it returns neither a
// device nor an error.
func openFirst(at func(netip.Addr) (*Device, error)) (*Device, error) {
	for addr := range loopbackAddresses {
		d, err := at(addr)
		switch {
		case err == nil:
			return d, nil
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			return nil, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, err
		}
	}
	return nil, nil
}

// networkInterface is an interface that is up and has addresses.
type networkInterface struct {
	net.Interface
	loopback  bool
	addresses []netip.Addr // IPv4 first, zones left out
	// broadcasts are the broadcast addresses of all interfaces' networks.
	broadcasts []netip.Addr
}

func (i *networkInterface) has(a netip.Addr) bool {
	for _, own := range i.addresses {
		if own == a.WithZone("") {
			return a.Zone() == "" || a.Zone() == i.Name
		}
	}
	return i.loopback && a.Is4() && a.IsLoopback()
}

// defaultAddresses returns the addresses of the interface's device. On the loopback interface, which has
// all of 127.0.0.0/8, the first is one of these.
func (i *networkInterface) defaultAddresses() (list []netip.AddrPort) {
	if i.loopback {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0))
	}
	for _, a := range i.addresses {
		if !i.loopback || !a.Is4() || !a.IsLoopback() {
			list = append(list, netip.AddrPortFrom(a, 0))
		}
	}
	return list
}

// guid is a GUID that stays the same from one start of the device to the next: the EUI-64 of
// the interface's MAC address (RFC 4291, appendix A), or a number made from host and interface
// where the interface has none.
func (i *networkInterface) guid() uint64 {
	if mac := i.HardwareAddr; len(mac) == 6 && !bytes.Equal(mac, make([]byte, 6)) {
		return uint64(mac[0]^2)<<56 | uint64(mac[1])<<48 | uint64(mac[2])<<40 | 0xfffe<<24 |
			uint64(mac[3])<<16 | uint64(mac[4])<<8 | uint64(mac[5])
	}
	h := fnv.New64a()
	hostname, _ := os.Hostname() // without one, the interface's name is enough
	_, _ = h.Write([]byte(hostname + "\x00" + i.Name))
	return h.Sum64()&^(3<<56) | 2<<56 // locally administered, not a group
}

func interfaces() ([]networkInterface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var list []networkInterface
	var broadcasts []netip.Addr
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		n := networkInterface{Interface: i, loopback: i.Flags&net.FlagLoopback != 0}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of interface %s: %w", i.Name, err)
		}
		var v6 []netip.Addr
		for _, a := range addresses {
			p, err := netip.ParsePrefix(a.String())
			if broadcast := hostaddr.Broadcast(p); err == nil && broadcast.IsValid() {
				broadcasts = append(broadcasts, broadcast)
			}
			switch {
			case err != nil:
			case p.Addr().Unmap().Is4():
				n.addresses = append(n.addresses, p.Addr().Unmap())
			default:
				v6 = append(v6, p.Addr().WithZone(""))
			}
		}
		n.addresses = append(n.addresses, v6...)
		if len(n.addresses) > 0 {
			list = append(list, n)
		}
	}
	for i := range list {
		list[i].broadcasts = broadcasts
	}
	return list, nil
}

// captureFile is a file that is created on the first write, so that a device that cannot be
// opened leaves none.
type captureFile struct {
	path string
	file *os.File
}

func (c *captureFile) Write(b []byte) (n int, err error) {
	if c.file == nil {
		if c.file, err = createPrivate(c.path); err != nil {
			return 0, err
		}
	}
	return c.file.Write(b)
}

// createPrivate creates a file that only this user can read. It replaces a file of that name, which
// other users may have open, and follows no symbolic link. A named pipe stays: the user has made it
// for a program that reads the packets as they come.
func createPrivate(path string) (*os.File, error) {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() == os.ModeNamedPipe:
		return openPipe(path, info)
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("create %s: it exists, and is neither a regular file nor a named pipe (%v); remove it, or name another file: %w", path, info.Mode().Type(), os.ErrExist)
	case err == nil:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

// openPipe opens the named pipe that was seen at a path, and nothing that has taken its place.
func openPipe(path string, seen os.FileInfo) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !os.SameFile(info, seen) {
		return nil, errors.Join(fmt.Errorf("open %s: it was replaced meanwhile: %w", path, os.ErrExist), err, file.Close())
	}
	return file, nil
}

func (c *captureFile) Close() error {
	if c.file == nil {
		return nil
	}
	return c.file.Close()
}

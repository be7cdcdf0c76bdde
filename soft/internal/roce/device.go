package roce

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/closers"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/gsi"
	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/soft/internal/roce/network"
	"github.com/verbena-rdma/verbena/soft/internal/roce/sharedport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/srd"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// Limits of the device.
const (
	maxQPWR       = 1 << 16
	maxSGE        = 32
	maxCQE        = 1 << 22
	maxInline     = 512
	maxMRSize     = 1 << 47
	pathOverhead  = 96 // maximum size of IP, UDP and transport headers, in bytes
	minimumWindow = 64 << 10
	maximumWindow = 1 << 20
)

// limits are the largest numbers of objects of a device.
type limits struct {
	domains, regions, windows, addressHandles         int
	queuePairs, completionQueues, sharedReceiveQueues int
	groupMembers                                      int // queue pairs attached to one multicast group
}

// deviceLimits are the limits that a device reports, and enforces.
var deviceLimits = limits{
	domains: 1 << 16, regions: 1 << 23, windows: 1 << 20, addressHandles: 1 << 23,
	queuePairs: 1 << 16, completionQueues: 1 << 16, sharedReceiveQueues: 1 << 16, groupMembers: 1024,
}

// Device is an open software device. Outside of the structs with a lock, fields do not change after
// Open. Functions that use the fields of such a struct, and do not lock it, are called with the lock
// held.
type Device struct {
	cfg Config
	net network.Network
	// scheduler is that of a simulated host; nil: the Go runtime.
	scheduler host.Scheduler
	guid      uint64
	log       zerolog.Logger
	base      time.Time // the transport's time zero
	limits    limits
	endpoints []*endpoint         // of shard main
	groups    []*sharedport.Group // at cfg.Addresses; nil: port 4791 is not shared there
	notShared []error             // why not
	defaultPD *protectionDomain
	capture   *ipheader.Capture
	admission *admission.Control

	// mu is locked to change its fields. They are also read under the lock of any shard.
	mu struct {
		shards
		closed         bool
		failure        error // with which calls fail, after Break
		pollers        map[any]*poller
		noMoreShards   bool // no more shards can be opened
		memory         *transport.Memory
		memories       local.Memories
		domains        map[uint32]*protectionDomain
		nextDomain     uint32
		queuePairs     map[uint32]*queuePair
		srdPairs       map[uint32]*srdQueuePair
		queues         []*completionQueue
		receiveQueues  int // shared receive queues
		addressHandles int
		groups         map[netip.Addr]*group
		services       *gsi.Services // nil until a connection manager is opened
		subscribers    []*func(verbs.Event)
		faults         faults.Settings
	}
	reporting sync.Mutex // serializes the reports of events

	// main is the first shard. Its lock guards the other fields.
	main struct {
		*shard
		multicast multicastCounts
		srd       *srd.Transport
		srdReply  udpOutput // for replies to unknown devices
		// srdReplied: srdReply has a packet that is not flushed yet.
		srdReplied      bool
		numbers         srd.Numbers
		lastSRDEndpoint *endpoint // that received the last SRD packet; initially the first endpoint
	}

	running sync.WaitGroup
	closers closers.List // for memory maps and the like
}

// drops counts dropped packets.
type drops struct {
	malformed uint64
	badICRC   uint64
	wrongPeer uint64 // for an unknown queue pair, or not from its peer
	// wrongSource: from the peer's address, but not from its port.
	wrongSource uint64
	policed     uint64 // messages to queue pair 1 beyond the limits of admission.MADs
	send        uint64 // the socket refused it
}

// multicastCounts counts packets of multicast groups.
type multicastCounts struct{ sent, received uint64 }

// Open opens a device.
func Open(cfg Config) (*Device, error) {
	if err := faults.Check(cfg.Faults); err != nil {
		return nil, fmt.Errorf("open device %s: %w: %w", cfg.Name, err, verbs.ErrInvalid)
	}
	net := cfg.Network
	if net == nil {
		net = network.System
	}
	d := &Device{
		cfg: cfg, net: net, scheduler: net.Scheduler(), log: cfg.Log, base: net.Now(), limits: deviceLimits, guid: host.Uint64(net),
	}
	if cfg.EFA {
		d.limits.queuePairs = 1<<12 - 1 // numbers with one slot
	}
	d.mu.faults = faults.Settings{All: cfg.Faults}
	d.mu.memory = transport.NewMemory()
	d.mu.pollers = make(map[any]*poller)
	d.mu.domains = make(map[uint32]*protectionDomain)
	d.mu.queuePairs = make(map[uint32]*queuePair)
	d.mu.srdPairs = make(map[uint32]*srdQueuePair)
	d.admission = admission.New(admission.Config{
		Device: cfg.Name, Log: cfg.Log, Now: d.now, Random: d.random, Deadline: func(at time.Duration) { d.main.noteDeadline(at) },
	})
	d.mu.memory.Virtual = net.Simulated()
	if cfg.Owner == nil {
		d.cfg.Owner = d
	}
	d.defaultPD = d.newDomain()
	var err error
	if d.main.shard, err = d.newShard(0); err != nil {
		return nil, fmt.Errorf("open device %s: %w", cfg.Name, err)
	}
	d.joinGroups()
	d.mu.list = []*shard{d.main.shard}
	var unavailable error
	for i, a := range cfg.Addresses {
		e, err := openEndpoint(d.main.shard, len(d.main.endpoints), a, d.groups[i], d.notShared[i])
		switch {
		case err == nil:
			d.main.endpoints = append(d.main.endpoints, e)
		case a.Port() == 0 && errors.Is(err, syscall.EADDRNOTAVAIL):
			// The system is still checking whether another host has the address (RFC 4862
			// 5.4). The other addresses can be used meanwhile.
			unavailable = err
			d.log.Warn().Err(err).Msg("skipped an address that is not available yet")
		default:
			_ = d.closeEndpoints()
			return nil, fmt.Errorf("open device %s: %w", cfg.Name, err)
		}
	}
	d.endpoints = d.main.endpoints
	if len(d.endpoints) == 0 {
		_ = d.closeEndpoints()
		if unavailable == nil {
			unavailable = fmt.Errorf("the device has no address: %w", verbs.ErrNoDevice)
		}
		return nil, fmt.Errorf("open device %s: %w", cfg.Name, unavailable)
	}
	// The capture begins after the addresses are taken: a caller that finds one in use tries
	// another, with the same capture.
	if cfg.Capture != nil {
		var err error
		if d.capture, err = ipheader.NewCapture(cfg.Capture, d.base); err != nil {
			_ = d.closeEndpoints()
			return nil, fmt.Errorf("open device %s: start the packet capture: %w", cfg.Name, err)
		}
	}
	d.openSRD()
	if d.capture != nil {
		for _, e := range d.endpoints {
			e.wantHeaders()
		}
	}
	d.main.openLocal()
	d.main.start()
	return d, nil
}

func (d *Device) now() time.Duration { return d.net.Since(d.base) }

// Host returns the machine that the device runs on.
func (d *Device) Host() host.Host { return d.net }

// random returns an unpredictable number. Keys that grant access to memory come from it.
func (d *Device) random() uint32 { return host.Uint32(d.net) }

// Name implements verbs.Device.
func (d *Device) Name() string { return d.cfg.Name }

// Driver implements verbs.Device.
func (d *Device) Driver() string { return "soft" }

// Query implements verbs.Device.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{
		FirmwareVersion:    "software",
		NodeGUID:           cmp.Or(d.cfg.NodeGUID, d.guid),
		VendorID:           d.vendorID(),
		MaxMRSize:          maxMRSize,
		MaxQP:              d.limits.queuePairs,
		MaxQPWR:            maxQPWR,
		MaxSGE:             maxSGE,
		MaxCQ:              d.limits.completionQueues,
		MaxCQE:             maxCQE,
		MaxMR:              d.limits.regions,
		MaxPD:              d.limits.domains,
		MaxSRQ:             d.limits.sharedReceiveQueues,
		MaxSRQWR:           maxQPWR,
		MaxSRQSGE:          maxSGE,
		MaxAH:              d.limits.addressHandles,
		MaxMulticastGroups: d.maxGroups(),
		MaxMulticastQPs:    d.limits.groupMembers,
		MaxQPReadAtomic:    transport.MaxReadAtomic,
		MaxInitReadAtomic:  transport.MaxReadAtomic,
		MaxInline:          maxInline,
		MaxMessage:         transport.MaxMessage,
		Ports:              1,
		Transports:         d.transports(),
		Atomics:            true,
		AtomicsGlobal:      true, // the processor's own
		AtomicWrite:        true,
		MaxMW:              d.limits.windows,
		MWTypes:            verbs.MWTypeSet(verbs.MWType1, verbs.MWType2),
		Invalidation:       true,
		CMPathMTU:          true,
		CompletionFields:   completionFields,
		ClockFrequency:     uint64(time.Second), // nanoseconds
		NUMANode:           -1,
		SRD:                d.srdAttr(),
	}, nil
}

// QueryPort implements verbs.Device.
func (d *Device) QueryPort(port int) (verbs.PortAttr, error) {
	if err := d.checkPort(port); err != nil {
		return verbs.PortAttr{}, err
	}
	return verbs.PortAttr{
		State: verbs.PortActive, LinkLayer: verbs.LinkEthernet,
		MaxMTU: 4096, ActiveMTU: pathMTU(d.cfg.InterfaceMTU),
		GIDTable: len(d.endpoints), Interface: d.cfg.Interface,
	}, nil
}

// window is how many bytes may be in flight to any peer.
func (d *Device) window() int {
	window := maximumWindow
	for _, e := range d.endpoints {
		window = min(window, e.window)
	}
	return window
}

func (d *Device) checkPort(port int) error {
	if port != 1 {
		return fmt.Errorf("device %s has no port %d, only port 1: %w", d.cfg.Name, port, verbs.ErrInvalid)
	}
	return nil
}

// pathMTU is the largest path MTU whose packets fit an interface's MTU.
func pathMTU(interfaceMTU int) verbs.MTU {
	mtu := verbs.MTU(4096)
	for mtu > 256 && interfaceMTU > 0 && int(mtu)+pathOverhead > interfaceMTU {
		mtu /= 2
	}
	return mtu
}

// GIDs implements verbs.Device.
func (d *Device) GIDs(port int) ([]verbs.GIDEntry, error) {
	if err := d.checkPort(port); err != nil {
		return nil, err
	}
	entries := make([]verbs.GIDEntry, len(d.endpoints))
	for i, e := range d.endpoints {
		addr := e.socket.Addr()
		entries[i] = verbs.GIDEntry{
			Index: i, GID: verbs.GIDFromAddr(addr.Addr()), Type: verbs.GIDRoCEv2,
			Interface: d.cfg.Interface, UDPPort: addr.Port(), SharesPort: e.group != nil && !e.atStandardPort(), SourceUDPPort: e.socket.Source().Port(),
		}
	}
	return entries, nil
}

// DefaultPD implements verbs.Device.
func (d *Device) DefaultPD() verbs.PD { return d.defaultPD }

// SubscribeEvents implements verbs.Device.
func (d *Device) SubscribeEvents(handle func(verbs.Event)) (cancel func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.subscribers = append(d.mu.subscribers, &handle)
	return func() {
		// Events are reported under the lock, so no handler runs while it is held here.
		d.mu.Lock()
		defer d.mu.Unlock()
		d.mu.subscribers = slices.DeleteFunc(d.mu.subscribers, func(h *func(verbs.Event)) bool { return h == &handle })
	}
}

func (d *Device) report(e verbs.Event) {
	d.reporting.Lock()
	defer d.reporting.Unlock()
	for _, handle := range d.mu.subscribers {
		(*handle)(e)
	}
}

// SetFaults changes the faults of packets that arrive from now on. Peers with faults of their
// own keep these.
func (d *Device) SetFaults(f faults.Faults) error {
	if err := faults.Check(f); err != nil {
		return fmt.Errorf("set faults of device %s: %w: %w", d.cfg.Name, err, verbs.ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.faults.All = f
	d.faultsChanged(netip.Addr{})
	return nil
}

// SetPeerFaults changes the faults of packets from one address. The zero value restores the
// device's.
func (d *Device) SetPeerFaults(peer netip.Addr, f faults.Faults) error {
	err := faults.Check(f)
	if err == nil && (!peer.IsValid() || peer.IsUnspecified() || peer.IsMulticast()) {
		err = fmt.Errorf("%v cannot be the address of a peer", peer)
	}
	if err != nil {
		return fmt.Errorf("set faults of packets from %v to device %s: %w: %w", peer, d.cfg.Name, err, verbs.ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	peer = peer.Unmap().WithZone("")
	if f == (faults.Faults{}) {
		delete(d.mu.faults.Peers, peer)
	} else {
		if d.mu.faults.Peers == nil {
			d.mu.faults.Peers = make(map[netip.Addr]faults.Faults)
		}
		d.mu.faults.Peers[peer] = f
	}
	d.faultsChanged(peer)
	return nil
}

// faultsChanged applies the faults for packets from peer, or those of the device if peer is
// not valid.
func (d *Device) faultsChanged(peer netip.Addr) {
	for _, s := range d.mu.list {
		for _, e := range s.endpoints {
			e.setFaults(peer)
		}
	}
	for _, s := range d.mu.list {
		s.mu.local.Reconsider()
	}
	for _, s := range d.mu.list {
		s.transmit(d.now()) // responses to packets that the faults held back
	}
}

// Close implements verbs.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.mu.closed {
		d.mu.Unlock()
		return nil
	}
	err := d.queuesInUse()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if err := d.closers.Close(); err != nil {
		return fmt.Errorf("close device %s: %w", d.cfg.Name, err)
	}
	d.mu.Lock()
	if d.mu.closed {
		d.mu.Unlock()
		return nil
	}
	if err := d.inUse(); err != nil {
		d.mu.Unlock()
		return err
	}
	d.mu.closed = true
	wait := d.closeLocal()
	d.mu.Unlock()
	wait() // frees the names of the addresses for the next device
	d.mu.Lock()
	err = d.closeEndpoints()
	d.mu.Unlock()
	d.running.Wait()
	return errors.Join(err, d.capture.Err())
}

// OnClose implements verbs.ClosingDevice.
func (d *Device) OnClose(f func() error) (remove func()) { return d.closers.Add(f) }

func (d *Device) errNotClosed(n int, what string) error {
	return fmt.Errorf("close device %s: %d %s are still open: %w", d.cfg.Name, n, what, verbs.ErrInUse)
}

// queuesInUse returns an error if the device may still be working. Its memory cannot be closed
// then.
func (d *Device) queuesInUse() error {
	switch {
	case len(d.mu.queuePairs)+len(d.mu.srdPairs) > 0:
		return d.errNotClosed(len(d.mu.queuePairs)+len(d.mu.srdPairs), "queue pairs")
	case len(d.mu.domains) > 1:
		return d.errNotClosed(len(d.mu.domains)-1, "protection domains")
	case len(d.mu.queues) > 0:
		return d.errNotClosed(len(d.mu.queues), "completion queues")
	case d.mu.services != nil && d.mu.services.Managers() > 0:
		return d.errNotClosed(d.mu.services.Managers(), "connection managers")
	}
	return nil
}

// inUse returns an error if something of the device is not closed.
func (d *Device) inUse() error {
	switch {
	case d.mu.memory.Len() > 0:
		return d.errNotClosed(d.mu.memory.Len(), "memory regions")
	case d.defaultPD.refs > 0:
		return d.errNotClosed(d.defaultPD.refs, "objects of the default protection domain")
	}
	return d.queuesInUse()
}

// localCloseTimeout bounds how long packets from other processes can delay the end of shared
// memory (local.Channel.CloseConnection). After that its goroutines end when they can.
const localCloseTimeout = 2 * time.Second

// closeLocal ends the use of shared memory. The caller calls wait without the lock: it waits for
// channels that are ending or being made, for at most localCloseTimeout.
func (d *Device) closeLocal() (wait func()) {
	var waits []func()
	for _, s := range d.mu.list {
		if s.mu.local.On() {
			waits = append(waits, s.mu.local.Off())
		}
	}
	if len(waits) == 0 {
		return func() {}
	}
	return func() {
		ended := closers.Wait(localCloseTimeout, func() {
			for _, wait := range waits {
				wait()
			}
		})
		if !ended {
			d.log.Warn().Msg("another process delays the closing of shared memory; it continues in the background")
		}
	}
}

func (d *Device) closeEndpoints() error {
	var errs []error
	d.leaveGroups()
	for _, s := range d.mu.list {
		errs = append(errs, s.closeEndpoints())
	}
	return errors.Join(errs...)
}

// checkOpen returns an error if the device is closed or has failed.
func (d *Device) checkOpen(op string) error {
	if d.mu.closed {
		return d.closedError(op)
	}
	return d.broken(op)
}

// checkRoom returns an error if as many objects as the device can have are open.
func (d *Device) checkRoom(op string, open, limit int, what string) error {
	if open < limit {
		return nil
	}
	return fmt.Errorf("%s: device %s already has %d %s, its limit; close some first: %w", op, d.cfg.Name, open, what, verbs.ErrLimit)
}

// broken returns an error if the device has failed. The lock of a shard is held.
func (d *Device) broken(op string) error {
	if d.mu.failure == nil {
		return nil
	}
	return fmt.Errorf("%s: device %s: %w", op, d.cfg.Name, d.mu.failure)
}

// Break makes calls fail with that error from now on, except those that close objects. It
// reports [verbs.EventDeviceFatal], and wakes the programs that wait for completions.
func (d *Device) Break(failure error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed || d.mu.failure != nil {
		return
	}
	d.mu.failure = failure
	d.report(verbs.Event{Type: verbs.EventDeviceFatal})
	for _, c := range d.mu.queues {
		if c.armed != notArmed {
			c.fire()
		}
	}
}

// sortedPairs returns queue pairs in the order of their numbers, for calls that programs see.
func sortedPairs[Q any](pairs map[uint32]Q) []Q {
	sorted := make([]Q, 0, len(pairs))
	for _, n := range slices.Sorted(maps.Keys(pairs)) {
		sorted = append(sorted, pairs[n])
	}
	return sorted
}

// closedError is the error of calls on a closed device.
func (d *Device) closedError(op string) error {
	return fmt.Errorf("%s: device %s: %w", op, d.cfg.Name, verbs.ErrClosed)
}

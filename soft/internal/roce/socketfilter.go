package roce

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// socketFilter is what the system drops of the packets for one entry of the GID table, at the
// sockets of all shards. A packet that the device refuses has to be received first, so that a
// flood of them costs busy connections most of their speed. What a filter drops costs its
// sender, if that is on the same machine.
//
// The rule: the filter drops only what endpoint.handle would refuse anyway. So it passes what
// comes from where the packets of any connection may come from, what is for queue pairs that
// take packets from anywhere, and all of SRD, which looks at packets itself. It is taken away
// before a packet can be taken that it would drop. Only the messages of sources that the policer
// ignores are dropped for longer than they would be refused; and the first packet of a train
// decides for all of it.
type socketFilter struct {
	device *Device
	index  int // of the entry

	// Guarded like Device.queuePairs.
	sources map[netip.AddrPort]int // of connections, and how many have each; port 0: any of the address
	open    map[uint32]struct{}    // queue pairs for datagrams that take packets

	// restrictedUntil is when a restriction ends; zero: there is none. It changes under mu.
	restrictedUntil atomic.Int64

	mu        sync.Mutex // a leaf
	tokens    bucket
	notBefore time.Duration // when it can be tried again, where it did not work
	ignored   []netip.Addr  // sources whose messages to queue pair 1 are dropped
	logged    time.Duration // when a restriction was last logged; zero: none was
}

const (
	// An address may be sent refusedBurst packets at once that are refused, and one more in each
	// refusedInterval, before there is a restriction, for restrictTime.
	refusedBurst    = 256
	refusedInterval = time.Millisecond
	restrictTime    = time.Second
	// liftTime is how long there is none after peers have changed.
	liftTime = 10 * time.Millisecond
)

func newSocketFilter(d *Device, index int) *socketFilter {
	return &socketFilter{device: d, index: index, sources: make(map[netip.AddrPort]int), open: make(map[uint32]struct{})}
}

// admit notes that packets of one more connection may come from there. The lock of all shards
// is held, as in the three methods below.
func (f *socketFilter) admit(source netip.AddrPort) {
	if f.sources[source]++; f.sources[source] == 1 {
		f.lift()
	}
}

// withdraw ends admit.
func (f *socketFilter) withdraw(source netip.AddrPort) {
	if f.sources[source]--; f.sources[source] == 0 {
		delete(f.sources, source)
	}
}

// admitAll notes that a queue pair takes packets from anywhere.
func (f *socketFilter) admitAll(qpn uint32) {
	f.open[qpn] = struct{}{}
	f.lift()
}

// withdrawAll ends admitAll.
func (f *socketFilter) withdrawAll(qpn uint32) { delete(f.open, qpn) }

// passes reports whether a restriction lets a packet pass that is none of SRD.
func (f *socketFilter) passes(source netip.AddrPort, qpn uint32) bool {
	if _, open := f.open[qpn]; open || qpn == managementQPN {
		return true
	}
	return f.sources[source] > 0 || f.sources[netip.AddrPortFrom(source.Addr(), 0)] > 0
}

// refused notes that a packet was refused for its source or its queue pair. If it is one of too
// many, and a restriction helps, there is one, and refused returns when it ends; else zero. The
// lock of a shard is held.
func (f *socketFilter) refused(source netip.AddrPort, qpn uint32, now time.Duration) (until time.Duration) {
	f.mu.Lock()
	if f.restrictedUntil.Load() != 0 || now < f.notBefore {
		f.mu.Unlock()
		return 0
	}
	if f.tokens.has(now, refusedBurst, refusedInterval) {
		f.tokens.take(now, refusedInterval)
		f.mu.Unlock()
		return 0
	}
	if f.passes(source, qpn) {
		f.mu.Unlock()
		return 0
	}
	err := f.restrict(now)
	log := err == nil && (f.logged == 0 || now-f.logged >= logInterval)
	if log {
		f.logged = now
	}
	f.mu.Unlock()
	if err != nil {
		f.logFailure(err)
		return 0
	}
	if log {
		f.device.log.Warn().Str("device", f.device.cfg.Name).Stringer("address", f.address()).Stringer("source", source).
			Msg("a flood of packets that are refused: while it lasts, the system drops what comes from elsewhere than peers")
	}
	return now + restrictTime
}

// errTooMany: a restriction would have to name too many sources or queue pairs.
var errTooMany = errors.New("too many peers or queue pairs for datagrams")

// restrict begins a restriction.
func (f *socketFilter) restrict(now time.Duration) error {
	err := errTooMany
	if len(f.sources) <= link.MaxAdmitted && len(f.open) < link.MaxOpen { // queue pair 1 is open, too
		f.restrictedUntil.Store(int64(now + restrictTime))
		err = f.apply()
	}
	if err != nil {
		f.notBefore = now + restrictTime
		f.end()
	}
	return err
}

// lift ends a restriction, for a moment at least: peers that come one after the other cost no more
// than that many filters.
func (f *socketFilter) lift() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.restrictedUntil.Load() != 0 {
		f.notBefore = f.device.now() + liftTime
	}
	f.end()
}

func (f *socketFilter) end() {
	if f.restrictedUntil.Swap(0) != 0 {
		f.logFailure(f.apply())
	}
}

// expire ends a restriction whose time is over, and returns when the present one ends; zero:
// there is none. The lock of a shard is held.
func (f *socketFilter) expire(now time.Duration) (until time.Duration) {
	if until = time.Duration(f.restrictedUntil.Load()); until == 0 || now < until {
		return until
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if until = time.Duration(f.restrictedUntil.Load()); now < until {
		return until
	}
	f.end()
	return 0
}

// ignore replaces the sources whose messages to queue pair 1 are dropped. The lock of main is
// held.
func (f *socketFilter) ignore(sources []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ignored = append(f.ignored[:0], sources...)
	if err := f.apply(); err != nil {
		f.logFailure(err)
		f.end()
	}
}

// apply has the sockets of all shards filter what they are to. Where it fails, the device does by
// itself, at a higher price.
func (f *socketFilter) apply() error {
	filter := link.Filter{IgnoredQPN: managementQPN, Ignored: f.ignored}
	if f.restrictedUntil.Load() != 0 {
		filter.Restrict, filter.OpenService = true, uint8(wire.ServiceSRD)
		filter.Open = append(filter.Open, managementQPN)
		for qpn := range f.open {
			filter.Open = append(filter.Open, qpn)
		}
		for source := range f.sources {
			filter.Admitted = append(filter.Admitted, source)
		}
	}
	var errs []error
	for _, s := range f.device.mu.list {
		errs = append(errs, s.endpoints[f.index].socket.SetFilter(filter))
		filter.Ignored = nil // these messages come to the first
	}
	return errors.Join(errs...)
}

func (f *socketFilter) logFailure(err error) {
	if err == nil || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, net.ErrClosed) {
		return
	}
	f.device.log.Debug().Err(err).Str("device", f.device.cfg.Name).Stringer("address", f.address()).Msg("the system does not drop what floods the device")
}

func (f *socketFilter) address() netip.AddrPort { return f.device.endpoints[f.index].socket.Addr() }

package admission

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

// Entry is an entry of the GID table, with the filter by which the system drops packets for it
// at the sockets of all shards. The device must receive a packet before it can refuse it, so
// that a flood of refused packets takes most of the speed of busy connections. The cost of a
// packet that the filter drops is charged to its sender, if that is on the same machine.
//
// The filter drops only packets that the device would refuse. So it passes packets from the
// sources of connections, packets for queue pairs that accept any source, and all SRD packets,
// since SRD checks packets itself. The filter ends before a source opens whose packets it
// would drop. There are two exceptions: messages of sources that [MADs] ignores are
// dropped for longer than they would be refused, and the first packet of a train decides for
// the whole train.
type Entry struct {
	control   *Control
	addr      netip.AddrPort
	setFilter func(link.Filter) error // sets the filter of the sockets of all shards

	// Read under the lock of any shard, and changed under the locks of all.
	sources map[netip.AddrPort]int // sources of connections, with the number of connections; port 0: any port
	open    map[uint32]struct{}    // queue pairs that accept any source

	// restrictedUntil is when the restriction ends; zero: there is none. It changes under mu.
	restrictedUntil atomic.Int64

	mu        sync.Mutex // no other lock is taken under it
	tokens    bucket
	notBefore time.Duration // earliest start of the next restriction, after one has failed or was lifted
	ignored   []netip.Addr  // sources whose messages to queue pair 1 are dropped
	logged    time.Duration // time of the last log line about a restriction; zero: none
}

const (
	// A restriction starts when more than RefusedBurst packets are refused at once, or more
	// than one per refusedInterval for some time. It lasts for restrictTime.
	RefusedBurst    = 256
	refusedInterval = time.Millisecond
	restrictTime    = time.Second
	// liftTime is the least time from a lift to the next restriction.
	liftTime = 10 * time.Millisecond
)

// Entry adds an entry with that address. The entry calls set to filter packets at all of its
// sockets, with the lock of a shard held.
func (c *Control) Entry(addr netip.AddrPort, set func(link.Filter) error) *Entry {
	e := &Entry{control: c, addr: addr, setFilter: set, sources: make(map[netip.AddrPort]int), open: make(map[uint32]struct{})}
	c.entries = append(c.entries, e)
	return e
}

// allow counts one more connection that may receive packets from that source.
func (e *Entry) allow(source netip.AddrPort) {
	if e.sources[source]++; e.sources[source] == 1 {
		e.Lift()
	}
}

// disallow undoes allow.
func (e *Entry) disallow(source netip.AddrPort) {
	if e.sources[source]--; e.sources[source] == 0 {
		delete(e.sources, source)
	}
}

// openQP records that a queue pair accepts packets from any source.
func (e *Entry) openQP(qpn uint32) {
	e.open[qpn] = struct{}{}
	e.Lift()
}

// closeQP undoes openQP.
func (e *Entry) closeQP(qpn uint32) { delete(e.open, qpn) }

// Open returns the number of open sources of connections, and of open queue pairs that accept
// any source. The lock of a shard is held.
func (e *Entry) Open() (sources, queuePairs int) { return len(e.sources), len(e.open) }

// passes reports whether a restriction passes a packet other than SRD.
func (e *Entry) passes(source netip.AddrPort, qpn uint32) bool {
	if _, open := e.open[qpn]; open || qpn == wire.ManagementQPN {
		return true
	}
	return e.sources[source] > 0 || e.sources[netip.AddrPortFrom(source.Addr(), 0)] > 0
}

// Refused records that a packet was refused for its source or its queue pair. If there are too
// many of these, and a restriction would drop this one, a restriction starts, and Refused
// returns when it ends; otherwise zero. The lock of a shard is held.
func (e *Entry) Refused(source netip.AddrPort, qpn uint32, now time.Duration) (until time.Duration) {
	e.mu.Lock()
	if e.restrictedUntil.Load() != 0 || now < e.notBefore {
		e.mu.Unlock()
		return 0
	}
	if e.tokens.has(now, RefusedBurst, refusedInterval) {
		e.tokens.take(now, refusedInterval)
		e.mu.Unlock()
		return 0
	}
	if e.passes(source, qpn) {
		e.mu.Unlock()
		return 0
	}
	err := e.restrict(now)
	log := err == nil && (e.logged == 0 || now-e.logged >= logInterval)
	if log {
		e.logged = now
	}
	e.mu.Unlock()
	if err != nil {
		e.logFailure(err)
		return 0
	}
	if log {
		cfg := &e.control.cfg
		cfg.Log.Warn().Str("device", cfg.Device).Stringer("address", e.addr).Stringer("source", source).
			Msg("flood of refused packets: while it lasts, the kernel drops packets that do not come from peers")
	}
	return now + restrictTime
}

// errTooMany: a restriction would have to list too many sources or queue pairs.
var errTooMany = errors.New("too many peers or datagram queue pairs for a socket filter")

// Restrict starts a restriction. The lock of a shard is held.
func (e *Entry) Restrict(now time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.restrict(now)
}

func (e *Entry) restrict(now time.Duration) error {
	err := errTooMany
	if len(e.sources) <= link.MaxAdmitted && len(e.open) < link.MaxOpen { // plus queue pair 1, which is open too
		e.restrictedUntil.Store(int64(now + restrictTime))
		err = e.apply()
	}
	if err != nil {
		e.notBefore = now + restrictTime
		e.endRestriction()
	}
	return err
}

// Lift ends a restriction. The next one starts after liftTime at the earliest, which bounds
// how often successive new peers change the filter. The locks of all shards are held.
func (e *Entry) Lift() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.restrictedUntil.Load() != 0 {
		e.notBefore = e.control.cfg.Now() + liftTime
	}
	e.endRestriction()
}

func (e *Entry) endRestriction() {
	if e.restrictedUntil.Swap(0) != 0 {
		e.logFailure(e.apply())
	}
}

// Expire ends a restriction whose time is over. It returns when the current one ends; zero:
// there is none. The lock of a shard is held.
func (e *Entry) Expire(now time.Duration) (until time.Duration) {
	if until = time.Duration(e.restrictedUntil.Load()); until == 0 || now < until {
		return until
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if until = time.Duration(e.restrictedUntil.Load()); now < until {
		return until
	}
	e.endRestriction()
	return 0
}

// ignore sets the sources whose messages to queue pair 1 the system drops.
func (e *Entry) ignore(sources []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ignored = append(e.ignored[:0], sources...)
	if err := e.apply(); err != nil {
		e.logFailure(err)
		e.endRestriction()
	}
}

// apply sets the filters of the sockets. If that fails, the device refuses the packets itself,
// at a higher cost.
func (e *Entry) apply() error {
	filter := link.Filter{IgnoredQPN: wire.ManagementQPN, Ignored: e.ignored}
	if e.restrictedUntil.Load() != 0 {
		filter.Restrict, filter.OpenService = true, uint8(wire.ServiceSRD)
		filter.Open = append(filter.Open, wire.ManagementQPN)
		for qpn := range e.open {
			filter.Open = append(filter.Open, qpn)
		}
		for source := range e.sources {
			filter.Admitted = append(filter.Admitted, source)
		}
	}
	return e.setFilter(filter)
}

func (e *Entry) logFailure(err error) {
	if err == nil || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, net.ErrClosed) {
		return
	}
	cfg := &e.control.cfg
	cfg.Log.Debug().Err(err).Str("device", cfg.Device).Stringer("address", e.addr).Msg("cannot set the socket filter against a flood")
}

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

// Entry is an entry of the GID table, and what the system drops of the packets for it, at the
// sockets of all shards. The device must receive a packet before it can refuse it, so that a flood
// of refused packets costs busy connections most of their speed. What a filter drops costs its
// sender, if that is on the same machine.
//
// The rule: the filter drops only what the device would refuse. So it passes what comes from the
// sources of connections, what is for queue pairs that take packets from anywhere, and all of SRD,
// which checks packets itself. The filter ends before a source opens whose packets it would drop.
// Two exceptions: messages of sources that [Messages] ignores are dropped for longer than they would
// be refused, and the first packet of a train decides for the whole train.
type Entry struct {
	control *Control
	addr    netip.AddrPort
	set     func(link.Filter) error // at the sockets of all shards

	// Read under the lock of any shard, and changed under those of all.
	sources map[netip.AddrPort]int // of connections, and how many have each; port 0: any of the address
	open    map[uint32]struct{}    // queue pairs that take packets from anywhere

	// restrictedUntil is when a restriction ends; zero: there is none. It changes under mu.
	restrictedUntil atomic.Int64

	mu        sync.Mutex // no other lock is taken under it
	tokens    bucket
	notBefore time.Duration // no restriction begins earlier: one has failed, or was lifted
	ignored   []netip.Addr  // sources whose messages to queue pair 1 are dropped
	logged    time.Duration // when a restriction was last logged; zero: none was
}

const (
	// An entry may be sent RefusedBurst packets at once that are refused, and one more in each
	// refusedInterval, before a restriction begins, for restrictTime.
	RefusedBurst    = 256
	refusedInterval = time.Millisecond
	restrictTime    = time.Second
	// liftTime is the least time from a lift to the next restriction.
	liftTime = 10 * time.Millisecond
)

// ManagementQPN is queue pair 1, the general services interface (IBTA 13.5.1).
const ManagementQPN = 1

// Entry adds an entry with that address. It calls set to filter packets at all sockets of the
// entry, with the lock of a shard held.
func (c *Control) Entry(addr netip.AddrPort, set func(link.Filter) error) *Entry {
	e := &Entry{control: c, addr: addr, set: set, sources: make(map[netip.AddrPort]int), open: make(map[uint32]struct{})}
	c.entries = append(c.entries, e)
	return e
}

// allow notes that packets of one more connection may come from that source.
func (e *Entry) allow(source netip.AddrPort) {
	if e.sources[source]++; e.sources[source] == 1 {
		e.Lift()
	}
}

// disallow ends allow.
func (e *Entry) disallow(source netip.AddrPort) {
	if e.sources[source]--; e.sources[source] == 0 {
		delete(e.sources, source)
	}
}

// openQP notes that a queue pair takes packets from anywhere.
func (e *Entry) openQP(qpn uint32) {
	e.open[qpn] = struct{}{}
	e.Lift()
}

// closeQP ends openQP.
func (e *Entry) closeQP(qpn uint32) { delete(e.open, qpn) }

// Open returns how many sources of connections, and how many queue pairs that take packets from
// anywhere, are open. The lock of a shard is held.
func (e *Entry) Open() (sources, queuePairs int) { return len(e.sources), len(e.open) }

// passes reports whether a restriction lets a packet pass that is not of SRD.
func (e *Entry) passes(source netip.AddrPort, qpn uint32) bool {
	if _, open := e.open[qpn]; open || qpn == ManagementQPN {
		return true
	}
	return e.sources[source] > 0 || e.sources[netip.AddrPortFrom(source.Addr(), 0)] > 0
}

// Refused notes that a packet was refused for its source or its queue pair. If there are too many
// of them, and a restriction helps, one begins, and Refused returns when it ends; else zero. The
// lock of a shard is held.
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
			Msg("a flood of packets that are refused: while it lasts, the system drops what comes from elsewhere than peers")
	}
	return now + restrictTime
}

// errTooMany: a restriction would have to name too many sources or queue pairs.
var errTooMany = errors.New("too many peers or queue pairs for datagrams")

// Restrict begins a restriction. The lock of a shard is held.
func (e *Entry) Restrict(now time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.restrict(now)
}

func (e *Entry) restrict(now time.Duration) error {
	err := errTooMany
	if len(e.sources) <= link.MaxAdmitted && len(e.open) < link.MaxOpen { // queue pair 1 is open, too
		e.restrictedUntil.Store(int64(now + restrictTime))
		err = e.apply()
	}
	if err != nil {
		e.notBefore = now + restrictTime
		e.end()
	}
	return err
}

// Restricted reports whether there is a restriction. Any goroutine may call it.
func (e *Entry) Restricted() bool { return e.restrictedUntil.Load() != 0 }

// Lift ends a restriction. The next one begins after liftTime at the earliest, so that peers that
// connect one after the other change the filter no more often than that. The locks of all shards
// are held.
func (e *Entry) Lift() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.restrictedUntil.Load() != 0 {
		e.notBefore = e.control.cfg.Now() + liftTime
	}
	e.end()
}

func (e *Entry) end() {
	if e.restrictedUntil.Swap(0) != 0 {
		e.logFailure(e.apply())
	}
}

// Expire ends a restriction whose time is over, and returns when the present one ends; zero:
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
	e.end()
	return 0
}

// ignore replaces the sources whose messages to queue pair 1 are dropped.
func (e *Entry) ignore(sources []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ignored = append(e.ignored[:0], sources...)
	if err := e.apply(); err != nil {
		e.logFailure(err)
		e.end()
	}
}

// apply sets the filters of the sockets. Where it fails, the device refuses the packets itself, at
// a higher price.
func (e *Entry) apply() error {
	filter := link.Filter{IgnoredQPN: ManagementQPN, Ignored: e.ignored}
	if e.restrictedUntil.Load() != 0 {
		filter.Restrict, filter.OpenService = true, uint8(wire.ServiceSRD)
		filter.Open = append(filter.Open, ManagementQPN)
		for qpn := range e.open {
			filter.Open = append(filter.Open, qpn)
		}
		for source := range e.sources {
			filter.Admitted = append(filter.Admitted, source)
		}
	}
	return e.set(filter)
}

func (e *Entry) logFailure(err error) {
	if err == nil || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, net.ErrClosed) {
		return
	}
	cfg := &e.control.cfg
	cfg.Log.Debug().Err(err).Str("device", cfg.Device).Stringer("address", e.addr).Msg("the system does not drop what floods the device")
}

package roce

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// refusals bound how many remote keys a host can try on the device, over however many
// connections: a key has 32 bits, and at a try a second all of them take a lifetime. A host
// that has used up its tries has to wait with keys that its connection was not granted
// before; whatever it was granted goes on.
type refusals struct {
	device *Device

	// limitedUntil is when all hosts may try keys again. In the past: they may.
	limitedUntil atomic.Int64

	mu     sync.Mutex // a leaf
	hosts  hostBuckets
	logged time.Duration // when a host was last logged; zero: none was
}

const (
	// A host may be refused refusalBurst times at once, and then once in
	// refusalInterval.
	refusalBurst    = 64
	refusalInterval = time.Second
	// logInterval is between two lines of the log.
	logInterval = 10 * time.Second
)

func newRefusals(d *Device) *refusals { return &refusals{device: d, hosts: newHostBuckets()} }

// admits reports whether a host may try a key.
func (r *refusals) admits(host netip.Addr) bool {
	now := r.device.now()
	if int64(now) >= r.limitedUntil.Load() {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hosts.of(host).has(now, refusalBurst, refusalInterval)
}

// refused notes that a host has tried a key in vain.
func (r *refusals) refused(host netip.Addr) {
	now := r.device.now()
	r.mu.Lock()
	b := r.hosts.of(host)
	b.take(now, refusalInterval)
	r.limitedUntil.Store(max(r.limitedUntil.Load(), int64(b.full-(refusalBurst-1)*refusalInterval)))
	log := !b.has(now, refusalBurst, refusalInterval) && (r.logged == 0 || now-r.logged >= logInterval)
	if log {
		r.logged = now
	}
	r.mu.Unlock()
	if log {
		r.device.log.Warn().Str("device", r.device.cfg.Name).Stringer("host", host).
			Msg("a host tries remote keys that grant it nothing: requests of its connections that use a key for the first time are held up")
	}
}

// keyGuard is that of one queue pair's peer. It implements transport.KeyGuard.
type keyGuard struct{ queuePair *queuePair }

func (g keyGuard) host() netip.Addr { return g.queuePair.transport.Attr().Address.DGID.Addr() }

func (g keyGuard) Admits() bool { return g.queuePair.pd.device.refusals.admits(g.host()) }
func (g keyGuard) Refused()     { g.queuePair.pd.device.refusals.refused(g.host()) }

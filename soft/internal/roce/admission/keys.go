package admission

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Keys bounds how many remote keys a host can try on the device, over all its connections. A
// key has 32 bits: at one try a second, trying all of them takes a lifetime. A host that has
// used up its tries must wait before its connections use keys that they were not granted
// before. Keys that were granted stay usable. Any goroutine may call its methods.
type Keys struct {
	control *Control

	// limitedUntil is when all hosts may try keys again.
	limitedUntil atomic.Int64

	mu     sync.Mutex // no other lock is taken under it
	hosts  hostBuckets
	logged time.Duration // time of the last log line about a host; zero: none
}

// A host may be refused KeyBurst times at once, and then once per keyInterval.
const (
	KeyBurst    = 64
	keyInterval = time.Second
)

// Admit reports whether a host may try a key.
func (k *Keys) Admit(host netip.Addr) bool {
	now := k.control.cfg.Now()
	if int64(now) >= k.limitedUntil.Load() {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hosts.of(host).has(now, KeyBurst, keyInterval)
}

// Refused records that a host has tried a wrong key.
func (k *Keys) Refused(host netip.Addr) {
	now := k.control.cfg.Now()
	k.mu.Lock()
	b := k.hosts.of(host)
	b.take(now, keyInterval)
	k.limitedUntil.Store(max(k.limitedUntil.Load(), int64(b.full-(KeyBurst-1)*keyInterval)))
	log := !b.has(now, KeyBurst, keyInterval) && (k.logged == 0 || now-k.logged >= logInterval)
	if log {
		k.logged = now
	}
	k.mu.Unlock()
	if log {
		k.control.cfg.Log.Warn().Str("device", k.control.cfg.Device).Stringer("host", host).
			Msg("a host has used too many wrong remote keys: its requests that use a key for the first time are delayed")
	}
}

// Guard bounds the keys that the peer of one queue pair tries. It implements transport.KeyGuard.
type Guard struct {
	Keys *Keys
	Host func() netip.Addr // returns the peer's host
}

// Admits implements transport.KeyGuard.
func (g Guard) Admits() bool { return g.Keys.Admit(g.Host()) }

// Refused implements transport.KeyGuard.
func (g Guard) Refused() { g.Keys.Refused(g.Host()) }

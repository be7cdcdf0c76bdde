package admission

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// A bucket admits what a counter of tokens would.
func TestBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const interval = 8
		burst := rapid.IntRange(1, 20).Draw(t, "burst")
		var b bucket
		now, credit := time.Duration(0), burst*interval // in parts of a token
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			pause := rapid.IntRange(0, 3*interval).Draw(t, "pause")
			now += time.Duration(pause)
			credit = min(credit+pause, burst*interval)
			has := b.has(now, burst, interval)
			if credit >= interval != has {
				t.Fatalf("at %d with %d parts of a token: %v", now, credit, has)
			}
			if has {
				b.take(now, interval)
				credit -= interval
			}
		}
	})
}

// Hosts are spread over the buckets, and differently by each device.
func TestHostsAreSpread(t *testing.T) {
	const hosts = 256
	a, b := newHostBuckets(Random), newHostBuckets(Random)
	used, same := map[*bucket]bool{}, 0
	for i := range hosts {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		used[a.of(addr)] = true
		b.of(addr).full = time.Duration(i + 1)
		a.of(addr).full = time.Duration(i + 1)
	}
	for i := range a.buckets {
		if a.buckets[i].full != 0 && a.buckets[i] == b.buckets[i] {
			same++
		}
	}
	assert.Greater(t, len(used), hosts*3/4) // 226 are expected
	assert.Less(t, same, hosts/16)          // 0.25 are expected
}

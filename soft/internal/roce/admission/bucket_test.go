package admission

import (
	"testing"
	"time"

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

package pe_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// worked adds up the time in which a loop ran, by the small gaps between its turns:
// those in which it had no processor, this one's or the host's, do not count.
type worked struct {
	total time.Duration
	last  time.Time
}

func (w *worked) look() {
	now := time.Now()
	if gap := now.Sub(w.last); gap < time.Millisecond {
		w.total += gap
	}
	w.last = now
}

// beside calls f while n goroutines want the same processor, and returns how long
// each of them worked.
func beside(n int, f func()) (theirs []time.Duration) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	stop, done := make(chan struct{}), make(chan time.Duration)
	for range n {
		go func() {
			var w worked
			for {
				select {
				case <-stop:
					done <- w.total
					return
				default:
					w.look()
				}
			}
		}()
	}
	defer func() {
		close(stop)
		for range n {
			theirs = append(theirs, <-done)
		}
	}()
	f()
	return nil
}

// An engine that gives way gets its share of a processor that others want too. If
// it came back for a millisecond each time, that would be a tenth.
func TestEngineKeepsItsShare(t *testing.T) {
	for n, least := range map[int]float64{1: 0.35, 3: 0.15} {
		e := newEngine(t, pe.Config{})
		var share float64
		for range 3 { // others want the host's processors
			var own worked
			theirs := beside(n, func() {
				for begin := time.Now(); time.Since(begin) < 500*time.Millisecond; own.look() {
					_, err := e.Progress()
					require.NoError(t, err)
				}
			})
			all := own.total
			for _, d := range theirs {
				all += d
			}
			share = max(share, float64(own.total)/float64(all))
			if share > least {
				break
			}
		}
		t.Logf("beside %d: %.2f", n, share)
		assert.Greater(t, share, least, "beside %d", n)
	}
}

// An engine that has just slept does not give way.
func TestEngineThatSleptKeepsTheProcessor(t *testing.T) {
	e := newEngine(t, pe.Config{})
	least := 1000
	for range 3 {
		long := 0
		beside(1, func() {
			for range 40 {
				time.Sleep(time.Millisecond)
				for range 8 {
					e.Do(func() {})
					begin := time.Now()
					_, err := e.Progress()
					require.NoError(t, err)
					if time.Since(begin) > 5*time.Millisecond {
						long++
					}
				}
			}
		})
		least = min(least, long)
	}
	t.Logf("%d of 320 calls took long", least)
	assert.Less(t, least, 10)
}

// Others get the processor before the runtime has to take it from the engine.
func TestEngineGivesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	e := newEngine(t, pe.Config{})
	var waits []time.Duration
	for range 20 {
		ran := make(chan time.Duration, 1)
		begin := time.Now()
		go func() { ran <- time.Since(begin) }()
		for len(ran) == 0 {
			_, err := e.Progress()
			require.NoError(t, err)
		}
		waits = append(waits, <-ran)
	}
	t.Log(waits)
	// The runtime takes the processor after 10 ms.
	assert.Less(t, slices.Min(waits[1:]), 8*time.Millisecond)
}

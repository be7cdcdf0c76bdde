package pe_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// worked adds up the time in which a loop ran, by the small gaps between its rounds:
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

// beside calls f while n goroutines want the same processor, and returns for how
// long each of them worked.
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

// BenchmarkShare shows the part of a processor that a polling engine gets beside
// goroutines that never give way, and how many times it should be: 1 is fair.
func BenchmarkShare(b *testing.B) {
	for name, n := range map[string]int{"beside 1": 1, "beside 3": 3} {
		b.Run(name, func(b *testing.B) {
			e := newEngine(b, pe.Config{})
			var own worked
			theirs := beside(n, func() {
				for b.Loop() {
					for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; own.look() {
						_, err := e.Progress()
						require.NoError(b, err)
					}
				}
			})
			all := own.total
			for _, d := range theirs {
				all += d
			}
			b.ReportMetric(float64(own.total)/float64(all)*float64(n+1), "fair-shares")
		})
	}
}

// BenchmarkGivesWay shows how long another goroutine waits for the processor of a
// polling engine. The runtime takes it after 10 ms.
func BenchmarkGivesWay(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	e := newEngine(b, pe.Config{})
	var waits []time.Duration
	for b.Loop() {
		ran := make(chan time.Duration, 1)
		begin := time.Now()
		go func() { ran <- time.Since(begin) }()
		for len(ran) == 0 {
			_, err := e.Progress()
			require.NoError(b, err)
		}
		waits = append(waits, <-ran)
	}
	slices.Sort(waits)
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds()), "µs-median")
	b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds()), "µs-at-99%")
}

// BenchmarkPassAfterSleep shows in how many of a thousand cases an engine that has
// just slept loses the processor to another goroutine amid eight passes.
func BenchmarkPassAfterSleep(b *testing.B) {
	e := newEngine(b, pe.Config{})
	lost, passes := 0, 0
	beside(1, func() {
		for b.Loop() {
			time.Sleep(time.Millisecond)
			for range 8 {
				require.NoError(b, e.Do(func() {}))
				begin := time.Now()
				_, err := e.Progress()
				require.NoError(b, err)
				if passes++; time.Since(begin) > 5*time.Millisecond {
					lost++
				}
			}
		}
	})
	b.ReportMetric(1000*float64(lost)/float64(passes), "lost-of-1000")
}

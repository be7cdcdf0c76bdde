package sim

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Simulate runs a simulation in virtual time outside of a test, in programs that measure or
// explore. It returns what made the simulation fail, as the output of a test would have it: what
// f reported with s.Errorf, s.Fatal or package require, and the failures of hosts. In a
// program, -sim.log and -sim.pcap do not exist.
func Simulate(seed uint64, f func(s *Sim)) (err error) {
	return simulate(seed, f).err()
}

// Benchmark runs a simulation as [Simulate] does, once for each iteration of b, with the seeds from 1 on. It
// runs as many seeds at a time as [Check], and reports seeds/s and events/s; compare with go test -bench Seeds -cpu 1,2.
func Benchmark(b *testing.B, f func(s *Sim)) {
	var seed, events atomic.Uint64
	counted := func(s *Sim) {
		defer func() { events.Add(s.Events()) }()
		f(s)
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			n := seed.Add(1)
			if err := Simulate(n, counted); err != nil {
				b.Errorf("seed %d: %v", n, err)
			}
		}
	})
	b.ReportMetric(float64(events.Load())/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "seeds/s")
}

// simulate is Simulate.
func simulate(seed uint64, f func(s *Sim)) *outcome {
	o := &outcome{}
	ended := make(chan struct{})
	go func() { // FailNow ends this goroutine
		defer close(ended)
		left := inBubbleOf(new(testing.T), func(t *testing.T) {
			o.TB = t
			defer func() {
				if p := recover(); p != nil {
					o.Errorf("sim: panic, seed %d: %v\n%s", seed, p, debug.Stack())
				}
			}()
			f(New(o, seed))
		})
		reportLeft(o, seed, left)
	}()
	<-ended
	return o
}

// outcome is the test of a simulation that no test runs. It keeps the failures that a test
// would print. Of the [testing.T] it uses only the bubble, the cleanups and the way to end.
type outcome struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	failed   bool
}

func (o *outcome) err() error {
	switch {
	case len(o.failures) > 0:
		return errors.New(strings.Join(o.failures, "\n"))
	case o.failed:
		return errors.New("sim: the simulation failed without saying why")
	}
	return nil
}

// Error implements testing.TB.
func (o *outcome) Error(args ...any) { o.fail(fmt.Sprintln(args...)) }

// Errorf implements testing.TB.
func (o *outcome) Errorf(format string, args ...any) { o.fail(fmt.Sprintf(format, args...)) }

func (o *outcome) fail(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = true
	o.failures = append(o.failures, strings.TrimSpace(text))
}

// Fatal implements testing.TB.
func (o *outcome) Fatal(args ...any) {
	o.Error(args...)
	o.FailNow()
}

// Fatalf implements testing.TB.
func (o *outcome) Fatalf(format string, args ...any) {
	o.Errorf(format, args...)
	o.FailNow()
}

// Fail implements testing.TB.
func (o *outcome) Fail() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = true
}

// FailNow implements testing.TB.
func (o *outcome) FailNow() {
	o.Fail()
	o.TB.SkipNow()
}

// Failed implements testing.TB.
func (o *outcome) Failed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// Log implements testing.TB.
func (o *outcome) Log(...any) {}

// Logf implements testing.TB.
func (o *outcome) Logf(string, ...any) {}

// Name implements testing.TB.
func (o *outcome) Name() string { return "simulation" }

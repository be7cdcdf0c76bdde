package syncevent

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

func BenchmarkSet(b *testing.B) {
	e := open(b, nil, Config{})
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Set(1); err != nil {
			b.Fatal(err)
		}
	}
}

// Somebody sleeps, and goes on sleeping.
func BenchmarkSetBesideSleepers(b *testing.B) {
	e := open(b, nil, Config{})
	w := e.startWaiter(Equal(2))
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Set(1); err != nil {
			b.Fatal(err)
		}
	}
	e.cancelWaiter(w)
}

func BenchmarkGet(b *testing.B) {
	e := open(b, nil, Config{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Get(); err != nil {
			b.Fatal(err)
		}
	}
}

// waits are the ways to wait that are measured: as programs do, which is mostly
// spinning here, and asleep from the start.
var waits = map[string]func(*Event, uint64) error{
	"spinning": func(e *Event, v uint64) error { _, err := e.Wait(context.Background(), Equal(v)); return err },
	"asleep": func(e *Event, v uint64) error {
		_, err := e.sleep(context.Background(), Equal(v))
		return err
	},
}

// BenchmarkWakeLocal is the time from Set to the end of a wait in another
// goroutine: half a round trip. "rested" is that of a waiter whose processor has
// gone to sleep too.
func BenchmarkWakeLocal(b *testing.B) {
	for name, wait := range waits {
		b.Run(name, func(b *testing.B) {
			e := open(b, nil, Config{})
			b.ReportAllocs()
			pass(b, wait, [2]*Event{e, e}, [2]func(uint64) error{e.Set, e.Set})
		})
	}
	b.Run("rested", func(b *testing.B) {
		e := open(b, nil, Config{})
		rested(b, e, e.Set)
	})
}

// BenchmarkWakeRemote is the time from the posting of a peer's write to the end
// of a wait: half a round trip, between two software devices on the loopback
// interface. "polled" is a device that does not report the write.
func BenchmarkWakeRemote(b *testing.B) {
	for name, wait := range waits {
		b.Run(name, func(b *testing.B) {
			x, y := newPeers(b)
			atX := open(b, x.dev, Config{Publishers: PublishRemote})
			atY := open(b, y.dev, Config{Publishers: PublishRemote})
			seenByX, seenByY := imported(b, x, atY), imported(b, y, atX)
			b.ReportAllocs()
			pass(b, wait, [2]*Event{atX, atY}, [2]func(uint64) error{
				func(v uint64) error { x.write(seenByX, v); return nil },
				func(v uint64) error { y.write(seenByY, v); return nil },
			})
		})
	}
	for name, reported := range map[string]bool{"rested": true, "polled": false} {
		b.Run(name, func(b *testing.B) {
			x, y := newPeers(b)
			var dev verbs.Device = y.dev
			if !reported {
				dev = newAdapter(y.dev)
			}
			e := open(b, dev, Config{Publishers: PublishRemote})
			r := imported(b, x, e)
			rested(b, e, func(v uint64) error { x.write(r, v); return nil })
		})
	}
}

// pass has two sides alternate, b.N steps in all: each waits at its own event and sets
// the other's.
func pass(b *testing.B, wait func(*Event, uint64) error, at [2]*Event, set [2]func(uint64) error) {
	var wg sync.WaitGroup
	b.ResetTimer()
	for side := range 2 {
		wg.Go(func() {
			for i := side; i < b.N; i += 2 {
				if i > 0 {
					if err := wait(at[side], uint64(i)); err != nil {
						b.Error(err)
					}
				}
				if err := set[side](uint64(i + 1)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// rested measures single wake-ups of a waiter that has slept for 2 ms.
func rested(b *testing.B, e *Event, set func(uint64) error) {
	woken := make(chan time.Time)
	go func() {
		for i := range uint64(b.N) {
			if _, err := e.Wait(context.Background(), Equal(i+1)); err != nil {
				b.Error(err)
			}
			woken <- time.Now()
		}
	}()
	var total time.Duration
	for i := range uint64(b.N) {
		time.Sleep(2 * time.Millisecond)
		start := time.Now()
		if err := set(i + 1); err != nil {
			b.Error(err)
		}
		total += (<-woken).Sub(start)
	}
	b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "ns/op")
}

// BenchmarkWaitTask is a wait from its submission to its callback, set meanwhile.
func BenchmarkWaitTask(b *testing.B) {
	e := open(b, nil, Config{})
	engine := pe.New(pe.Config{})
	c := must(NewContext(ContextConfig{}))
	done := false
	pool := must(c.Pool(1, func(*Task) { done = true }, func(*Task, error) {}))
	require.NoError(b, engine.Connect(c))
	require.NoError(b, c.Start())
	w := must(pool.Wait(e, Greater(0)))
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		if err := w.SetCondition(Greater(i)); err != nil {
			b.Fatal(err)
		}
		if err := w.Submit(); err != nil {
			b.Fatal(err)
		}
		e.set(i + 1)
		for done = false; !done; {
			if _, err := engine.Progress(); err != nil {
				b.Fatal(err)
			}
		}
	}
	require.NoError(b, w.Free())
	require.NoError(b, c.Stop())
	_, err := engine.Progress()
	require.NoError(b, err)
	require.NoError(b, engine.Close())
}

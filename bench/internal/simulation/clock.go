package simulation

import (
	"runtime"
	"time"
)

// stopwatch tells goroutines of a bubble the time of the system.
type stopwatch struct{ ask, answer chan time.Time }

func newStopwatch() *stopwatch {
	w := &stopwatch{ask: make(chan time.Time), answer: make(chan time.Time)}
	go func() {
		for range w.ask {
			w.answer <- time.Now()
		}
	}()
	return w
}

func (w *stopwatch) now() time.Time {
	w.ask <- time.Time{}
	return <-w.answer
}

func (w *stopwatch) stop() { close(w.ask) }

// heap returns the bytes of memory that are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first one only empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

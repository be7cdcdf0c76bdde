// Package profiling shows the work of the SDK in profiles and traces. Goroutines that it starts have
// pprof labels: the device, and verbena with what they do. The execution tracer has regions for
// callbacks, and for the passes of engines that run some.
package profiling

import (
	"context"
	"runtime/pprof"
	"runtime/trace"
)

// Label labels the calling goroutine, and those that it starts from now on. The labels that it has are
// lost, so only a goroutine of the SDK calls it. engine is the name of the engine that the goroutine
// drives; empty: none.
func Label(does, device, engine string) {
	labels := []string{"verbena", does, "device", device}
	if engine != "" {
		labels = append(labels, "engine", engine)
	}
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(labels...)))
}

// Tracing reports whether there is a trace. It costs one load.
func Tracing() bool { return trace.IsEnabled() }

// Region calls f in a region of the trace.
func Region(name string, f func()) { trace.WithRegion(context.Background(), name, f) }

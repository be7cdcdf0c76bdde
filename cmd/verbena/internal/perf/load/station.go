// Package load makes the operations that verbena perf measures, at both ends, as a program of
// package rdma does: contexts with pools of tasks, one on each engine.
package load

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config says how to make a Station.
type Config struct {
	Device   verbs.Device
	Port     int  // of the device; zero: 1
	GIDIndex *int // nil: the context chooses
	Plan     *plan.Plan
	Server   bool
	Timeout  time.Duration // for connections to become ready
	Foreign  bool          // the other end does not know this SDK
	Token    []byte        // of the client, where connections are made by connection manager
}

// Station is one end of a test: engines, their goroutines, and the connections on them.
type Station struct {
	cfg     Config
	plan    *plan.Plan
	workers []*worker
	ctx     context.Context // ends with that of Open, and when an engine fails
	cancel  context.CancelCauseFunc
}

// Open makes the engines, and an end of each connection.
func Open(ctx context.Context, cfg Config) (s *Station, err error) {
	s = &Station{cfg: cfg, plan: cfg.Plan}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	for i := range cfg.Plan.Engines {
		w, err := newWorker(s, i)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.workers = append(s.workers, w)
	}
	return s, nil
}

// Context ends when an engine has failed; its cause says why.
func (s *Station) Context() context.Context { return s.ctx }

// GID is the entry of the GID table that is used.
func (s *Station) GID() verbs.GIDEntry { return s.workers[0].rdma.GID() }

// drive drives all engines from now on.
func (s *Station) drive() {
	for _, w := range s.workers {
		w.drive()
	}
}

// each runs a function on the goroutine of each engine.
func (s *Station) each(f func(w *worker) error) error {
	for _, w := range s.workers {
		if err := w.do(s.ctx, func() error { return f(w) }); err != nil {
			return s.cause(err)
		}
	}
	return nil
}

// cause is why the engines have ended, if they have: it says more than what followed from it.
func (s *Station) cause(err error) error { return cmp.Or(context.Cause(s.ctx), err) }

// WaitReady waits until all connections are.
func (s *Station) WaitReady() error {
	for _, w := range s.workers {
		select {
		case <-w.ready:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	return nil
}

// Prepare prepares a step: what comes from the peer may come from then on.
func (s *Station) Prepare(step int) error {
	_, size := s.plan.Step(step)
	return s.each(func(w *worker) error { return w.prepare(step, size) })
}

// Measure measures a step on all engines at once, which has to be prepared.
func (s *Station) Measure() ([]*Sample, error) {
	results := make(chan *Sample, len(s.workers))
	err := s.each(func(w *worker) error {
		w.load.begin(func(r *Sample) { results <- r })
		return nil
	})
	if err != nil {
		return nil, err
	}
	var list []*Sample
	for range s.workers {
		select {
		case r := <-results:
			list = append(list, r)
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
	return list, nil
}

// Settle waits until no request of this end is under way.
func (s *Station) Settle() error {
	for _, w := range s.workers {
		quiet := make(chan struct{})
		if err := w.do(s.ctx, func() error { w.whenQuiet(func() { close(quiet) }); return nil }); err != nil {
			return s.cause(err)
		}
		select {
		case <-quiet:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	return nil
}

// Verified checks what the peer has written, which is done, and returns how many pieces of
// data were verified in this step, and what was wrong with the first that differed.
func (s *Station) Verified() (checked int64, damage string, err error) {
	err = s.each(func(w *worker) error {
		w.checkWritten()
		checked += w.checks.checked
		damage = cmp.Or(damage, w.checks.damage)
		return nil
	})
	return checked, damage, err
}

// Leave has connections that end be no failure from now on.
func (s *Station) Leave() {
	for _, w := range s.workers {
		w.leaving.Store(true)
	}
}

// Close ends the engines, and gives back what they have.
func (s *Station) Close() error {
	s.Leave()
	var errs []error
	for _, w := range s.workers {
		errs = append(errs, w.close())
	}
	s.cancel(nil)
	return errors.Join(errs...)
}

// Path is what is known of a connection.
type Path struct {
	Local, Peer netip.AddrPort
	QPN         uint32
	MTU         verbs.MTU
	Inline      int // bytes up to which data go with their work request
	Way         verbs.Path
}

// Path is that of the first connection.
func (s *Station) Path() (p Path, err error) {
	w := s.workers[0]
	err = w.do(s.ctx, func() error {
		c := w.flows[0].conn
		p = Path{c.LocalAddr(), c.PeerAddr(), c.QPN(), c.MTU(), max(w.rdma.Config().MaxInline, 0), c.Path()}
		return nil
	})
	return p, s.cause(err)
}

// Figures sums up what engines have measured at the same time.
type Figures struct {
	Operations int64
	Elapsed    time.Duration // from the first beginning to the last end
	Rate       float64       // operations a second: the sum of the engines' rates
	Peak       float64
	Busy       float64 // processors that the process used, on average
	Latency    *Latency
}

// With adds what the other end has done meanwhile.
func (f Figures) With(operations int64, rate, peak float64) Figures {
	f.Operations, f.Rate, f.Peak = f.Operations+operations, f.Rate+rate, f.Peak+peak
	return f
}

// Sum sums up.
func Sum(list []*Sample) (f Figures) {
	first, last := list[0], list[0]
	for _, s := range list {
		f.Operations += s.Operations
		f.Rate += s.Rate()
		f.Peak += s.Peak
		if s.From.Before(first.From) {
			first = s
		}
		if s.To.After(last.To) {
			last = s
		}
		if s.Latency != nil {
			f.Latency = s.Latency // such a test has one engine
		}
	}
	if f.Elapsed = last.To.Sub(first.From); f.Elapsed > 0 {
		f.Busy = (last.toCPU - first.fromCPU).Seconds() / f.Elapsed.Seconds()
	}
	return f
}

// Stopwatch measures how busy the process is.
type Stopwatch struct {
	at  time.Time
	cpu time.Duration
}

// StartStopwatch starts one.
func StartStopwatch() Stopwatch { return Stopwatch{time.Now(), machine.CPUTime()} }

// Busy is how many processors were used since then, on average.
func (w Stopwatch) Busy() float64 {
	if d := time.Since(w.at); d > 0 {
		return (machine.CPUTime() - w.cpu).Seconds() / d.Seconds()
	}
	return 0
}

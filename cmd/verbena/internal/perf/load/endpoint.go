// Package load runs the operations that verbena perf measures, at both ends. It uses package
// rdma as any program would: each engine has a context with pools of tasks.
package load

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config configures an Endpoint.
type Config struct {
	Device   verbs.Device
	More     []verbs.Device // for batches
	Port     int            // of the device; zero: 1
	GIDIndex *int           // nil: the context chooses
	Local    netip.Addr     // of the device, as the peer reaches it, if that is known
	Plan     *plan.Plan
	Server   bool
	Timeout  time.Duration // for connections to become Ready
	Perftest bool          // the other end does not use this SDK
	Token    []byte        // the client's, if the connection manager makes the connections
}

// End is one end of a test. The methods are those of Endpoint.
type End interface {
	Context() context.Context
	GID() verbs.GIDEntry
	Offer(send func(*control.End) error) error
	Connect(receive func() (*control.End, error), dial DialTo) error
	WaitReady() error
	Path() (Path, error)
	Prepare(step int) error
	Measure() ([]*Sample, error)
	Verified() (checked int64, damage string, err error)
	ExpectClose()
	Close() error
}

// OpenEnd opens an end of any test.
func OpenEnd(ctx context.Context, cfg Config) (End, error) {
	if cfg.Plan.Test.Kind == plan.Batches {
		return openAgents(ctx, cfg)
	}
	return Open(ctx, cfg)
}

// Endpoint is one end of a test of package rdma: engines, their goroutines, and the connections on them.
type Endpoint struct {
	cfg     Config
	plan    *plan.Plan
	workers []*worker
	ctx     context.Context // ends with the context of Open, or when an engine fails
	cancel  context.CancelCauseFunc
}

// Open makes the engines, and this end of each connection.
func Open(ctx context.Context, cfg Config) (s *Endpoint, err error) {
	s = &Endpoint{cfg: cfg, plan: cfg.Plan}
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
func (s *Endpoint) Context() context.Context { return s.ctx }

// GID is the entry of the GID table that the connections use.
func (s *Endpoint) GID() verbs.GIDEntry { return s.workers[0].rdma.GID() }

// drive starts a goroutine for each engine, which drives it.
func (s *Endpoint) drive() {
	for _, w := range s.workers {
		w.drive()
	}
}

// each runs a function on the goroutine of each engine.
func (s *Endpoint) each(f func(w *worker) error) error {
	for _, w := range s.workers {
		if err := w.do(s.ctx, func() error { return f(w) }); err != nil {
			return s.cause(err)
		}
	}
	return nil
}

// cause returns the first error, which explains the later ones: why the engines have ended or, if they
// have not, err.
func (s *Endpoint) cause(err error) error { return cmp.Or(context.Cause(s.ctx), err) }

// WaitReady waits until all connections are Ready.
func (s *Endpoint) WaitReady() error {
	for _, w := range s.workers {
		select {
		case <-w.ready:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	return nil
}

// Prepare prepares a step. From then on, the peer may send and write.
func (s *Endpoint) Prepare(step int) error {
	_, size := s.plan.Step(step)
	return s.each(func(w *worker) error { return w.prepare(step, size) })
}

// Measure measures a prepared step on all engines at once.
func (s *Endpoint) Measure() ([]*Sample, error) {
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

// settle waits until no request of this end is in flight.
func (s *Endpoint) settle() error {
	for _, w := range s.workers {
		idle := make(chan struct{})
		if err := w.do(s.ctx, func() error { w.whenIdle(func() { close(idle) }); return nil }); err != nil {
			return s.cause(err)
		}
		select {
		case <-idle:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	return nil
}

// Verified waits until no request of this end is in flight, and checks the data that the peer has written, once the
// peer is done. It returns the number of pieces verified in this step. If one differed, damage describes the first.
func (s *Endpoint) Verified() (checked int64, damage string, err error) {
	if err = s.settle(); err != nil {
		return 0, "", err
	}
	err = s.each(func(w *worker) error {
		w.checkWritten()
		checked += w.checks.checked
		damage = cmp.Or(damage, w.checks.damage)
		return nil
	})
	return checked, damage, err
}

// ExpectClose makes the end of a connection no failure from now on.
func (s *Endpoint) ExpectClose() {
	for _, w := range s.workers {
		w.closing.Store(true)
	}
}

// Close stops the engines, and frees their resources.
func (s *Endpoint) Close() error {
	s.ExpectClose()
	var errs []error
	for _, w := range s.workers {
		errs = append(errs, w.close())
	}
	s.cancel(nil)
	return errors.Join(errs...)
}

// Path describes a connection.
type Path struct {
	Local, Peer netip.AddrPort
	QPN         uint32
	MTU         verbs.MTU
	Inline      int // most bytes of data that travel inline in a work request
	Way         string
}

// Path describes the first connection.
func (s *Endpoint) Path() (p Path, err error) {
	w := s.workers[0]
	err = w.do(s.ctx, func() error {
		c := w.flows[0].conn
		p = Path{c.LocalAddr(), c.PeerAddr(), c.QPN(), c.MTU(), w.rdma.MaxInline(), c.Counters().Path.String()}
		return nil
	})
	return p, s.cause(err)
}

// Figures sums up what several engines measured at the same time.
type Figures struct {
	Operations int64
	Elapsed    time.Duration // from the first beginning to the last end
	Rate       float64       // operations a second: the sum of the engines' rates
	Peak       float64
	Busy       float64 // processors that the process used, on average
	Latency    *Latency
}

// With adds what the other end did in the same time.
func (f Figures) With(operations int64, rate, peak float64) Figures {
	f.Operations, f.Rate, f.Peak = f.Operations+operations, f.Rate+rate, f.Peak+peak
	return f
}

// Sum sums up the samples of all engines.
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
			f.Latency = s.Latency // where it is measured there is one engine
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

// StartStopwatch starts a Stopwatch.
func StartStopwatch() Stopwatch { return Stopwatch{time.Now(), processor.Time()} }

// Busy is how many processors the process has used since the start, on average.
func (w Stopwatch) Busy() float64 {
	if d := time.Since(w.at); d > 0 {
		return (processor.Time() - w.cpu).Seconds() / d.Seconds()
	}
	return 0
}

package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// worker is one engine with its context, and the goroutine that drives it. Fields belong to
// that goroutine unless they are atomic, a channel, or set before drive.
type worker struct {
	slots
	endpoint *Endpoint

	engine *pe.Engine
	rdma   *rdma.Connections
	local  *mmap.Map
	remote *mmap.Map // nil: the test does not use the peer's memory
	// remoteOut and remoteIn are where the peer's memory begins in the layout, if the peer has
	// only a part of it.
	remoteOut, remoteIn int
	alloc               allocFunc // nil: this end submits nothing
	receives            *rdma.ReceivePool
	flows               []*flow

	connected int
	ready     chan struct{} // closed when all connections are Ready
	closing   atomic.Bool   // connections that end now end on purpose
	quit      atomic.Bool   // the goroutine must end
	cancel    context.CancelFunc
	ended     chan struct{} // closed when the goroutine has ended; nil: it has not started

	load       load
	pollMemory func() // polls memory between passes of an engine that polls; nil: not needed
	inFlight   int64  // requests
	onIdle     func() // called when none is in flight any more
	failed     bool   // a task has failed, so that not all have completed
}

// load is the work of one step.
type load interface {
	// begin starts the step at an end that measures. deliver is called with the measurement
	// when nothing is in flight any more.
	begin(deliver func(*Sample))
	// completed is called when a request of a flow has completed.
	completed(f *flow)
	// arrived is called when a message has arrived.
	arrived()
}

// idleLoad is the load of an end that submits nothing of its own.
type idleLoad struct{}

func (idleLoad) begin(func(*Sample)) {}
func (idleLoad) completed(*flow)     {}
func (idleLoad) arrived()            {}

func newWorker(s *Endpoint, index int) (w *worker, err error) {
	p := s.plan
	w = &worker{endpoint: s, slots: slots{plan: p, server: s.cfg.Server, index: index, layout: p.Layout(index)},
		ready: make(chan struct{}), load: idleLoad{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	var spin pe.Config
	if p.Events {
		spin.Spin = cmp.Or(p.Spin, -1)
	}
	w.engine = pe.New(spin)
	n := p.ConnectionsOf(index)
	cfg := rdma.Config{
		Name: fmt.Sprintf("perf engine %d", index), Engine: w.engine, MaxConnections: n,
		Permissions: mmap.RemoteRead | mmap.RemoteAtomic,
		Path:        rdma.PathConfig{GIDIndex: s.cfg.GIDIndex, Port: s.cfg.Port, MTU: verbs.MTU(p.MTU), SL: uint8(p.SL), TrafficClass: uint8(p.TrafficClass)}, AckTimeout: p.AckTimeout,
		ConnectTimeout: s.cfg.Timeout,
	}
	if s.cfg.Perftest {
		cfg.Keepalive = rdma.None // a program of perftest counts what arrives
	}
	if p.Active(w.server) {
		cfg.SendQueueSize = p.Depth
		if cfg.MaxSGE, err = inlineSGE(s.cfg.Device, p.Inline); err != nil {
			return w, err
		}
	}
	if w.rdma, err = rdma.New(s.cfg.Device, cfg); err != nil {
		return w, err
	}
	size := int(w.layout.Size())
	if s.cfg.Perftest {
		size += perftestSlack
	}
	if w.local, err = mmap.Alloc(s.cfg.Device, size, mmap.LocalReadWrite|rights(p.Test.Op)); err != nil {
		return w, err
	}
	w.mem = w.local.Bytes()
	if p.Active(w.server) {
		if err = w.makePool(n * p.Depth); err != nil {
			return w, err
		}
	}
	if p.TakesMessages(w.server) {
		if w.receives, err = w.rdma.ReceivePool(p.RecvDepth, w.received, func(_ *rdma.ReceiveTask, err error) { w.taskFailed(err) }); err != nil {
			return w, err
		}
	}
	w.rdma.OnConnection(w.connectionChanged)
	for i := range n {
		w.flows = append(w.flows, &flow{w: w, index: i})
	}
	if err = w.rdma.Start(); err != nil {
		return w, err
	}
	return w, w.postReceives()
}

// inlineSGE returns the MaxSGE of a context that sends data of so many bytes inline: the room for
// inline data is that of the scatter-gather entries, of 16 bytes each, and of at least four. Zero is
// the default.
func inlineSGE(dev verbs.Device, inline int) (int, error) {
	if inline == 0 {
		return 0, nil
	}
	attr, err := dev.Query()
	if err != nil {
		return 0, fmt.Errorf("query %s: %w", dev.Name(), err)
	}
	if most := min(attr.MaxInline, 16*max(attr.MaxSGE, 4)); inline > most {
		return 0, fmt.Errorf("-I is %d; %s sends at most %d bytes inline", inline, dev.Name(), most)
	}
	if inline <= 64 {
		return 0, nil
	}
	return (inline + 15) / 16, nil
}

// rights returns what the peer may do with the memory.
func rights(op plan.Op) mmap.Permission {
	switch {
	case op.Atomic():
		return mmap.RemoteAtomic
	case op == plan.Read:
		return mmap.RemoteRead
	case op == plan.Send:
		return 0
	}
	return mmap.RemoteWrite
}

// connectionChanged handles the changes of state of connections.
func (w *worker) connectionChanged(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	switch state {
	case rdma.Ready:
		if w.connected++; w.connected == len(w.flows) {
			close(w.ready)
		}
	case rdma.Failed, rdma.Closed:
		if !w.closing.Load() {
			w.rdma.Fail(cmp.Or(err, fmt.Errorf("%v was closed", conn)))
		}
	}
}

// taskFailed handles the failure of a task.
func (w *worker) taskFailed(err error) {
	w.failed = true
	if !w.closing.Load() {
		w.rdma.Fail(err)
	}
}

// drive starts the goroutine that drives the engine until close.
func (w *worker) drive() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.ended = cancel, make(chan struct{})
	go func() {
		defer close(w.ended)
		var err error
		if w.plan.Polls(w.server) {
			err = w.poll()
		} else {
			err = w.engine.Run(ctx)
		}
		if !w.closing.Load() {
			w.endpoint.cancel(cmp.Or(err, errStopped))
		}
	}()
}

var errStopped = errors.New("the RDMA context has stopped")

// poll drives the engine without sleeping.
func (w *worker) poll() error {
	for !w.quit.Load() {
		if _, err := w.engine.Progress(); err != nil {
			return err
		}
		if w.pollMemory != nil {
			w.pollMemory()
		}
		if s := w.rdma.State(); s == pe.Stopping || s == pe.Idle {
			return w.rdma.Err()
		}
	}
	return nil
}

// do runs a function on the goroutine that drives the engine.
func (w *worker) do(ctx context.Context, f func() error) error { return await.Func(ctx, w.engine, f) }

// prepare prepares a step. Nothing may be in flight.
func (w *worker) prepare(step, size int) error {
	w.step, w.size, w.pollMemory = step, size, nil
	w.checks = checks{}
	if err := w.freeTasks(); err != nil {
		return err
	}
	w.fill()
	if w.alloc == nil {
		w.load = idleLoad{}
		return nil
	}
	for _, f := range w.flows {
		if err := f.prepare(); err != nil {
			return err
		}
	}
	switch {
	case w.plan.Test.Kind == plan.Bandwidth:
		w.load = newStream(w)
	case w.plan.Test.Op == plan.Write:
		b := newWritePingLoad(w)
		w.load, w.pollMemory = b, b.pollMemory
	case w.plan.Test.EachWay():
		w.load = newPingLoad(w)
	default:
		w.load = newRequestLoad(w)
	}
	return nil
}

func (w *worker) freeTasks() (err error) {
	for _, f := range w.flows {
		err = errors.Join(err, rdma.FreeAll(f.tasks))
		f.tasks = f.tasks[:0]
	}
	return err
}

// done is called for each request that has completed.
func (w *worker) done(t *rdma.Task) {
	f := t.UserData().(*flow)
	if w.plan.Verify {
		w.checkTask(f, t)
	}
	f.completed++
	w.inFlight--
	w.load.completed(f)
	if w.inFlight == 0 && w.onIdle != nil {
		onIdle := w.onIdle
		w.onIdle = nil
		onIdle()
	}
}

// whenIdle calls f when no request is in flight.
func (w *worker) whenIdle(f func()) {
	if w.inFlight == 0 {
		f()
		return
	}
	w.onIdle = f
}

// submit posts the next task of a flow.
func (w *worker) submit(t *rdma.Task, flags pe.SubmitFlags) bool {
	w.inFlight++
	if err := t.Submit(flags); err != nil {
		w.inFlight--
		w.taskFailed(err)
		return false
	}
	return true
}

// close ends the goroutine, then closes everything.
func (w *worker) close() error {
	w.closing.Store(true)
	var errs []error
	if w.ended != nil {
		w.quit.Store(true)
		w.cancel()
		<-w.ended
	}
	if w.rdma != nil {
		errs = append(errs, w.rdma.Close())
	}
	for _, m := range []*mmap.Map{w.local, w.remote} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if w.engine != nil {
		errs = append(errs, w.engine.Close())
	}
	return errors.Join(errs...)
}

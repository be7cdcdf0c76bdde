package pe

import (
	"fmt"
	"runtime/trace"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/spin"
)

// Config configures an Engine. The zero value is usable.
type Config struct {
	// Spin is how long Run keeps polling after the last event before it sleeps. Zero: for
	// 50 µs while recent events came soon after Run had gone idle, and otherwise not at
	// all, nor on a single processor. Negative: it sleeps at once.
	Spin time.Duration
	// Log receives what the engine and its contexts report: changes of contexts and connections
	// (debug) and of ports (info), failures, and contexts that wait for tasks that were not freed
	// (warn). The zero value is silent.
	Log zerolog.Logger
}

// Engine is a progress engine: it drives contexts through their states and runs all callbacks. It
// belongs to one goroutine at a time, which calls Progress or Run. While Run sleeps, it belongs to a
// goroutine whose function Dispatch runs, or that is in DriveUntil. Only Do, Dispatch, DriveUntil and
// Done may be called from any goroutine at any time.
type Engine struct {
	log  zerolog.Logger
	spin spin.Spin // decides how long Run polls before it sleeps

	driver   atomic.Uintptr // ID of the goroutine inside Progress, Run, Arm, Close or Dispatch, or 0
	closing  atomic.Bool    // Do and Start are refused
	closed   atomic.Bool
	draining bool // Run or Close stops all contexts

	keepsErrors bool    // Run is to return errors of contexts
	failed      []error // of contexts that were started again or closed
	moreFailed  int     // errors beyond maxKeptErrors

	contexts []*Core // replaced as a whole, so that passes may iterate over it
	active   int     // contexts that are not Idle
	changes  fifo.Queue[change]
	pools    fifo.Queue[*pool] // whose waiters are to be called

	turns        atomic.Pointer[turns] // nil: no context has had a simulated device
	calls        calls
	substitution substitution
	runs         runs
	notifier     notifier
	handover     handover
	region       *trace.Region // of the trace, for this pass; nil: none has begun
	slice        timeslice
	attached     attachment
}

// change is a change of state that has not been reported yet.
type change struct {
	core       *Core
	prev, next State
}

// New makes an engine. It cannot fail, since every Config is valid. It takes no resources of
// the operating system until NotificationFD or Arm is called.
func New(cfg Config) *Engine {
	e := &Engine{log: cfg.Log, spin: spin.Fixed(cfg.Spin)}
	if cfg.Spin == 0 {
		e.spin = spin.New(spin.Default)
	}
	e.slice.epoch = time.Now()
	e.notifier.init()
	e.substitution.ended, e.handover.moved = make(chan struct{}, 1), make(chan struct{}, 1)
	return e
}

// String says that it is an engine. It may be called from any goroutine.
func (e *Engine) String() string { return fmt.Sprintf("engine %p", e) }

// Connect puts a context on the engine until the context or the engine is closed. The context
// must be Idle and on no engine (ErrInUse). Contexts with simulated devices need an engine
// without others (ErrInvalid). It is legal in callbacks.
func (e *Engine) Connect(c Context) error {
	core := coreOf(c)
	if core == nil {
		return fmt.Errorf("pe: cannot connect the context: it is nil: %w", ErrInvalid)
	}
	if e.closing.Load() {
		return fmt.Errorf("pe: cannot connect %s: the engine is closed: %w", core.object(), ErrClosed)
	}
	if err := e.owned("connect " + core.object()); err != nil {
		return err
	}
	if core.closed {
		return fmt.Errorf("pe: cannot connect %s: %w", core.object(), ErrClosed)
	}
	if err := core.require("connect", Idle); err != nil {
		return err
	}
	if err := e.checkHost(core); err != nil {
		return err
	}
	if !core.engine.CompareAndSwap(nil, e) {
		return fmt.Errorf("pe: cannot connect %s: it is already connected to an engine: %w", core.object(), ErrInUse)
	}
	core.log.Store(new(e.log.With().Str("context", core.name).Logger()))
	e.contexts = append(slices.Clip(e.contexts), core)
	if !e.joinHost() {
		e.leaveHost()
	}
	return nil
}

// coreOf returns nil for a nil pointer to a type that embeds *Core, which a caller has after
// ignoring an error.
func coreOf(c Context) (core *Core) {
	if c == nil {
		return nil
	}
	defer func() {
		if recover() != nil {
			core = nil
		}
	}()
	return c.core()
}

func (e *Engine) detach(c *Core) {
	e.keepError(c)
	e.contexts = slices.DeleteFunc(slices.Clone(e.contexts), func(o *Core) bool { return o == c })
	c.engine.Store(nil)
	e.joinHost() // the context can have been the last one of its host
}

// Progress does all pending work without blocking, and returns the number of events it
// handled: completed tasks, changes of state reported, functions given to Do, and other events
// of the contexts. All callbacks run inside it. Every context does a bounded amount of work,
// so that none starves the others; a result above zero means that there may be more to do. A
// polling loop need not yield: the engine calls runtime.Gosched from time to time, and keeps
// its share of a contended processor.
//
// It fails only on misuse: inside a callback (ErrReentrant), while another goroutine drives
// the engine (ErrBusy), after Close (ErrClosed). If a callback panics, the panic passes
// through, and the engine remains usable.
func (e *Engine) Progress() (int, error) {
	n, err := e.progress()
	if t := e.turns.Load(); t != nil && n == 0 && err == nil {
		t.Idle() // a loop that polls would not end otherwise: simulated time stands still meanwhile
	}
	return n, err
}

func (e *Engine) progress() (int, error) {
	if err := e.acquire("call Progress"); err != nil {
		return 0, err
	}
	defer e.release()
	n := e.pass()
	e.notifyOfRest()
	return n, nil
}

// pass does one round of all pending work.
func (e *Engine) pass() int {
	e.slice.beginPass()
	e.notifier.beginPass()
	n := e.deliver()
	n += e.runCalls()
	for _, c := range e.contexts {
		if c.State() != Idle {
			if e.draining {
				c.stop()
			}
			n += c.progress()
			n += e.deliver()
		}
	}
	if e.region != nil {
		e.endRegion()
	}
	e.slice.endPass(n)
	return n
}

// queueChange queues a change of state for its callback.
func (e *Engine) queueChange(ch change) {
	e.log.Debug().Str("context", ch.core.name).Stringer("from", ch.prev).Stringer("to", ch.next).Msg("state changed")
	e.changes.Push(ch)
	if !e.driven() {
		e.wake()
	}
}

// deliver runs the pending state callbacks and waiters. Work that they add is left to the next
// call, so that each call ends.
func (e *Engine) deliver() int {
	if e.changes.Len() == 0 && e.pools.Len() == 0 {
		return 0
	}
	return e.deliverQueued()
}

func (e *Engine) deliverQueued() int {
	n := e.changes.Len()
	for range n {
		ch := e.changes.Pop()
		ch.core.report(ch.prev, ch.next)
		if !e.keepsErrors && ch.core.unreported == 0 && ch.core.State() == Idle {
			ch.core.unreturned = false // it ended under Progress: Core.Err has the error
		}
	}
	for range e.pools.Len() {
		n += e.pools.Pop().callWaiters()
	}
	return n
}

// queued reports whether the engine itself has something to do.
func (e *Engine) queued() bool {
	return e.changes.Len() > 0 || e.pools.Len() > 0 || e.calls.pending()
}

// Active is the number of contexts on the engine that are not Idle. It belongs to
// the goroutine that drives the engine.
func (e *Engine) Active() int { return e.active }

// InFlight is the number of tasks in flight on all contexts of the engine. It
// belongs to the goroutine that drives the engine.
func (e *Engine) InFlight() int {
	n := 0
	for _, c := range e.contexts {
		n += c.inFlight
	}
	return n
}

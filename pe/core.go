package pe

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/rs/zerolog"
)

// Core is the part that all kinds of context have in common: the state, its callback, the
// counts of tasks. A kind of context embeds the *Core that backend.New made for it; all
// methods are for the users of the context.
//
// State, Name, String and Engine may be called from any goroutine. All other methods belong to
// the goroutine that drives the engine: call them in its callbacks, in functions given to
// Engine.Do or Engine.Dispatch, or between two calls of Progress. In programs built with the race
// detector, user data and functions of the context panic on another goroutine while the engine is
// driven.
type Core struct {
	name       string
	backend    backend
	sleeping   sleepingBackend // backend; nil: it is none
	engine     atomic.Pointer[Engine]
	log        atomic.Pointer[zerolog.Logger] // of the latest engine; nil: there was none
	state      atomic.Int32
	onChange   func(prev, next State)
	watchers   []*watcher // replaced as a whole
	unreported int        // changes of state whose callback has not been called
	userData   any
	attached   attachment

	err        error // the first one since Start
	unreturned bool  // Run has not returned err yet

	pools     []*pool
	inFlight  int
	allocated int // tasks out of the pools, those in flight included

	stopWhenDone bool // StopWhenDone was called, and tasks are allocated

	inBackend bool // a method of the backend is running
	taskEnded bool // a callback of a task may have run since the last yield
	starting  bool // that method is Start
	started   bool // Started was called inside Start
	stopDue   bool // Backend.Stop has not been called yet
	stopped   bool // Stopped was called: no work is left at the device
	warned    bool // the log says that it waits for tasks
	closing   bool // Close drives the engine
	closed    bool
}

func (c *Core) core() *Core { return c }

// Name is the name of the context in errors and logs.
func (c *Core) Name() string { return c.name }

// object names the context in errors.
func (c *Core) object() string { return "context " + strconv.Quote(c.Name()) }

// String names the context and its state. It may be called from any goroutine.
func (c *Core) String() string { return fmt.Sprintf("%s, %v", c.object(), c.State()) }

// State is the current state of the context. State callbacks run later, inside Progress, so
// State may be further on than the change that a callback reports.
func (c *Core) State() State { return State(c.state.Load()) }

// Engine is the engine that the context is connected to, or nil.
func (c *Core) Engine() *Engine { return c.engine.Load() }

// check is that of backend.Control.
func (c *Core) check(op string) {
	if checksGoroutine && c.drivenElsewhere() {
		panic(errDrivenElsewhere(op))
	}
}

// InFlight is the number of tasks submitted and not completed.
func (c *Core) InFlight() int { return c.inFlight }

// Allocated is the number of tasks taken from the context's pools and not freed,
// in flight or not. The context cannot leave Stopping while it is not zero.
func (c *Core) Allocated() int { return c.allocated }

// Err is the first error since the last Start: one with which the context failed by itself, or
// one given to Fail. It is nil if there was none.
func (c *Core) Err() error { return c.err }

// UserData returns what SetUserData stored last.
func (c *Core) UserData() any {
	c.check("read the user data of a context")
	return c.userData
}

// SetUserData stores a value for the user with the context.
func (c *Core) SetUserData(v any) {
	c.check("set the user data of a context")
	c.userData = v
}

// OnStateChange sets the function that is called for every change of state, in order. The
// engine calls it inside Progress, after the context has entered the new state, and never
// inside another callback. It replaces the previous function; nil sets none. It may be called
// in any state, and also applies to changes not reported yet.
func (c *Core) OnStateChange(f func(prev, next State)) {
	c.check("set the function for changes of state")
	c.onChange = f
}

// watcher is a function given to Watch.
type watcher struct {
	f    func(prev, next State)
	skip int // changes that were queued before Watch
}

// Watch adds a function that is called after that of OnStateChange, in the same way, for
// changes that come after the call of Watch, until stop is called. It is for packages that
// build on contexts; the function of OnStateChange is for the program.
func (c *Core) Watch(f func(prev, next State)) (stop func()) {
	if f == nil {
		return func() {}
	}
	c.check("watch the state of a context")
	w := &watcher{f, c.unreported}
	c.watchers = append(slices.Clip(c.watchers), w)
	return func() {
		w.f = func(State, State) {} // a running report may be about to call it
		c.watchers = slices.DeleteFunc(slices.Clone(c.watchers), func(o *watcher) bool { return o == w })
	}
}

// report calls the callbacks for a change of state.
func (c *Core) report(prev, next State) {
	c.unreported--
	e := c.engine.Load()
	defer e.callWatchers(c.watchers, prev, next) // also after a panic
	if f := c.onChange; f != nil {
		e.call(stateRegion, func() { f(prev, next) })
		e.yield()
	}
}

func (e *Engine) callWatchers(list []*watcher, prev, next State) {
	for _, w := range list {
		if w.skip > 0 {
			w.skip--
			continue
		}
		e.call(stateRegion, func() { w.f(prev, next) })
		e.yield()
	}
}

// Start takes the context from Idle to Running, or to Starting when starting takes time, as
// with a peer. Without an engine it fails with ErrNotConnected; if the backend cannot start,
// the context stays Idle. It clears Err.
func (c *Core) Start() error {
	if c.closed || c.closing {
		return fmt.Errorf("pe: cannot start %s: %w", c.object(), ErrClosed)
	}
	e := c.engine.Load()
	if e == nil {
		return fmt.Errorf("pe: cannot start %s: %w; connect it with Engine.Connect", c.object(), ErrNotConnected)
	}
	if err := e.owned("start " + c.object()); err != nil {
		return err
	}
	if err := c.require("start", Idle); err != nil {
		return err
	}
	if e.draining {
		return fmt.Errorf("pe: cannot start %s: %w; Run or Close is stopping all contexts", c.object(), ErrDraining)
	}
	if e.closing.Load() {
		return fmt.Errorf("pe: cannot start %s: its engine is being closed: %w", c.object(), ErrClosed)
	}

	e.keepError(c)
	c.err, c.unreturned = nil, false
	c.started, c.stopDue, c.stopped, c.warned, c.stopWhenDone = false, false, false, false, false
	c.inBackend, c.starting = true, true
	c.state.Store(int32(Starting))
	running, err := c.backend.Start()
	c.inBackend, c.starting = false, false
	if err != nil {
		c.state.Store(int32(Idle))
		c.err, c.unreturned = nil, false
		return fmt.Errorf("pe: cannot start %s: %w", c.object(), err)
	}
	e.active++
	if running || c.started {
		c.enter(Idle, Running)
	} else {
		c.enter(Idle, Starting)
	}
	if c.err != nil {
		c.enterStopping()
	}
	return nil
}

// Stop takes the context from Starting or Running to Stopping. Later calls of Progress return
// the tasks in flight through their error callbacks. When all tasks have been freed, the
// context becomes Idle. In Stopping and in Idle, Stop does nothing and succeeds. It is legal
// in every callback.
func (c *Core) Stop() error {
	e := c.Engine()
	if e == nil {
		return nil // such a context is Idle
	}
	if err := e.owned("stop " + c.object()); err != nil {
		return err
	}
	c.stop()
	return nil
}

func (c *Core) stop() {
	if s := c.State(); s == Starting && !c.starting || s == Running {
		c.enterStopping()
	}
}

// Fail ends the context with an error: Err keeps the first one since Start, and a context that
// is Starting or Running goes to Stopping. Engine.Run returns the error. A nil error does
// nothing, so the result of a call can be passed on unchecked.
//
// In Stopping and Idle, Fail also keeps the first error, unless it matches ErrFlushed: tasks
// that a stop has flushed are no failure. Fail belongs to the goroutine that drives the
// engine, like Stop. If another goroutine is driving it, Fail hands the error over with
// Engine.Do.
func (c *Core) Fail(err error) {
	if err == nil {
		return
	}
	if e := c.engine.Load(); e != nil && e.drivenElsewhere() {
		_ = e.Do(func() { c.fail(err) }) // a closed engine has no running context
		return
	}
	c.fail(err)
}

func (c *Core) fail(err error) {
	running := c.State() == Starting || c.State() == Running
	if err == nil || !running && errors.Is(err, ErrFlushed) {
		return
	}
	if c.err == nil {
		c.err, c.unreturned = err, true
	}
	if running && !c.starting { // Start handles the error itself
		c.enterStopping()
	}
}

// require is that of backend.Control.
func (c *Core) require(op string, legal ...State) error {
	s := c.State()
	for _, l := range legal {
		if s == l {
			return nil
		}
	}
	if c.closed {
		return fmt.Errorf("pe: cannot %s: %s: %w", op, c.object(), ErrClosed)
	}
	// The copy keeps the caller's list off the heap if there is no error.
	return &StateError{Op: op, Object: c.object(), State: s, Legal: append([]State(nil), legal...), Cause: c.cause(s)}
}

// cause returns the error that ended a context in the state s, or nil.
func (c *Core) cause(s State) error {
	if s == Starting || s == Running {
		return nil
	}
	return c.err
}

// drivenElsewhere reports whether another goroutine is driving the context's engine
// right now.
func (c *Core) drivenElsewhere() bool {
	e := c.engine.Load()
	return e != nil && e.drivenElsewhere()
}

// enter changes the state and queues the report.
func (c *Core) enter(prev, next State) {
	c.state.Store(int32(next))
	e := c.engine.Load()
	if next == Idle {
		e.active--
	}
	c.unreported++
	e.queueChange(change{c, prev, next})
}

// enterStopping takes the context from Starting or Running to Stopping.
func (c *Core) enterStopping() {
	c.stopDue = true
	c.enter(c.State(), Stopping)
	for _, p := range c.pools {
		p.schedule()
	}
	c.advance()
}

// advance takes the steps from Stopping to Idle that are due. It does nothing while a backend
// method is running: calls to a backend do not nest, and its resources stay until the method
// has returned.
func (c *Core) advance() {
	for !c.inBackend && c.State() == Stopping {
		switch {
		case c.stopDue:
			c.stopDue = false
			c.inBackend = true
			c.backend.Stop()
			c.inBackend = false
		case c.stopped && c.allocated == 0:
			c.inBackend = true
			c.backend.Idle()
			c.inBackend = false
			c.enter(Stopping, Idle)
		default:
			return
		}
	}
}

// progress calls the backend's Progress, and then takes the steps that have become due.
func (c *Core) progress() int {
	c.inBackend = true
	// Deferred, because callbacks may panic or call runtime.Goexit.
	defer c.leaveBackend()
	n := c.backend.Progress()
	if n > 0 {
		c.taskEnded = false
		c.engine.Load().yield()
	}
	return n
}

func (c *Core) leaveBackend() {
	c.inBackend = false
	if c.State() == Stopping {
		c.advance()
	}
}

// waitsForTasks reports whether only tasks that were not freed keep the context from becoming
// Idle.
func (c *Core) waitsForTasks() bool {
	return c.State() == Stopping && c.stopped && c.inFlight == 0 && c.allocated > 0
}

// reclaimTasks takes back the tasks that keep the context from becoming Idle.
func (c *Core) reclaimTasks() {
	for _, p := range c.pools {
		p.reclaim()
	}
	c.advance()
}

// Package traffic moves data between programs and checks every byte of it. An [End] is one
// program: a context with room for many links. A [Link] is a connection, or two SRD endpoints;
// at each end it has workers, which carry out one operation after the other and check the
// result. What they do is drawn from a seed. A [Pinger] does the same with UD.
//
// test/soak kills, stops and disturbs such programs for hours. The tests of this package do it in
// a simulation.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	workers    = 2 // of each link
	maxMessage = 8 << 10
	cellsSize  = 4 << 10 // two cells for the peer's atomics, the results of this end's, and Hello
	originalAt = 16
	helloAt    = 1 << 10
	receives   = 256
)

const allPermissions = mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic

// Config is the configuration of an End. The functions are called on the goroutine that drives the
// engine.
type Config struct {
	Name      string
	Device    verbs.Device
	Transport verbs.QPType
	Path      rdma.PathConfig
	Places    int        // links at the same time
	MaxData   int        // of an operation, in bytes
	Seed      uint64     // the same for all programs
	Rand      *rand.Rand // the operations of this end

	// Running is called when the context is Running.
	Running func()
	// Wrong is called with an error that must never happen.
	Wrong func(error)
	// Lost is called when a link has failed.
	Lost func(*Link, error)
	// Ended is called when a link has ended. It may be nil.
	Ended func(*Link)
	// Leaving reports whether a new link is to end at once. Nil: it is not.
	Leaving func() bool
	// Tamper, for tests, is called before each operation of a link, and with each piece that the
	// peer will check. It may be nil.
	Tamper func(l *Link, piece []byte)
}

// End is a program with a context on a device. It belongs to the goroutine that drives the
// engine. Other goroutines use Do and Ask.
//
// Its memory has first bytes that never change, which peers read; then an area for each link,
// with room for each of its workers.
type End struct {
	Config
	Engine *pe.Engine
	Ctx    rdma.Context
	// Connections or Datagrams is the same context as Ctx; the other is nil.
	Connections *rdma.Connections
	Datagrams   *rdma.Datagrams
	Mem         *mmap.Map
	Stats       Stats
	Links       map[*Link]bool

	fixedKey      uint64
	bufs          bufinv.Inventory
	tasks         *rdma.Pool         // of connections; nil with datagrams
	datagramTasks *rdma.DatagramPool // likewise
	areas         []int              // free
	paused        bool
	stopping      bool
	maxMessage    int
	pinger        *Pinger             // UD, client
	request       func(*rdma.Message) // UD: called with each message
}

// Open makes an end.
func Open(cfg Config) (_ *End, err error) {
	e := &End{Config: cfg, Links: map[*Link]bool{}, Engine: pe.New(pe.Config{}), fixedKey: pattern.Key(cfg.Seed, "fixed")}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open %s: %w", cfg.Name, errors.Join(err, e.Close()))
		}
	}()
	if cfg.Transport != verbs.RC {
		e.Datagrams, err = rdma.NewDatagrams(cfg.Device, rdma.DatagramsConfig{Name: cfg.Name, Transport: cfg.Transport, Engine: e.Engine, Path: cfg.Path})
		if err != nil {
			return nil, err
		}
		e.Ctx = e.Datagrams
	} else {
		e.Connections, err = rdma.New(cfg.Device, rdma.Config{
			Name: cfg.Name, Engine: e.Engine, Permissions: allPermissions, Path: cfg.Path, MaxConnections: cfg.Places,
		})
		if err != nil {
			return nil, err
		}
		e.Ctx = e.Connections
	}
	e.maxMessage = min(maxMessage, int(e.Ctx.Capabilities().MaxSend))
	if e.Mem, err = mmap.Alloc(cfg.Device, e.area(cfg.Places), allPermissions); err != nil {
		return nil, err
	}
	clear(e.Mem.Bytes()) // so that all of it is resident from the start
	pattern.Fill(e.Mem.Bytes()[:e.fixedSize()], e.fixedKey, 0)
	for i := range cfg.Places {
		e.areas = append(e.areas, cfg.Places-1-i)
	}
	if err := e.pools(); err != nil {
		return nil, err
	}
	if e.Connections != nil {
		e.Connections.OnConnection(e.connection)
	}
	e.Ctx.OnStateChange(e.state)
	return e, e.Ctx.Receive(receives, e.maxMessage, e.received)
}

// pools makes the pools of tasks: for the workers and, for each link, two tasks to begin and
// end, and one to confirm each piece of the peer's.
func (e *End) pools() (err error) {
	done := func(t *rdma.Task) { e.done(t, nil) }
	n := max(4*workers*e.Places+2*e.Places, pings)
	if e.Datagrams != nil {
		e.datagramTasks, err = e.Datagrams.Pool(n, done, e.done)
	} else {
		e.tasks, err = e.Connections.Pool(n, done, e.done)
	}
	return err
}

// The layout of the memory.
func (e *End) fixedSize() int     { return 2 * e.MaxData }
func (e *End) workerSize() int    { return 3*e.MaxData + maxMessage + cellsSize }
func (e *End) area(index int) int { return e.fixedSize() + index*workers*e.workerSize() }

// Run runs the end until it is stopped, or ctx ends.
func (e *End) Run(ctx context.Context) error {
	if err := e.Ctx.Start(); err != nil {
		return err
	}
	if err := e.Engine.Run(ctx); err != nil {
		return fmt.Errorf("run %s: %w", e.Name, err)
	}
	return nil
}

func (e *End) state(_, next pe.State) {
	switch {
	case next == pe.Running:
		e.Running()
	case next != pe.Starting && !e.stopping:
		e.Wrong(fmt.Errorf("the context %q is %v, although nobody stopped it; its error is: %v", e.Name, next, e.Ctx.Err()))
	}
}

// Do runs f on the engine's goroutine.
func (e *End) Do(f func()) { _ = e.Engine.Do(f) } // fails once everything is closed

// Ask runs f on the engine's goroutine, and waits for it.
func (e *End) Ask(f func()) {
	done := make(chan struct{})
	if e.Engine.Do(func() { defer close(done); f() }) == nil {
		<-done
	}
}

// Stop ends the work, and with it Run.
func (e *End) Stop() {
	e.Do(func() {
		e.stopping = true
		e.Ctx.Fail(e.Ctx.Stop())
	})
}

// Close closes everything but the device. Buffers that are still in use are an error.
func (e *End) Close() (err error) {
	if out := e.bufs.Total() - e.bufs.Available(); out != 0 {
		err = fmt.Errorf("%d buffers of %s are still in use at the end", out, e.Name)
	}
	if e.Ctx != nil {
		err = errors.Join(err, e.Ctx.Close())
	}
	for l := range e.Links { // of a program that has ended in the middle
		if l.owned {
			err = errors.Join(err, l.remote.Close())
		}
	}
	err = errors.Join(err, e.Engine.Close(), e.bufs.Close())
	if e.Mem != nil {
		err = errors.Join(err, e.Mem.Close())
	}
	return err
}

// connection is called with every change of a connection.
func (e *End) connection(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	l, ok := conn.UserData().(*Link)
	if !ok {
		return // the connection was closed before it had a link
	}
	switch state {
	case rdma.Ready:
		l.ready = true
		e.Stats.Connections++
		l.Hello()
		l.begin()
	case rdma.Failed:
		l.Fail(err)
		e.Check(conn.Close())
	case rdma.Closed:
		if err != nil {
			l.Fail(err)
		}
		if l.inFlight != 0 {
			e.Wrong(fmt.Errorf("%v was reported Closed, but %d of its tasks are still in flight", conn, l.inFlight))
		}
		l.closed = true
		l.check()
	}
}

// received handles a message.
func (e *End) received(m *rdma.Message) {
	if e.request != nil {
		e.request(m)
		return
	}
	var data any
	if conn := m.Connection(); conn != nil {
		data = conn.UserData()
	} else if peer := m.Peer(); peer != nil {
		data = peer.UserData()
	}
	if l, ok := data.(*Link); ok {
		l.received(m)
	} else if e.Datagrams == nil { // an endpoint may get messages of peers that it has forgotten
		e.Wrong(fmt.Errorf("received a %v from the unknown peer %v", m.Opcode(), m.Connection()))
	}
}

// done handles a task that has completed or failed.
func (e *End) done(t *rdma.Task, err error) {
	switch of := t.UserData().(type) {
	case *worker:
		of.done(t, err)
	case *Link:
		e.Check(t.Free())
		of.inFlight--
		if err != nil {
			of.Fail(err)
		}
		of.check()
	case *ping:
		of.done(t, err)
	default:
		e.Wrong(fmt.Errorf("a %v completed that belongs to a %T", t.Operation(), of))
	}
}

// Check calls Wrong with an error that is not nil.
func (e *End) Check(err error) {
	if err != nil {
		e.Wrong(err)
	}
}

// BuffersInUse is the number of buffers that were not returned.
func (e *End) BuffersInUse() int { return e.bufs.Total() - e.bufs.Available() }

// Quiet reports whether the end is idle: it has as many links as should stay, and all are at
// rest.
func (e *End) Quiet(links int) bool {
	if len(e.Links) != links || e.pinger != nil && e.pinger.busy() {
		return false
	}
	for l := range e.Links {
		if !l.isIdle() {
			return false
		}
	}
	return e.Datagrams != nil || len(e.Connections.List()) == links
}

// Pause stops all work until Resume.
func (e *End) Pause() { e.paused = true }

// Resume continues the work.
func (e *End) Resume() {
	e.paused = false
	for l := range e.Links {
		l.work()
	}
	if e.pinger != nil {
		e.pinger.work()
	}
}

// Leave ends all links, and the pinger: at once, or with the peers.
func (e *End) Leave(atOnce bool) {
	for l := range e.Links {
		if atOnce {
			l.Abandon()
		} else {
			l.Finish()
		}
	}
	if e.pinger != nil {
		e.pinger.Finish()
	}
}

// after runs f on the engine's goroutine.
func (e *End) after(d time.Duration, f func()) {
	host.Of(e.Device).AfterFunc(d, func() { e.Do(f) })
}

// After runs f on the engine's goroutine after a pause that is drawn, of less than most.
func (e *End) After(most time.Duration, f func()) {
	e.after(time.Duration(e.Rand.Int64N(int64(most))), f)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Layout of an end's memory: first bytes that never change, which peers read; then an area for
// each link, with room for each of its workers.
const (
	workers    = 2
	maxData    = 128 << 10
	maxMessage = 8 << 10
	fixedSize  = 256 << 10

	sourceAt   = 0
	backAt     = sourceAt + maxData
	targetAt   = backAt + maxData // the peer writes here
	messageAt  = targetAt + maxData
	cellsAt    = messageAt + maxMessage // the peer's atomics operate here
	originalAt = cellsAt + 16           // results of this end's atomics
	workerSize = cellsAt + 4<<10
	areaSize   = workers * workerSize

	receives = 256
)

const allPermissions = mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic

// end is one end of a service: a context on its own device, in the server or a client. It
// belongs to the goroutine that runs the engine. Other goroutines use do and ask.
type end struct {
	service service
	seed    uint64
	rng     *rand.Rand
	wrong   func(error)         // called with an error that must never happen
	lost    func(*link, error)  // called when a link has failed
	changed func(*link)         // called when a link has ended
	leaving func(*link) bool    // reports whether a new link is to end at once; nil: no
	request func(*rdma.Message) // UD: called with each message

	dev    faultyDevice
	engine *pe.Engine
	ctx    rdma.Context
	// connections or datagrams is the same context as ctx; the other is nil.
	connections *rdma.Connections
	datagrams   *rdma.Datagrams
	mem         *mmap.Map
	bufs        bufinv.Inventory

	tasks         *rdma.Pool         // of connections; nil with datagrams
	datagramTasks *rdma.DatagramPool // likewise

	areas      []int // free
	links      map[*link]bool
	paused     bool
	stopping   bool
	maxMessage int
	pattern    pattern
	stats      stats
	pinger     *pinger // UD, client

	running chan struct{} // closed when the context is Running
	ended   chan error    // the result of Run
	cancel  context.CancelFunc
}

// openEnd opens an end with room for that many links.
func openEnd(s service, name string, places int, seed uint64, rng *rand.Rand) (_ *end, err error) {
	e := &end{service: s, seed: seed, rng: rng, links: map[*link]bool{}, engine: pe.New(pe.Config{}),
		running: make(chan struct{}), ended: make(chan error, 1)}
	if e.dev, err = openDevice(s.device); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open %s: %w", s.name, errors.Join(err, e.close()))
		}
	}()
	var path rdma.Path
	if s.ipv6 {
		index, err := ipv6Index(e.dev)
		if err != nil {
			return nil, err
		}
		path.GIDIndex = &index
	}
	if s.datagrams() {
		e.datagrams, err = rdma.NewDatagrams(e.dev, rdma.DatagramsConfig{Name: name, Transport: s.transport, Engine: e.engine, Path: path})
		e.ctx = e.datagrams
	} else {
		e.connections, err = rdma.New(e.dev, rdma.Config{Name: name, Engine: e.engine, Permissions: allPermissions, Path: path, MaxConnections: places})
		e.ctx = e.connections
	}
	if err != nil {
		e.ctx = nil
		return nil, err
	}
	e.maxMessage = min(maxMessage, int(e.ctx.Capabilities().MaxSend))
	if e.mem, err = mmap.Alloc(e.dev, fixedSize+places*areaSize, allPermissions); err != nil {
		return nil, err
	}
	clear(e.mem.Bytes()) // so that all of it is resident from the start
	e.pattern.fill(e.mem.Bytes()[:fixedSize], key(seed, "fixed"), 0)
	for i := range places {
		e.areas = append(e.areas, places-1-i)
	}
	if err := e.pools(places); err != nil {
		return nil, err
	}
	if e.connections != nil {
		e.connections.OnConnection(e.connection)
	}
	e.ctx.OnStateChange(e.state)
	return e, e.ctx.Receive(receives, e.maxMessage, e.received)
}

// pools makes the pools of tasks: for the workers and, for each link, two tasks to begin and
// end, and one to confirm each piece of the peer's.
func (e *end) pools(places int) (err error) {
	done := func(t *rdma.Task) { e.done(t, nil) }
	n := max(4*workers*places+2*places, pings)
	if e.datagrams != nil {
		e.datagramTasks, err = e.datagrams.Pool(n, done, e.done)
	} else {
		e.tasks, err = e.connections.Pool(n, done, e.done)
	}
	return err
}

// start runs the engine, and waits until the context is Running.
func (e *end) start() error {
	if err := e.ctx.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	go func() { e.ended <- e.engine.Run(ctx) }()
	select {
	case <-e.running:
		return nil
	case err := <-e.ended:
		e.ended <- err
		return fmt.Errorf("the context %q ended while it was starting: %w", e.ctx.Name(), err)
	}
}

func (e *end) state(_, next pe.State) {
	switch {
	case next == pe.Running:
		close(e.running)
	case next != pe.Starting && !e.stopping:
		e.wrong(fmt.Errorf("the context %q is %v, although nobody stopped it; its error is: %v", e.ctx.Name(), next, e.ctx.Err()))
	}
}

// do runs f on the engine's goroutine.
func (e *end) do(f func()) { _ = e.engine.Do(f) } // fails once everything is closed

// ask runs f on the engine's goroutine, and waits for it.
func (e *end) ask(f func()) {
	done := make(chan struct{})
	if e.engine.Do(func() { defer close(done); f() }) == nil {
		<-done
	}
}

// stop ends the work and closes everything. Anything left over is an error.
func (e *end) stop() error {
	e.do(func() {
		e.stopping = true
		e.ctx.Fail(e.ctx.Stop())
	})
	err := <-e.ended
	e.cancel()
	if err != nil {
		err = fmt.Errorf("run %s: %w", e.ctx.Name(), err)
	}
	if out := e.bufs.Total() - e.bufs.Available(); out != 0 {
		err = errors.Join(err, fmt.Errorf("%d buffers of %s are still in use at the end", out, e.ctx.Name()))
	}
	return errors.Join(err, e.close())
}

func (e *end) close() error {
	var err error
	if e.ctx != nil {
		err = e.ctx.Close()
	}
	err = errors.Join(err, e.engine.Close(), e.bufs.Close())
	if e.mem != nil {
		err = errors.Join(err, e.mem.Close())
	}
	return errors.Join(err, e.dev.Close())
}

// area returns the offset of the memory for a link.
func area(index int) int { return fixedSize + index*areaSize }

// connection is called with every change of a connection.
func (e *end) connection(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	l, ok := conn.UserData().(*link)
	if !ok {
		return // the connection was closed before the exchange was over
	}
	switch state {
	case rdma.Ready:
		l.ready = true
		e.stats.Connections++
		l.sendHello()
		l.begin()
	case rdma.Failed:
		l.fail(err)
		e.check(conn.Close())
	case rdma.Closed:
		if err != nil {
			l.fail(err)
		}
		if l.inFlight != 0 {
			e.wrong(fmt.Errorf("%v was reported Closed, but %d of its tasks are still in flight", conn, l.inFlight))
		}
		l.closed = true
		l.check()
	}
}

// received handles a message.
func (e *end) received(m *rdma.Message) {
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
	if l, ok := data.(*link); ok {
		l.received(m)
	} else if !e.service.datagrams() { // an endpoint may get messages of peers that it has forgotten
		e.wrong(fmt.Errorf("received a %v from the unknown peer %v", m.Opcode(), m.Connection()))
	}
}

// done handles a task that has completed or failed.
func (e *end) done(t *rdma.Task, err error) {
	switch of := t.UserData().(type) {
	case *worker:
		of.done(t, err)
	case *link:
		e.check(t.Free())
		of.inFlight--
		if err != nil {
			of.fail(err)
		}
		of.check()
	case *ping:
		of.done(t, err)
	default:
		e.wrong(fmt.Errorf("a %v completed that belongs to a %T", t.Operation(), of))
	}
}

func (e *end) check(err error) {
	if err != nil {
		e.wrong(err)
	}
}

// addResources counts what the end holds, on the engine's goroutine.
func (e *end) addResources(h *resources) {
	h.Tasks += e.ctx.Allocated()
	h.Buffers += e.bufs.Total() - e.bufs.Available()
	h.Links += len(e.links)
}

// quiet reports whether the end is idle: it has as many links as should stay, and all are at
// rest.
func (e *end) quiet(links int) bool {
	if len(e.links) != links || e.pinger != nil && e.pinger.busy() {
		return false
	}
	for l := range e.links {
		if !l.isIdle() {
			return false
		}
	}
	return e.service.datagrams() || len(e.connections.List()) == links
}

// pause stops all work until resume.
func (e *end) pause() { e.paused = true }

func (e *end) resume() {
	e.paused = false
	for l := range e.links {
		for i := range l.workers {
			if s := &l.workers[i]; !s.busy {
				s.next()
			}
		}
	}
	if e.pinger != nil {
		e.pinger.work()
	}
}

// after runs f on the engine's goroutine after a delay.
func (e *end) after(d time.Duration, f func()) { time.AfterFunc(d, func() { e.do(f) }) }

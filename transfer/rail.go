package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const poolSize = 2048 // pieces at one device

// rail is a device of the agent, with its engine, and all connections through it.
type rail struct {
	agent  *Agent
	index  int
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	tasks  *rdma.Pool
	wake   func()
	woken  atomic.Bool

	// Of the engine's goroutine.
	accepted map[request]*incoming
	batch    [32]*piece

	// Guarded by the agent's mutex.
	pending  bool // something waits for the engine's goroutine
	dials    []*link
	closes   []*link
	active   [levels]fifo[*link]
	inFlight int // pieces
}

// incoming is a connection that a peer has dialled.
type incoming struct {
	who  request
	conn *rdma.Connection
	next *rdma.ConnectRequest // accepted when the connection has ended
}

func newRail(a *Agent, index int, dev verbs.Device) (*rail, error) {
	r := &rail{agent: a, index: index, dev: dev, engine: pe.New(pe.Config{Log: a.cfg.Log}), accepted: map[request]*incoming{}}
	r.wake = r.work
	err := r.open()
	if err != nil {
		err = errors.Join(err, r.close())
	}
	return r, err
}

func (r *rail) open() (err error) {
	c := &r.agent.cfg
	r.rdma, err = rdma.New(r.dev, rdma.Config{
		Name: "transfer", Engine: r.engine, MaxConnections: c.MaxConnections, SendQueueSize: c.Depth + 4,
		Permissions: mmap.RemoteRead | mmap.RemoteAtomic, ConnectTimeout: c.DialTimeout,
	})
	if err != nil {
		return err
	}
	if r.tasks, err = r.rdma.Pool(poolSize, func(t *rdma.Task) { r.ended(t, nil) }, r.ended); err != nil {
		return err
	}
	r.rdma.OnConnection(r.changed)
	if err = r.rdma.Start(); err != nil {
		return err
	}
	for r.rdma.State() != pe.Running {
		if _, err = r.engine.Progress(); err != nil || r.rdma.State() == pe.Idle {
			return errors.Join(err, r.rdma.Err())
		}
	}
	return nil
}

func (r *rail) listen(addr string) (netip.AddrPort, error) {
	l, err := r.rdma.Listen(addr, rdma.ListenConfig{OnRequest: r.requested})
	if err != nil {
		return netip.AddrPort{}, err
	}
	at := l.Addr()
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(r.rdma.GID().GID.Addr(), at.Port())
	}
	return at, nil
}

// run drives the engine until the agent is closed.
func (r *rail) run(ctx context.Context) {
	a := r.agent
	defer a.ended.Done()
	err := r.engine.Run(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() == nil && a.failed == nil {
		a.failed = fmt.Errorf("device %s: %w", r.dev.Name(), errors.Join(err, r.rdma.Err()))
		a.endPeers(a.alive())
	}
	for _, p := range slices.Clone(a.peers) {
		if l := p.links[r.index]; l.state != linkDown {
			l.down(a.alive())
		}
	}
}

func (r *rail) close() error {
	err := r.engine.Close()
	if r.rdma != nil {
		err = errors.Join(err, r.rdma.Close())
	}
	return err
}

// kick has the engines do what waits for them. The lock is not held.
func (a *Agent) kick() {
	for _, r := range a.rails {
		a.mu.Lock()
		pending := r.pending
		a.mu.Unlock()
		if pending && r.woken.CompareAndSwap(false, true) {
			_ = r.engine.Dispatch(r.wake) // fails when the agent is closed
		}
	}
}

// work does what waits for the engine's goroutine. It runs on it.
func (r *rail) work() {
	a := r.agent
	r.woken.Store(false)
	for {
		a.mu.Lock()
		dials, closes := r.dials, r.closes
		r.dials, r.closes, r.pending = nil, nil, false
		batch := r.pull()
		a.mu.Unlock()
		for _, l := range dials {
			r.dial(l)
		}
		for _, l := range closes {
			r.hangUp(l)
		}
		if len(batch) == 0 && len(dials)+len(closes) == 0 {
			break
		}
		for _, pc := range batch {
			r.post(pc)
		}
	}
	a.kick() // other devices
}

// pull takes work for the device: of the highest priority first, and of the peers in turn. The lock is held.
func (r *rail) pull() []*piece {
	batch := r.batch[:0]
	for level := range r.active {
		for queue := &r.active[level]; queue.len() > 0 && len(batch) < len(r.batch) && r.inFlight < poolSize; {
			l := queue.pop()
			l.active[level] = false
			if l.state != linkReady || !l.room() {
				continue
			}
			if pc := l.take(level); pc != nil {
				l.inFlight++
				l.bytes += pc.length
				r.inFlight++
				batch = append(batch, pc)
				l.activate(level)
			}
		}
	}
	return batch
}

// post gives a piece to the device.
func (r *rail) post(pc *piece) {
	it, conn := pc.item, pc.link.conn
	var t *rdma.Task
	var err error
	at := it.offset + pc.offset
	switch it.op {
	case rdma.OpWrite:
		t, err = r.tasks.Write(conn, bufinv.Source(it.local.maps[r.index], it.localAt+pc.offset, pc.length), bufinv.Target(pc.remote, at, pc.length))
	case rdma.OpRead:
		t, err = r.tasks.Read(conn, bufinv.Source(pc.remote, at, pc.length), bufinv.Target(it.local.maps[r.index], it.localAt+pc.offset, pc.length))
	case rdma.OpFetchAdd:
		t, err = r.tasks.FetchAdd(conn, bufinv.Target(pc.remote, at, 8), it.arg)
	default:
		t, err = r.tasks.CompareSwap(conn, bufinv.Target(pc.remote, at, 8), it.arg, it.swap)
	}
	if err == nil {
		t.SetUserData(pc)
		if err = t.Submit(pe.Aggregate); err != nil {
			_ = t.Free()
		}
	}
	if err != nil {
		r.agent.mu.Lock()
		pc.link.ended(pc, 0, false, err)
		r.agent.mu.Unlock()
	}
}

// ended takes a task back, and gives the device more work.
func (r *rail) ended(t *rdma.Task, err error) {
	pc, original := t.UserData().(*piece), t.Original()
	_ = t.Free()
	a := r.agent
	a.mu.Lock()
	pc.link.ended(pc, original, true, err)
	pending := r.pending
	a.mu.Unlock()
	if pending {
		r.work()
	}
}

func (r *rail) dial(l *link) {
	a := r.agent
	a.mu.Lock()
	if l.state != linkQueued {
		a.mu.Unlock()
		return
	}
	l.state, l.err = linkDialing, nil
	a.counters.Dials++
	addr := l.target()
	a.mu.Unlock()
	who := request{Magic: magic, Epoch: a.epoch, Peer: l.peer.serial, Device: uint8(r.index)}
	conn, err := r.rdma.Dial(addr, rdma.DialConfig{PrivateData: encode(who), Timeout: a.cfg.DialTimeout})
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		l.failures = maxFailures
		l.down(err)
		return
	}
	conn.SetUserData(l)
	l.conn = conn
	if l.state == linkClosing { // meanwhile
		r.closes = append(r.closes, l)
		r.pending = true
	}
}

func (r *rail) hangUp(l *link) {
	r.agent.mu.Lock()
	conn := l.conn
	r.agent.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // this is the engine's goroutine
	}
}

// changed follows all connections.
func (r *rail) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	if l, ok := conn.UserData().(*link); ok {
		l.changed(conn, state, err)
		return
	}
	in, ok := conn.UserData().(*incoming)
	switch {
	case state == rdma.Failed:
		_ = conn.Close()
	case state == rdma.Closed && ok:
		if r.accepted[in.who] == in {
			delete(r.accepted, in.who)
		}
		if in.next != nil {
			r.accept(in.next, in.who)
		}
	}
}

// requested answers a peer that dials. An older connection of the same end must have ended before the new one
// is accepted, so that nothing of it can still write here.
func (r *rail) requested(q *rdma.ConnectRequest) {
	who, err := decodeRequest(q.PrivateData())
	if err != nil {
		r.agent.mu.Lock()
		r.agent.counters.Refused++
		r.agent.mu.Unlock()
		_ = q.Reject([]byte(err.Error()))
		return
	}
	old := r.accepted[who]
	if old == nil {
		r.accept(q, who)
		return
	}
	if old.next != nil {
		_ = old.next.Reject([]byte("the same end has dialled again"))
	}
	old.next = q
	_ = old.conn.Close()
}

func (r *rail) accept(q *rdma.ConnectRequest, who request) {
	conn, err := q.Accept(rdma.AcceptConfig{PrivateData: encode(r.acceptance())})
	if err != nil {
		_ = q.Reject([]byte(err.Error())) // fails if the peer has given up
		return
	}
	in := &incoming{who: who, conn: conn}
	conn.SetUserData(in)
	r.accepted[who] = in
}

func (r *rail) acceptance() acceptance {
	a := r.agent
	acc := acceptance{Magic: magic, Epoch: a.epoch, Device: uint8(r.index), Devices: uint8(len(a.addrs)), Directory: a.directory.record.Keys[r.index]}
	for i, addr := range a.addrs {
		acc.Addrs[i] = address{addr.Addr().As16(), addr.Port()}
	}
	return acc
}

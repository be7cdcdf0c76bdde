package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	poolSize = 2048 // pieces at one device
	maxNotes = 1024 // that wait for Agent.Note, by device; the devices of peers repeat further ones
	maxEnds  = 4096 // that are known, if not more are connected
)

// rail is a device of the agent, with its engine, and all connections through it.
type rail struct {
	agent  *Agent
	index  int
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	tasks  *rdma.Pool

	batch [32]*piece // of the engine's goroutine

	// Guarded by the agent's mutex.
	woken    bool // work will run
	active   [levels]fifo.Queue[*link]
	inFlight int   // pieces
	dead     error // why the device is used no more
}

// incoming is an end that has dialled. The agent's mutex guards it.
type incoming struct {
	end   end
	rail  *rail
	conn  *rdma.Connection     // nil: it has ended
	next  *rdma.ConnectRequest // answered when the connection has ended
	to    *rail                // that next has come to
	last  uint32               // Dials of the latest request
	notes uint64               // that have come
	place fifo.Node[*incoming] // among those without a connection
}

// busy is why a request is rejected that is to come again.
var busy = []byte("the agent has no connection left")

func newRail(a *Agent, index int, dev verbs.Device) (*rail, error) {
	r := &rail{agent: a, index: index, dev: dev, engine: pe.New(pe.Config{Log: a.cfg.Log})}
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
	receives, err := r.rdma.ReceivePool(maxNotes, r.noted, func(t *rdma.ReceiveTask, _ error) {
		if t.Submit() == nil { // fails when the agent is closed
			r.agent.refuse()
		} else {
			_ = t.Free()
		}
	})
	if err != nil {
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
	for range maxNotes {
		t, err := receives.Alloc(nil)
		if err = pe.SubmitOrFree(t, err); err != nil {
			return err
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
	r.dead = fmt.Errorf("%w: device %s: %w", ErrClosed, r.dev.Name(), cmp.Or(errors.Join(err, r.rdma.Err()), errors.New("its engine has ended")))
	if !slices.ContainsFunc(a.rails, func(r *rail) bool { return r.dead == nil }) {
		a.end(r.dead)
	}
	for _, in := range a.incoming {
		if in.rail == r && in.conn != nil {
			in.down() // which the engine may not have reported
		}
	}
	for _, p := range slices.Clone(a.peers) {
		for _, l := range p.links {
			if l.rail == r && l.state != linkDown {
				l.down(r.dead)
			}
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

// wake has work run on the engine's goroutine. The lock is held.
func (r *rail) wake() {
	if !r.woken {
		r.woken = r.engine.Do(r.work) == nil // fails when the agent is closed
	}
}

// work gives the device all that it takes. It runs on the engine's goroutine.
func (r *rail) work() {
	for more := true; more; {
		r.agent.mu.Lock()
		r.woken = true // by this loop
		batch := r.pull()
		r.woken = false
		r.agent.mu.Unlock()
		for _, pc := range batch {
			r.post(pc)
		}
		more = len(batch) == len(r.batch)
	}
}

// pull takes work for the device: of the highest priority first, and of the peers in turn. The lock is held.
func (r *rail) pull() []*piece {
	batch := r.batch[:0]
	for level := range r.active {
		for queue := &r.active[level]; queue.Len() > 0 && len(batch) < len(r.batch) && r.inFlight < poolSize; {
			l := queue.Pop()
			if l.rail != r { // it has moved on
				continue
			}
			l.active[level] = false
			if l.state != linkReady || !l.room() {
				continue
			}
			if pc := l.take(level); pc != nil {
				l.inFlight++
				l.bytes += pc.length
				r.inFlight++
				batch = append(batch, pc)
				l.activate()
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
	case rdma.OpWriteImm:
		t, err = r.tasks.WriteImm(conn, nil, nil, uint32(it.arg))
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
	r.agent.mu.Lock()
	r.woken = true // by this function
	pc.link.ended(pc, original, true, err)
	r.agent.mu.Unlock()
	r.work()
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
		r.agent.mu.Lock()
		defer r.agent.mu.Unlock()
		if in.conn == conn {
			in.down()
		}
	}
}

// down notes the end of the connection, and has the next request answered. The lock is held.
func (in *incoming) down() {
	in.conn = nil
	in.rail.agent.absent.Push(&in.place)
	if next, to := in.next, in.to; next != nil {
		in.next = nil
		_ = to.engine.Do(func() { to.requested(next) })
	}
}

func (a *Agent) refuse() {
	a.mu.Lock()
	a.counters.Refused++
	a.mu.Unlock()
}

// requested answers a peer that dials. An older connection of the same end must have ended before the new one
// is accepted, so that nothing of it can still write here. It may be one of another device.
func (r *rail) requested(q *rdma.ConnectRequest) {
	a := r.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	who, err := decodeRequest(q.PrivateData())
	if err != nil {
		a.counters.Refused++
		_ = q.Reject([]byte(err.Error()))
		return
	}
	old := a.incoming[who.End]
	if old != nil && who.Dials < old.last {
		_ = q.Reject([]byte("this end has dialled again since"))
		return
	}
	if old == nil || old.conn == nil || a.cfg.planted == "fence" {
		r.accept(q, who, old)
		return
	}
	if next := old.next; next != nil {
		_ = old.to.engine.Do(func() { _ = next.Reject([]byte("the same end has dialled again")) })
	}
	old.next, old.to, old.last = q, r, who.Dials
	_ = old.rail.engine.Do(func() { _ = old.conn.Close() })
}

// accept accepts an end, which is not nil if it is known.
func (r *rail) accept(q *rdma.ConnectRequest, who request, in *incoming) {
	a := r.agent
	acc := acceptance{Magic: magic, Epoch: a.epoch, Device: uint8(r.index), Devices: uint8(len(a.addrs)), Directory: a.directory.record.Keys[r.index]}
	for i, addr := range a.addrs {
		acc.Addrs[i] = address{addr.Addr().As16(), addr.Port()}
	}
	if in != nil {
		acc.Known, acc.Notes = 1, in.notes
	}
	conn, err := q.Accept(rdma.AcceptConfig{PrivateData: encode(acc)})
	if err != nil {
		_ = q.Reject(busy) // fails if the peer has given up
		return
	}
	if in == nil {
		if len(a.incoming) >= maxEnds && a.absent.Len() > 0 {
			delete(a.incoming, a.absent.Pop().Value.end) // if it comes back, the outcome of its notes on their way is unknown
		}
		in = &incoming{end: who.End}
		in.place.Value = in
		a.incoming[who.End] = in
	}
	a.absent.Remove(&in.place)
	in.rail, in.conn, in.last = r, conn, who.Dials
	conn.SetUserData(in)
}

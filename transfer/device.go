package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/quota"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	poolSize = 2048 // pieces at one device
	maxNotes = 1024 // that wait for Agent.Note, by device; the devices of peers repeat further ones
	maxEnds  = 4096 // that are known, if not more are connected
)

// localDevice is a device of the agent, with its engine, and all connections through it.
type localDevice struct {
	agent  *Agent
	index  int
	device verbs.Device
	engine *pe.Engine

	transport transport // nil: it could not be opened

	batch [32]*piece // of the engine's goroutine

	// Guarded by the agent's mutex.
	woken    bool // work will run
	active   [levels]fifo.Queue[*path]
	inFlight int                      // pieces
	dead     error                    // why the device is used no more
	accepted quota.Places[netip.Addr] // connections, by the network that dialled
}

// incoming is an end that has dialled. The agent's mutex guards it.
type incoming struct {
	dev   *localDevice
	conn  link                 // nil: it has ended
	next  *call                // answered when the connection has ended
	to    *localDevice         // that next has come to
	who   request              // the latest
	notes uint64               // that have come
	known bool                 // one of its connections was made, so the end knows from where on they count
	from  netip.Addr           // the network that its connection counts for
	place fifo.Node[*incoming] // among those without a connection
}

// busy is why a request is rejected that is to come again.
var busy = []byte("no connection left for this host; see Config.MaxConnections")

func (d *localDevice) open() (err error) {
	open := openRC
	if d.agent.cfg.Transport == verbs.SRD {
		open = openSRD
	}
	if d.transport, err = open(d); err != nil {
		return err
	}
	receives, err := d.transport.ReceivePool(maxNotes, d.noted, func(t *rdma.ReceiveTask, _ error) {
		if pe.SubmitOrFree(t, nil) == nil { // fails when the agent is closed
			d.agent.refuse()
		}
	})
	if err != nil {
		return err
	}
	if err = d.transport.Start(); err != nil {
		return err
	}
	for d.transport.State() != pe.Running {
		if _, err = d.engine.Progress(); err != nil || d.transport.State() == pe.Idle {
			return errors.Join(err, d.transport.Err())
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

// run drives the engine until the agent is closed.
func (d *localDevice) run(ctx context.Context) {
	a := d.agent
	defer a.ended.Done()
	err := d.engine.Run(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	d.dead = fmt.Errorf("%w: device %s: %w", ErrClosed, d.device.Name(), cmp.Or(errors.Join(err, d.transport.Err()), errors.New("its engine has ended")))
	if !slices.ContainsFunc(a.devices, func(d *localDevice) bool { return d.dead == nil }) {
		a.end(d.dead)
	}
	for _, in := range a.incoming {
		if in.dev == d && in.conn != nil {
			in.down() // which the engine may not have reported
		}
	}
	for _, p := range slices.Clone(a.peers) {
		for _, path := range p.paths {
			if path.dev == d && path.state != pathDown {
				path.down(d.dead)
			}
		}
	}
}

func (d *localDevice) isDead() bool {
	d.agent.mu.Lock()
	defer d.agent.mu.Unlock()
	return d.dead != nil
}

func (d *localDevice) close() error {
	err := d.engine.Close()
	if d.transport != nil {
		err = errors.Join(err, d.transport.Close())
	}
	return err
}

// wake has work run on the engine's goroutine. The lock is held.
func (d *localDevice) wake() {
	if !d.woken {
		d.woken = d.engine.Do(d.work) == nil // fails when the agent is closed
	}
}

// work gives the device all that it takes. It runs on the engine's goroutine.
func (d *localDevice) work() {
	for more := true; more; {
		d.agent.mu.Lock()
		d.woken = true // by this loop
		batch := d.pull()
		d.woken = false
		d.agent.mu.Unlock()
		for _, pc := range batch {
			d.post(pc)
		}
		more = len(batch) == len(d.batch)
	}
}

// pull takes work for the device: of the highest priority first, and of the peers in turn. The lock is held.
func (d *localDevice) pull() []*piece {
	batch := d.batch[:0]
	for level := range d.active {
		for queue := &d.active[level]; queue.Len() > 0 && len(batch) < len(d.batch) && d.inFlight < poolSize; {
			path := queue.Pop()
			if path.dev != d { // it has moved on
				continue
			}
			path.active[level] = false
			if path.state != pathReady || !path.room() {
				continue
			}
			if pc := path.take(level); pc != nil {
				path.inFlight++
				path.bytes += pc.length
				d.inFlight++
				batch = append(batch, pc)
				path.activate()
			}
		}
	}
	return batch
}

// post gives a piece to the device.
func (d *localDevice) post(pc *piece) {
	t, err := d.transport.task(pc)
	if err == nil {
		t.SetUserData(pc)
		if err = t.Submit(pe.Aggregate); err != nil {
			_ = t.Free()
		}
	}
	if err != nil {
		d.agent.mu.Lock()
		pc.path.ended(pc, 0, false, err)
		d.agent.mu.Unlock()
	}
}

// ended takes a task back, and gives the device more work.
func (d *localDevice) ended(t *rdma.Task, err error) {
	pc, original := t.UserData().(*piece), t.Original()
	_ = t.Free()
	d.agent.mu.Lock()
	d.woken = true // by this function
	pc.path.ended(pc, original, true, err)
	d.agent.mu.Unlock()
	d.work()
}

// close closes the connection, if there is one.
func (in *incoming) close() {
	if conn := in.conn; conn != nil { // which may have ended when the function runs
		_ = in.dev.engine.Do(func() { _ = conn.Close() })
	}
}

// down notes the end of the connection, and has the next request answered. The lock is held.
func (in *incoming) down() {
	in.conn = nil
	in.dev.accepted.Release(in.from)
	in.dev.agent.absent.Push(&in.place)
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
func (d *localDevice) requested(c *call) {
	a := d.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	in := a.incoming[c.who.Path]
	if in == nil {
		in = &incoming{}
		in.place.Value = in
	}
	if c.who.Dials < in.who.Dials {
		c.reject([]byte("this end has dialled again since"))
		return
	}
	if in.conn == nil {
		d.accept(c, in)
		return
	}
	if next := in.next; next != nil {
		_ = in.to.engine.Do(func() { next.reject([]byte("the same end has dialled again")) })
	}
	in.next, in.to, in.who.Dials = c, d, c.who.Dials
	in.close()
}

// accept accepts an end that has no connection.
func (d *localDevice) accept(c *call, in *incoming) {
	a, from := d.agent, c.from
	if !from.IsLinkLocalUnicast() { // as those of EFAs are, which are all of one network
		from = quota.Network(from)
	}
	var conn link
	err := rdma.ErrFull
	if d.accepted.Fits(from, a.cfg.MaxConnections) {
		conn, err = c.accept(in)
	}
	if err != nil {
		c.reject(busy)
		return
	}
	if a.incoming[c.who.Path] == nil {
		if len(a.incoming) >= maxEnds && a.absent.Len() > 0 {
			delete(a.incoming, a.absent.Pop().Value.who.Path) // if it comes back, the outcome of its notes on their way is unknown
		}
		a.incoming[c.who.Path] = in
	}
	a.absent.Remove(&in.place)
	d.accepted.Take(from)
	in.dev, in.conn, in.who, in.from = d, conn, c.who, from
}

// acceptance is what the device tells those who dial it.
func (d *localDevice) acceptance() (acc acceptance) {
	a := d.agent
	acc.Magic, acc.Epoch, acc.Device, acc.Devices, acc.Directory = magic, a.epoch, uint8(d.index), uint8(len(a.addrs)), a.directory.record.Keys[d.index]
	for i, addr := range a.addrs {
		acc.Addrs[i], acc.QPNs[i] = address{addr.AddrPort.Addr().As16(), addr.AddrPort.Port()}, addr.QPN
	}
	return acc
}

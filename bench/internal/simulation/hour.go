package simulation

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/footprint"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	servers     = 4
	slotSize    = 16 << 10 // of the server's memory, for each client
	visitPause  = 30 * time.Second
	workPause   = 200 * time.Millisecond
	faultPause  = 45 * time.Second // between faults, on average
	faultLength = 10 * time.Second // at most
	grace       = 20 * time.Second // after a fault, in which its failures are noticed
	stuckAfter  = 3 * time.Minute
)

// life is a cluster in which clients visit servers: they connect, write, read back, send, have
// sends answered, add, rest, close, and come again.
type life struct {
	s        *sim.Sim
	servers  []*lifeServer
	clients  []*lifeClient
	faults   map[string]int
	faultEnd time.Duration // of the last fault; failures after that and the grace are wrong
	visits   int
	ops      int
	failed   int // connections that have failed because of faults
}

// lifeServer is a server. Its memory has a slot for each client.
type lifeServer struct {
	l       *life
	host    *sim.Host
	memory  []byte // descriptor
	present int    // connections
}

// lifeClient is a client, which visits one server after the other.
type lifeClient struct {
	l      *life
	index  int
	host   *sim.Host
	at     *lifeServer
	engine *pe.Engine
	rdma   *rdma.Connections
	mem    *mmap.Map
	bufs   bufinv.Inventory
	tasks  *rdma.Pool
	remote *mmap.Map
	conn   *rdma.Connection
	left   int // operations of this visit
	sum    uint64
	known  bool          // sum is the value at the server
	echo   []byte        // what the server is to send back
	alive  time.Duration // when something was last completed
	timer  host.Timer
	stop   bool
}

func measureHour(o options) (string, error) {
	var b strings.Builder
	var l *life
	var simulated time.Duration
	var events, packets, early, late uint64
	began := processor.Time()
	err := sim.Simulate(o.seed, func(s *sim.Sim) {
		l = &life{s: s, faults: make(map[string]int)}
		hosts, w := o.star(s, servers+o.clients, false)
		for _, h := range hosts[:servers] {
			v := &lifeServer{l: l, host: h}
			l.servers = append(l.servers, v)
			h.Run(v.run)
		}
		for i, h := range hosts[servers:] {
			c := &lifeClient{l: l, index: i, host: h}
			l.clients = append(l.clients, c)
			h.Run(c.run)
		}
		random := s.Rand()
		s.Run(time.Second)
		for until := o.life; s.Now() < until; {
			s.Run(time.Duration(random.Int64N(int64(2 * faultPause))))
			l.disturb(random, hosts, w)
			l.watch()
			if early == 0 && s.Now() > until/4 {
				early = footprint.Heap()
			}
		}
		s.Run(faultLength + grace)
		l.watch()
		late = footprint.Heap()
		simulated, events, packets = s.Now(), s.Events(), s.Packets()
		for _, c := range l.clients {
			s.After(0, func() { _ = c.engine.Do(c.leave) })
		}
		s.RunUntil(func() bool {
			for _, v := range l.servers {
				if v.present > 0 {
					return false
				}
			}
			return true
		}, stuckAfter)
	})
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "%d servers and %d clients, with faults: %v.\n\n", servers, o.clients, l.faults)
	b.WriteString("| simulated | visits | operations, checked | connections that failed in faults | events | packets | heap after a quarter, at the end | processor time |\n|---|---|---|---|---|---|---|---|\n")
	fmt.Fprintf(&b, "| %v | %d | %d | %d | %s | %s | %.1f, %.1f MiB | %.1f s |\n", simulated.Round(time.Second), l.visits, l.ops, l.failed, short(float64(events)), short(float64(packets)),
		float64(early)/(1<<20), float64(late)/(1<<20), (processor.Time() - began).Seconds())
	return b.String(), nil
}

// disturb begins a fault, and ends it later.
func (l *life) disturb(random *rand.Rand, hosts []*sim.Host, w *sim.Switch) {
	s, h := l.s, hosts[random.IntN(len(hosts))]
	d := time.Duration(random.Int64N(int64(faultLength)))
	l.faultEnd = s.Now() + d
	name := ""
	switch random.IntN(4) {
	case 0:
		name = "crashes"
		h.Crash()
		s.After(d, h.Restart)
	case 1:
		name = "pauses"
		h.Pause()
		s.After(d, h.Resume)
	case 2:
		name = "partitions"
		s.Partition(hosts[:servers/2], hosts[servers/2:])
		s.After(d, s.Heal)
	case 3:
		name = "bad links"
		link := s.Link(h, w)
		good := link.Config()
		bad := good
		bad.Loss, bad.Reorder, bad.Corrupt, bad.Duplicate = 0.1, 0.1, 0.01, 0.01
		link.Set(bad)
		s.After(d, func() { link.Set(good) })
	}
	l.faults[name]++
}

// watch ends the simulation if a client is stuck.
func (l *life) watch() {
	for _, c := range l.clients {
		if idle := l.s.Now() - c.alive; idle > stuckAfter && !c.host.Crashed() {
			l.s.Fatalf("client %s has done nothing for %v; its server %s; its connection %v", c.host, idle, c.at.host, c.conn)
		}
	}
}

// lost notes that a connection has failed, which only faults excuse.
func (l *life) lost(at *sim.Host, err error) error {
	l.failed++
	if l.s.Now() > l.faultEnd+grace {
		return fmt.Errorf("host %s: a connection has failed without a fault since %v: %w", at, l.faultEnd, err)
	}
	return nil
}

func (v *lifeServer) run(ctx context.Context, dev verbs.Device) (err error) {
	v.present = 0
	places := 4 * len(v.l.clients)
	engine := pe.New(pe.Config{})
	closers := []io.Closer{engine}
	defer func() { err = errors.Join(err, closeAll(closers)) }()
	mem, err := mmap.Alloc(dev, len(v.l.clients)*slotSize, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite|mmap.RemoteAtomic)
	if err != nil {
		return err
	}
	closers = append(closers, mem)
	c, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: places, Permissions: mmap.RemoteRead | mmap.RemoteAtomic})
	if err != nil {
		return err
	}
	closers = append(closers, c)
	tasks, err := c.Pool(places, func(t *rdma.Task) { c.Fail(t.Free()) }, func(t *rdma.Task, _ error) { _ = t.Free() })
	if err != nil {
		return err
	}
	// A message says which slot has the data that is to be sent back.
	err = c.Receive(places, messageSize, func(m *rdma.Message) {
		slot := int(binary.LittleEndian.Uint32(m.Bytes()))
		copy(mem.Bytes()[slot*slotSize+answerAt:], m.Bytes())
		t, err := tasks.Send(m.Connection(), bufinv.Source(mem, slot*slotSize+answerAt, m.Length()))
		c.Fail(pe.SubmitOrFree(t, err))
	})
	if err != nil {
		return err
	}
	c.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch {
		case ctx.Err() != nil:
		case state == rdma.Ready:
			v.present++
			conn.SetUserData(v)
		case state == rdma.Failed:
			c.Fail(v.l.lost(v.host, err))
			c.Fail(conn.Close())
		case state == rdma.Closed && conn.UserData() != nil:
			v.present--
		}
	})
	c.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			_, err := c.Listen(netip.AddrPortFrom(v.host.Addr(), port).String(), rdma.ListenConfig{})
			c.Fail(err)
		}
	})
	if v.memory, err = mem.Export(dev); err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// The client's memory, and that of its slot.
const (
	pieceSize   = 4 << 10
	messageSize = 1 << 10
	readAt      = pieceSize     // of the client: what it reads back
	messageAt   = 2 * pieceSize // of the client: what it sends
	countAt     = pieceSize     // of the slot: a number that grows
	answerAt    = 2 * pieceSize
)

func (c *lifeClient) run(ctx context.Context, dev verbs.Device) (err error) {
	c.engine, c.conn, c.remote, c.bufs = pe.New(pe.Config{}), nil, nil, bufinv.Inventory{}
	c.alive = c.l.s.Now()
	closers := []io.Closer{c.engine, &c.bufs}
	defer func() {
		if c.remote != nil {
			closers = append([]io.Closer{c.remote}, closers...)
		}
		if c.timer != nil {
			c.timer.Stop()
		}
		err = errors.Join(err, closeAll(closers))
	}()
	if c.mem, err = mmap.Alloc(dev, slotSize, mmap.LocalReadWrite); err != nil {
		return err
	}
	closers = append(closers, c.mem)
	if c.rdma, err = rdma.New(dev, rdma.Config{Engine: c.engine, MaxConnections: 1}); err != nil {
		return err
	}
	closers = append(closers, c.rdma)
	// A task that fails ends its connection, which is reported.
	c.tasks, err = c.rdma.Pool(4, c.done, func(t *rdma.Task, _ error) { _ = t.Free() })
	if err != nil {
		return err
	}
	err = c.rdma.Receive(4, messageSize, func(m *rdma.Message) {
		if !bytes.Equal(m.Bytes(), c.echo) {
			c.rdma.Fail(fmt.Errorf("client %s: an answer of %d bytes is not what it sent", c.host, m.Length()))
		}
		c.completed()
	})
	if err != nil {
		return err
	}
	c.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if ctx.Err() != nil {
			return
		}
		switch state {
		case rdma.Ready:
			c.rdma.Fail(c.arrived())
		case rdma.Failed:
			c.rdma.Fail(c.l.lost(c.host, err))
			c.rdma.Fail(conn.Close())
		case rdma.Closed:
			if err != nil && !errors.Is(err, rdma.ErrPeerClosed) {
				c.rdma.Fail(err)
			}
			c.conn, c.alive = nil, c.l.s.Now()
			c.after(visitPause, c.visit)
		}
	})
	c.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			c.rdma.Fail(c.visit())
		}
	})
	if err := c.rdma.Start(); err != nil {
		return err
	}
	return c.engine.Run(ctx)
}

// after calls f within d, on the client's goroutine.
func (c *lifeClient) after(d time.Duration, f func() error) {
	engine := c.engine
	c.timer = host.Of(c.rdma.Device()).AfterFunc(time.Duration(c.host.Rand().Int64N(int64(d))), func() {
		_ = engine.Do(func() { c.rdma.Fail(f()) })
	})
}

// visit dials one of the servers.
func (c *lifeClient) visit() (err error) {
	if c.stop {
		return nil
	}
	c.at = c.l.servers[c.host.Rand().IntN(servers)]
	c.conn, err = c.rdma.Dial(netip.AddrPortFrom(c.at.host.Addr(), port).String(), rdma.DialConfig{})
	return err
}

// arrived begins a visit.
func (c *lifeClient) arrived() (err error) {
	if c.remote != nil {
		if err := c.remote.Close(); err != nil {
			return err
		}
	}
	if c.remote, err = mmap.Import(c.rdma.Device(), c.at.memory); err != nil {
		return err
	}
	c.l.visits++
	c.left, c.known = 1+c.host.Rand().IntN(200), false
	return c.work()
}

// leave makes the client close its connection and stay away.
func (c *lifeClient) leave() {
	c.stop = true
	if c.conn != nil {
		c.rdma.Fail(c.conn.Close())
	}
}

// completed ends an operation, and begins another one after a while.
func (c *lifeClient) completed() {
	c.alive = c.l.s.Now()
	c.l.ops++
	c.left--
	c.after(workPause, c.work)
}

// work begins an operation, or ends the visit.
func (c *lifeClient) work() error {
	if c.conn == nil || c.conn.State() != rdma.Ready {
		return nil // it has failed meanwhile
	}
	if c.left == 0 {
		return c.conn.Close()
	}
	slot, random := c.index*slotSize, c.host.Rand()
	switch n := 1 + random.IntN(pieceSize); random.IntN(3) {
	case 0:
		fill(random, c.mem.Bytes()[:n])
		t, err := c.tasks.Write(c.conn, bufinv.Source(c.mem, 0, n), bufinv.Target(c.remote, slot, n))
		return pe.SubmitOrFree(t, err)
	case 1:
		n = max(n%messageSize, 4)
		c.echo = c.mem.Bytes()[messageAt:][:n]
		fill(random, c.echo)
		binary.LittleEndian.PutUint32(c.echo, uint32(c.index))
		t, err := c.tasks.Send(c.conn, bufinv.Source(c.mem, messageAt, n))
		return pe.SubmitOrFree(t, err)
	default:
		t, err := c.tasks.FetchAdd(c.conn, bufinv.Target(c.remote, slot+countAt, 8), uint64(n))
		return pe.SubmitOrFree(t, err)
	}
}

func fill(random *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(random.Uint32())
	}
}

// done takes a completed task.
func (c *lifeClient) done(t *rdma.Task) {
	op, value, was := t.Operation(), t.Value(), t.Original()
	n := 0
	if op == rdma.OpWrite || op == rdma.OpRead {
		n = t.Bytes()
	}
	c.rdma.Fail(t.Free())
	switch op {
	case rdma.OpWrite: // read it back
		t, err := c.tasks.Read(c.conn, bufinv.Source(c.remote, c.index*slotSize, n), bufinv.Target(c.mem, readAt, n))
		c.rdma.Fail(pe.SubmitOrFree(t, err))
	case rdma.OpRead:
		if !bytes.Equal(c.mem.Bytes()[:n], c.mem.Bytes()[readAt:][:n]) {
			c.rdma.Fail(fmt.Errorf("client %s: %d bytes that it has read are not those that it wrote", c.host, n))
		}
		c.completed()
	case rdma.OpFetchAdd:
		if c.known && was != c.sum {
			c.rdma.Fail(fmt.Errorf("client %s: the number is %d, want %d", c.host, was, c.sum))
		}
		c.sum, c.known = was+value, true
		c.completed()
	}
}

func closeAll(list []io.Closer) (err error) {
	for i := len(list) - 1; i >= 0; i-- {
		err = errors.Join(err, list[i].Close())
	}
	return err
}

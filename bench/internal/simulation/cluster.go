package simulation

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

const port = 7471

// cluster is a group of hosts whose programs move data through reliable connections: each
// connection has window writes of size bytes under way, all to the same place of its peer.
type cluster struct {
	s     *sim.Sim
	nodes []*node

	size   int
	window int

	opened    int // programs that can be dialled
	ready     int // connections, at the end that has dialled
	failures  []error
	limit     int // operations of all connections together; 0: no limit
	submitted int
	completed int

	from, until time.Duration // when operations count
	bytes       []int         // of each connection
	latencies   []time.Duration
}

// node is a host of a cluster.
type node struct {
	c      *cluster
	host   *sim.Host
	engine *pe.Engine
	rdma   *rdma.Connections
	mem    *mmap.Map
	tasks  *rdma.Pool
	memory []byte // descriptor
	dials  []*node
	dialed int // by others
	flows  []*flow
}

// flow is a connection, at the end that has dialled.
type flow struct {
	index  int // in the cluster
	to     *node
	conn   *rdma.Connection
	remote *mmap.Map
}

// operation is the user data of a write.
type operation struct {
	f       *flow
	started time.Duration
}

func newCluster(s *sim.Sim, hosts []*sim.Host) *cluster {
	c := &cluster{s: s, size: 8, window: 1}
	for _, h := range hosts {
		c.nodes = append(c.nodes, &node{c: c, host: h})
	}
	return c
}

// connect adds n connections, which the first host dials.
func (c *cluster) connect(from, to, n int) {
	for range n {
		c.nodes[from].dials = append(c.nodes[from].dials, c.nodes[to])
	}
	c.nodes[to].dialed += n
}

// connections is the number of connections.
func (c *cluster) connections() (n int) {
	for _, d := range c.nodes {
		n += len(d.dials)
	}
	return n
}

// open starts the programs.
func (c *cluster) open() {
	for _, n := range c.nodes {
		n.host.Run(n.run)
	}
	c.s.RunUntil(func() bool { return c.opened == len(c.nodes) }, time.Hour)
}

// dial makes all connections.
func (c *cluster) dial(limit time.Duration) {
	for _, n := range c.nodes {
		c.do(n, n.dial)
	}
	total := c.connections()
	c.s.RunUntil(func() bool { return c.ready == total || len(c.failures) > 0 }, limit)
	c.check()
}

// check ends the simulation if a connection has failed.
func (c *cluster) check() {
	if err := errors.Join(c.failures...); err != nil {
		c.s.Fatal(err)
	}
}

// begin starts to move data on all connections at the same moment.
func (c *cluster) begin() {
	for _, n := range c.nodes {
		if len(n.dials) > 0 {
			c.do(n, n.begin)
		}
	}
}

// do calls a function on the goroutine of a node.
func (c *cluster) do(n *node, f func() error) {
	c.s.After(0, func() {
		_ = n.engine.Do(func() { n.rdma.Fail(f()) })
	})
}

// counters returns the sums of the counters of all devices.
func counters(hosts []*sim.Host) (map[string]uint64, error) {
	sum := make(map[string]uint64)
	for _, h := range hosts {
		list, err := h.Device().Counters()
		if err != nil {
			return nil, err
		}
		for _, c := range list {
			sum[c.Name] += c.Value
		}
	}
	return sum, nil
}

func (n *node) run(ctx context.Context, dev verbs.Device) (err error) {
	closing := func(close func() error) { err = errors.Join(err, close()) }
	n.engine = pe.New(pe.Config{})
	defer closing(n.engine.Close)
	if n.mem, err = mmap.Alloc(dev, max(n.c.size, 64), mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return err
	}
	defer closing(n.mem.Close)
	total := len(n.dials) + n.dialed
	if n.rdma, err = rdma.New(dev, rdma.Config{Engine: n.engine, MaxConnections: max(total, 1)}); err != nil {
		return err
	}
	defer func() {
		for _, f := range n.flows {
			if f.remote != nil {
				closing(f.remote.Close)
			}
		}
	}()
	defer closing(n.rdma.Close)
	if n.tasks, err = n.rdma.Pool(max(2*total*n.c.window, 2), n.done, n.failed); err != nil {
		return err
	}
	if n.memory, err = n.mem.Export(dev); err != nil {
		return err
	}
	n.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch {
		case state == rdma.Ready && conn.UserData() != nil:
			n.c.ready++
		case state == rdma.Failed:
			n.c.failures = append(n.c.failures, err)
		}
	})
	n.rdma.OnStateChange(func(_, next pe.State) {
		if next != pe.Running {
			return
		}
		if n.dialed > 0 {
			_, err := n.rdma.Listen(netip.AddrPortFrom(n.host.Addr(), port).String(), rdma.ListenConfig{Backlog: n.dialed})
			n.rdma.Fail(err)
		}
		n.c.opened++
	})
	if err := n.rdma.Start(); err != nil {
		return err
	}
	return n.engine.Run(ctx)
}

func (n *node) dial() error {
	for _, to := range n.dials {
		conn, err := n.rdma.Dial(netip.AddrPortFrom(to.host.Addr(), port).String(), rdma.DialConfig{})
		if err != nil {
			return err
		}
		f := &flow{index: len(n.c.bytes), to: to, conn: conn}
		n.c.bytes = append(n.c.bytes, 0)
		conn.SetUserData(f)
		n.flows = append(n.flows, f)
	}
	return nil
}

func (n *node) begin() error {
	for _, f := range n.flows {
		var err error
		if f.remote, err = mmap.Import(n.rdma.Device(), f.to.memory); err != nil {
			return err
		}
		for range n.c.window {
			t, err := n.tasks.Write(f.conn, bufinv.Source(n.mem, 0, n.c.size), bufinv.Target(f.remote, 0, n.c.size))
			if err != nil {
				return err
			}
			t.SetUserData(&operation{f: f})
			if err := n.submit(t); err != nil {
				return err
			}
		}
	}
	return nil
}

// submit submits a write, unless the limit is reached.
func (n *node) submit(t *rdma.Task) error {
	if n.c.limit > 0 && n.c.submitted == n.c.limit {
		return t.Free()
	}
	n.c.submitted++
	t.UserData().(*operation).started = n.c.s.Now()
	return t.Submit()
}

// done takes a completed write, and submits it again.
func (n *node) done(t *rdma.Task) {
	o := t.UserData().(*operation)
	n.c.count(o.f, o.started)
	n.rdma.Fail(n.submit(t))
}

func (c *cluster) count(f *flow, started time.Duration) {
	c.completed++
	now := c.s.Now()
	if now < c.from || c.until > 0 && now > c.until {
		return
	}
	c.bytes[f.index] += c.size
	if c.limit == 0 {
		c.latencies = append(c.latencies, now-started)
	}
}

// failed frees a task: its connection has failed, which is reported, or the simulation ends.
func (n *node) failed(t *rdma.Task, _ error) { _ = t.Free() }

package traffic_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/test/traffic"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	servers     = 4
	port        = 7471
	visitPause  = 30 * time.Second
	workPause   = 400 * time.Millisecond
	faultPause  = 45 * time.Second // between faults, on average
	faultLength = 10 * time.Second // at most
	grace       = 20 * time.Second // after a fault, in which its failures are noticed
	stuckAfter  = 3 * time.Minute
)

// cluster is a number of servers, and of clients that visit them: they connect, both ends work,
// they leave, and come again.
type cluster struct {
	s        *sim.Sim
	hosts    []*sim.Host // servers first
	clients  []*client
	faults   map[string]int
	faultEnd time.Duration // of the last fault; failures after that and the grace are wrong
	visits   int
	failed   int // links that have failed because of faults
	ops      uint64
}

// client is a program that visits one server after the other.
type client struct {
	c     *cluster
	index int
	host  *sim.Host
	end   *traffic.End
	stop  bool
	ops   uint64        // of this start
	alive time.Duration // when ops has grown
}

// open opens the end of a program. Errors end the simulation, unless the host has crashed.
func (c *cluster) open(ctx context.Context, h *sim.Host, dev verbs.Device, cfg traffic.Config) (*traffic.End, error) {
	cfg.Name, cfg.Device, cfg.Seed, cfg.Rand, cfg.MaxData = h.Name(), dev, c.s.Seed(), h.Rand(), 8<<10
	cfg.Wrong = func(err error) {
		if ctx.Err() == nil && !h.Crashed() {
			c.s.Fatalf("%s: %v", h, err)
		}
	}
	cfg.Lost = func(l *traffic.Link, err error) {
		c.failed++
		if now := c.s.Now(); ctx.Err() == nil && !h.Crashed() && now > c.faultEnd+grace {
			c.s.Fatalf("%s: %v has failed at %v without a fault since %v: %v", h, l, now, c.faultEnd, err)
		}
	}
	return traffic.Open(cfg)
}

// run runs an end until the host crashes, or the simulation ends.
func run(ctx context.Context, e *traffic.End) error { return errors.Join(e.Run(ctx), e.Close()) }

// serve is the program of a server.
func (c *cluster) serve(ctx context.Context, h *sim.Host, dev verbs.Device) error {
	var e *traffic.End
	accept := func(q *rdma.ConnectRequest) error {
		conn, err := q.Accept(rdma.AcceptConfig{})
		if errors.Is(err, rdma.ErrNotReady) { // the client has given up
			return nil
		} else if err != nil {
			return err
		}
		_, err = e.Connect(conn, nil, traffic.LinkConfig{Name: name(q.PrivateData()), Pause: workPause})
		return err
	}
	e, err := c.open(ctx, h, dev, traffic.Config{Places: 4 * len(c.clients), Running: func() {
		_, err := e.Ctx.Listen(netip.AddrPortFrom(h.Addr(), port).String(), rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { e.Check(accept(q)) }})
		e.Check(err)
	}})
	if err != nil {
		return err
	}
	return run(ctx, e)
}

// name is the name of a link, from what the client has sent.
func name(data []byte) []any { return []any{string(data[:8])} }

// run is the program of a client.
func (c *client) run(ctx context.Context, dev verbs.Device) (err error) {
	var e *traffic.End
	visit := func() {
		if ctx.Err() != nil || c.stop {
			return
		}
		data := fmt.Appendf(nil, "%8x", c.host.Rand().Uint32())
		server := c.c.hosts[c.host.Rand().IntN(servers)]
		conn, err := e.Connections.Dial(netip.AddrPortFrom(server.Addr(), port).String(), rdma.DialConfig{PrivateData: data})
		if err == nil {
			_, err = e.Connect(conn, nil, traffic.LinkConfig{Name: name(data), First: true, Pause: workPause, Budget: 1 + c.host.Rand().IntN(200)})
		}
		e.Check(err)
		c.c.visits++
	}
	e, err = c.c.open(ctx, c.host, dev, traffic.Config{
		Places: 1, Running: visit, Leaving: func() bool { return c.stop },
		Ended: func(*traffic.Link) { e.After(visitPause, visit) },
	})
	if err != nil {
		return err
	}
	c.end, c.ops, c.alive = e, 0, c.c.s.Now()
	err = run(ctx, e)
	c.c.ops += e.Stats.Total()
	return err
}

// leave makes the client end its link and stay away.
func (c *client) leave() {
	c.stop = true
	if c.end != nil {
		c.end.Do(func() { c.end.Leave(false) })
	}
}

// watch ends the simulation if a client is stuck.
func (c *cluster) watch() {
	for _, x := range c.clients {
		if x.end == nil || x.host.Crashed() {
			continue
		}
		if n := x.end.Stats.Total(); n != x.ops {
			x.ops, x.alive = n, c.s.Now()
		} else if idle := c.s.Now() - x.alive; idle > stuckAfter {
			c.s.Fatalf("client %s has done nothing for %v: %v", x.host, idle, x.end.Describe())
		}
	}
}

// disturb begins a fault, and ends it later.
func (c *cluster) disturb(random *rand.Rand, w *sim.Switch) {
	s, h := c.s, c.hosts[random.IntN(len(c.hosts))]
	d := time.Duration(random.Int64N(int64(faultLength)))
	c.faultEnd = max(c.faultEnd, s.Now()+d)
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
		s.Partition(c.hosts[:servers/2], c.hosts[servers/2:])
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
	c.faults[name]++
}

// simulate runs a cluster for a time, and returns it with the digest of the simulation.
func simulate(t *testing.T, seed uint64, clients int, life time.Duration) (c *cluster, digest uint64) {
	t.Helper()
	err := sim.Simulate(seed, func(s *sim.Sim) {
		c = &cluster{s: s, faults: map[string]int{}}
		var w *sim.Switch
		c.hosts, w = s.Star("h", servers+clients, sim.LinkConfig{Latency: 2 * time.Microsecond, Rate: 25e9})
		for i, h := range c.hosts[servers:] {
			c.clients = append(c.clients, &client{c: c, index: i, host: h})
		}
		for _, h := range c.hosts[:servers] {
			h.Run(func(ctx context.Context, dev verbs.Device) error { return c.serve(ctx, h, dev) })
		}
		for _, x := range c.clients {
			x.host.Run(x.run)
		}
		random := s.Rand()
		s.Run(time.Second)
		for s.Now() < life {
			s.Run(time.Duration(random.Int64N(int64(2 * faultPause))))
			c.disturb(random, w)
			c.watch()
		}
		s.Run(faultLength + grace)
		c.watch()
		for _, x := range c.clients {
			s.After(0, x.leave)
		}
		s.RunUntil(func() bool {
			return !slices.ContainsFunc(c.clients, func(x *client) bool { return len(x.end.Links) > 0 })
		}, stuckAfter)
		digest = s.Digest()
	})
	require.NoError(t, err, "seed %d", seed)
	return c, digest
}

// The life of a cluster in which hosts crash and pause, networks part and links are bad. Nothing
// fails without a fault, no byte is wrong, and nobody is stuck.
func TestSoakCluster(t *testing.T) {
	clients := 5
	if soak.Full(t) {
		clients = 20
	}
	c, _ := simulate(t, 1, clients, soak.Duration(t, time.Minute, time.Hour))
	t.Logf("faults %v, %d visits, %d operations of clients, %d links failed in faults", c.faults, c.visits, c.ops, c.failed)
	assert.Positive(t, c.visits)
	assert.Positive(t, c.ops)
	if soak.Full(t) {
		assert.Len(t, c.faults, 4, "every kind of fault")
		assert.Positive(t, c.failed)
	}
}

// Two runs of a seed are the same.
func TestClusterRepeats(t *testing.T) {
	c, first := simulate(t, 7, 3, 3*time.Minute)
	assert.NotEmpty(t, c.faults, "the runs have to contain some")
	_, second := simulate(t, 7, 3, 3*time.Minute)
	assert.Equal(t, first, second)
}

package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/footprint"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	clientHosts = 100                    // of the server that restarts
	crashAt     = 5 * time.Second        // after all are connected
	outage      = 500 * time.Millisecond // from crash to restart
)

// reunion measures connections to a server that restarts.
type reunion struct {
	s       *sim.Sim
	server  *sim.Host
	total   int
	ready   int
	lost    []time.Duration // when clients have noticed, since the crash
	back    []time.Duration // when connections are ready again, since the restart
	crashed time.Duration
	up      time.Duration
	// accepted are the connections of the server, since its last start.
	accepted int
}

func measureRestart(o options) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "Idle connections of %d hosts to one that crashes and starts again after %v; %s. Clients dial again as soon as they notice. Times since the crash, and since the restart: the first, p50, p99, the last.\n\n", min(clientHosts, o.connections), outage, o.describeLink())
	b.WriteString("| connections | connected first in | noticed | ready again | packets | CM repetitions | heap before, after | processor time |\n|---|---|---|---|---|---|---|---|\n")
	began := processor.Time()
	var r reunion
	var first time.Duration
	var packets, repeated uint64
	var before, after uint64
	err := sim.Simulate(o.seed, func(s *sim.Sim) {
		r = reunion{s: s, total: o.connections, crashed: -1}
		hosts, _ := o.star(s, 1+min(clientHosts, o.connections), false)
		r.server = hosts[0]
		hosts[0].Run(r.serve)
		left := o.connections
		for i, h := range hosts[1:] {
			n := left / (len(hosts) - 1 - i)
			left -= n
			h.Run(func(ctx context.Context, dev verbs.Device) error { return r.visit(ctx, dev, h, n) })
		}
		s.RunUntil(func() bool { return r.ready == r.total && r.accepted == r.total }, 10*time.Minute)
		first = s.Now()
		s.Run(crashAt)
		before, packets = footprint.Heap(), s.Packets()
		r.crashed, r.accepted = s.Now(), 0
		hosts[0].Crash()
		s.After(outage, hosts[0].Restart)
		r.up = s.Now() + outage
		s.RunUntil(func() bool { return len(r.back) == r.total && r.accepted == r.total }, 10*time.Minute)
		packets = s.Packets() - packets
		sums, err := counters(hosts)
		if err != nil {
			s.Fatal(err)
		}
		repeated = sums["cm_tx_retries"]
		s.Run(crashAt) // all stay connected
		if r.ready != r.total || r.accepted != r.total {
			s.Fatalf("of %d connections, clients have %d and the server %d", r.total, r.ready, r.accepted)
		}
		after = footprint.Heap()
	})
	if err != nil {
		return b.String(), err
	}
	fmt.Fprintf(&b, "| %d | %v | %s | %s | %d | %d | %.0f, %.0f MiB | %.1f s |\n", r.total, rounded(first), spread(r.lost), spread(r.back), packets, repeated,
		float64(before)/(1<<20), float64(after)/(1<<20), (processor.Time() - began).Seconds())
	return b.String(), nil
}

// spread describes when something has happened.
func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "never"
	}
	slices.Sort(list)
	at := func(q float64) time.Duration { return rounded(list[min(int(q*float64(len(list))), len(list)-1)]) }
	return fmt.Sprintf("%v, %v, %v, %v", at(0), at(0.5), at(0.99), at(1))
}

// serve accepts connections.
func (r *reunion) serve(ctx context.Context, dev verbs.Device) error {
	return r.run(ctx, dev, r.total, func(c *rdma.Connections) error {
		_, err := c.Listen(netip.AddrPortFrom(r.server.Addr(), port).String(), rdma.ListenConfig{Backlog: r.total})
		return err
	}, func(conn *rdma.Connection, state rdma.ConnectionState, _ error) error {
		switch state {
		case rdma.Ready:
			r.accepted++
		case rdma.Closed, rdma.Failed:
			if state == rdma.Failed {
				return conn.Close()
			}
			r.accepted--
		}
		return nil
	})
}

// visit keeps n connections to the server.
func (r *reunion) visit(ctx context.Context, dev verbs.Device, h *sim.Host, n int) error {
	dial := func(c *rdma.Connections) error {
		_, err := c.Dial(netip.AddrPortFrom(r.server.Addr(), port).String(), rdma.DialConfig{})
		return err
	}
	return r.run(ctx, dev, n, func(c *rdma.Connections) error {
		for range n {
			if err := dial(c); err != nil {
				return err
			}
		}
		return nil
	}, func(conn *rdma.Connection, state rdma.ConnectionState, _ error) error {
		switch state {
		case rdma.Ready:
			r.ready++
			if r.crashed >= 0 {
				r.back = append(r.back, r.s.Now()-r.up)
			}
		case rdma.Failed:
			if conn.UserData() == nil {
				conn.SetUserData(r)
				r.ready--
				r.lost = append(r.lost, r.s.Now()-r.crashed)
			}
			return conn.Close()
		case rdma.Closed:
			return dial(conn.Context())
		}
		return nil
	})
}

// run runs a context of connections.
func (r *reunion) run(ctx context.Context, dev verbs.Device, places int, begin func(*rdma.Connections) error, changed func(*rdma.Connection, rdma.ConnectionState, error) error) (err error) {
	engine := pe.New(pe.Config{})
	c, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: places})
	if err != nil {
		return errors.Join(err, engine.Close())
	}
	defer func() {
		for _, x := range []io.Closer{c, engine} {
			err = errors.Join(err, x.Close())
		}
	}()
	c.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		if ctx.Err() == nil {
			c.Fail(changed(conn, state, err))
		}
	})
	c.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			c.Fail(begin(c))
		}
	})
	if err := c.Start(); err != nil {
		return err
	}
	return engine.Run(ctx)
}

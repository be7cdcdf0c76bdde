package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// mesh is a group of hosts that send each other messages through SRD.
type mesh struct {
	s         *sim.Sim
	ends      []*meshEnd
	size      int
	window    int // messages of each host under way
	choose    func(e *meshEnd) int
	running   int
	from      time.Duration
	until     time.Duration
	latencies []time.Duration
	failures  []error
	sent      int
	arrived   int
}

// meshEnd is a host of a mesh.
type meshEnd struct {
	m      *mesh
	index  int
	host   *sim.Host
	engine *pe.Engine
	ctx    *rdma.Datagrams
	mem    *mmap.Map
	tasks  *rdma.DatagramPool
	desc   []byte
	peers  []*rdma.Peer // by index; nil: not met yet
	next   int          // in turns
	bytes  int
}

// patterns are who sends to whom.
var patterns = []struct {
	name   string
	choose func(e *meshEnd) int
}{
	{"random pairs", func(e *meshEnd) int { return e.index ^ 1 }},
	{"all to all, in turn", func(e *meshEnd) int {
		e.next = e.next%(len(e.m.ends)-1) + 1
		return (e.index + e.next) % len(e.m.ends)
	}},
	{"all to all, drawn", func(e *meshEnd) int {
		return (e.index + 1 + e.host.Rand().IntN(len(e.m.ends)-1)) % len(e.m.ends)
	}},
}

func measureSRD(o options) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%d hosts, each with %d messages of %d KiB under way; %s; %v after a warm-up of %v.\n\n", o.srdHosts, o.srdWindow, o.srdSize, o.describeLink(), o.srdTime, o.srdWarmUp)
	b.WriteString("| pattern | goodput of a link | fairness | p50, p99, p99.9 | dropped | repeated | time-outs | failed |\n|---|---|---|---|---|---|---|---|\n")
	for _, p := range patterns {
		var share, fairness float64
		var m *mesh
		var c map[string]uint64
		var dropped uint64
		err := sim.Simulate(o.seed, func(s *sim.Sim) {
			hosts, w := o.star(s, o.srdHosts, false)
			m = &mesh{s: s, size: o.srdSize << 10, window: o.srdWindow, choose: p.choose}
			order := s.Rand().Perm(len(hosts))
			for i := range hosts {
				e := &meshEnd{m: m, index: i, host: hosts[order[i]], peers: make([]*rdma.Peer, len(hosts)), next: i}
				m.ends = append(m.ends, e)
				e.host.Run(e.run)
			}
			s.RunUntil(func() bool { return m.running == len(hosts) }, time.Minute)
			m.from = s.Now() + o.srdWarmUp
			m.until = m.from + o.srdTime
			for _, e := range m.ends {
				s.After(0, func() { _ = e.engine.Do(e.begin) })
			}
			s.Run(o.srdWarmUp + o.srdTime)
			var err error
			if c, err = counters(hosts); err != nil {
				s.Fatal(err)
			}
			for _, h := range hosts {
				dropped += s.Link(w, h).Counts().Overflowed
			}
			var bytes []int
			for _, e := range m.ends {
				bytes = append(bytes, e.bytes)
			}
			share, fairness, _ = shares(bytes, o.srdTime, o.rate*float64(len(hosts)))
			if m.arrived > m.sent {
				s.Fatalf("%d messages have arrived, of %d", m.arrived, m.sent)
			}
		})
		if err != nil {
			return b.String(), fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(&b, "| %s | %.3f | %.3f | %s | %d | %d | %d | %d |\n", p.name, share, fairness, tail(m.latencies), dropped, c["srd_retransmits"], c["srd_peer_timeouts"], len(m.failures))
	}
	return b.String(), nil
}

func (e *meshEnd) run(ctx context.Context, dev verbs.Device) (err error) {
	e.engine = pe.New(pe.Config{})
	closers := []io.Closer{e.engine}
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i].Close())
		}
	}()
	if e.mem, err = mmap.Alloc(dev, e.m.size, mmap.LocalReadOnly); err != nil {
		return err
	}
	closers = append(closers, e.mem)
	if e.ctx, err = rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: e.engine, Transport: verbs.SRD}); err != nil {
		return err
	}
	closers = append(closers, e.ctx)
	if err := e.ctx.Receive(256, e.m.size, func(*rdma.Message) { e.m.arrived++ }); err != nil {
		return err
	}
	e.tasks, err = e.ctx.Pool(e.m.window, e.done, func(t *rdma.Task, err error) {
		if ctx.Err() == nil {
			e.m.failures = append(e.m.failures, err)
		}
		_ = t.Free()
	})
	if err != nil {
		return err
	}
	e.ctx.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			e.desc, err = e.ctx.ExportEndpoint()
			e.ctx.Fail(err)
			e.m.running++
		}
	})
	if err := e.ctx.Start(); err != nil {
		return err
	}
	return e.engine.Run(ctx)
}

// begin sends the first messages.
func (e *meshEnd) begin() {
	for range e.m.window {
		e.ctx.Fail(e.send())
	}
}

// send sends a message to the next peer.
func (e *meshEnd) send() error {
	to := e.m.choose(e)
	if e.peers[to] == nil {
		p, err := e.ctx.NewPeer(e.m.ends[to].desc)
		if err != nil {
			return err
		}
		e.peers[to] = p
	}
	t, err := e.tasks.Send(e.peers[to], bufinv.Source(e.mem, 0, e.m.size))
	if err == nil {
		t.SetUserData(e.m.s.Now())
		e.m.sent++
	}
	return pe.SubmitOrFree(t, err)
}

func (e *meshEnd) done(t *rdma.Task) {
	now := e.m.s.Now()
	if now >= e.m.from && now <= e.m.until {
		e.bytes += e.m.size
		e.m.latencies = append(e.m.latencies, now-t.UserData().(time.Duration))
	}
	e.ctx.Fail(t.Free())
	e.ctx.Fail(e.send())
}

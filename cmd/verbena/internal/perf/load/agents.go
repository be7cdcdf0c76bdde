package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/transfer"
	"github.com/verbena-rdma/verbena/verbs"
)

// agents is an End of a test of batches: the client's agent, or the server's, one for each peer, which publish the same
// memory. The server does nothing with it; its device does what the client asks for.
type agents struct {
	slots
	cfg    Config
	ctx    context.Context
	free   func() error // the memory
	list   []*transfer.Agent
	remote []*transfer.RemoteSegment // of each peer
	batch  transfer.Batch
}

// segment is the name of the server's memory.
const segment = "perf"

func openAgents(ctx context.Context, cfg Config) (a *agents, err error) {
	p := cfg.Plan
	a = &agents{slots: slots{plan: p, server: cfg.Server, layout: p.Layout(0)}, cfg: cfg, ctx: ctx}
	if a.mem, a.free, err = mmap.AllocBytes(int(a.layout.Size())); err != nil {
		return nil, err
	}
	own := transfer.Config{Devices: append([]verbs.Device{cfg.Device}, cfg.More...), MaxConnections: p.Connections, Depth: p.Depth, DialTimeout: cfg.Timeout}
	name, perm, n := "", mmap.LocalReadWrite, 1
	if a.server {
		name, perm, n = segment, mmap.LocalReadWrite|rights(p.Test.Op), p.Connections
		own.MaxConnections, own.Listen = 256, ":0" // the client can have eight addresses; each gets half of what others leave
		if cfg.Local.IsValid() && len(cfg.More) == 0 {
			own.Listen = net.JoinHostPort(cfg.Local.String(), "0")
		}
	}
	for range n {
		agent, err := transfer.Open(own)
		if err == nil {
			a.list = append(a.list, agent)
			_, err = agent.Register(name, a.mem, perm)
		}
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

func (a *agents) Context() context.Context { return a.ctx }

func (a *agents) GID() verbs.GIDEntry {
	path, _ := a.Path()
	at := path.Local.Addr()
	if a.server {
		at = a.list[0].Addrs()[0].AddrPort.Addr()
	}
	gids, _ := a.cfg.Device.GIDs(max(a.cfg.Port, 1))
	for _, e := range slices.Backward(gids) { // a later one is of a later version of RoCE
		if e.GID.Addr().Unmap() == at.Unmap() {
			return e
		}
	}
	return verbs.GIDEntry{}
}

func (a *agents) Offer(send func(*control.End) error) error {
	if !a.server {
		return nil
	}
	for i, agent := range a.list {
		if err := send(&control.End{Engine: i, Agent: agent.Addrs()[0].String(), Last: i == len(a.list)-1}); err != nil {
			return err
		}
	}
	return nil
}

func (a *agents) Connect(receive func() (*control.End, error), _ DialTo) error {
	if a.server {
		return nil
	}
	for i := range a.plan.Connections {
		e, err := receive()
		if err != nil {
			return err
		}
		if e.Engine != i || e.Agent == "" || e.Last != (i == a.plan.Connections-1) {
			return errWrongEnds
		}
		peer, err := a.list[0].Dial(a.ctx, e.Agent)
		if err != nil {
			return err
		}
		remote, err := peer.Segment(a.ctx, segment)
		if err != nil {
			return err
		}
		if int64(remote.Len()) < a.layout.Size() {
			return fmt.Errorf("%w: its memory has %d bytes, want at least %d", control.ErrProtocol, remote.Len(), a.layout.Size())
		}
		a.remote = append(a.remote, remote)
	}
	return nil
}

func (a *agents) WaitReady() error { return nil }

// Path describes the connection to the first peer.
func (a *agents) Path() (p Path, err error) {
	for o := range a.list[0].Metrics(true) {
		if o.Kind == "connection" {
			p.Way = o.Path
			if p.Local, err = netip.ParseAddrPort(o.Local); err == nil {
				p.Peer, err = netip.ParseAddrPort(o.Peer)
			}
			break
		}
	}
	return p, err
}

func (a *agents) Prepare(step int) error {
	a.step, a.checks = step, checks{}
	_, a.size = a.plan.Step(step)
	a.fill()
	return nil
}

// Measure does batches, one after the other. An operation is an item, and the time is that of a batch.
func (a *agents) Measure() ([]*Sample, error) {
	m := meter{plan: a.plan}
	m.begin()
	for more := true; more; {
		d, err := a.run()
		if err != nil {
			return nil, err
		}
		more = m.record(d, time.Now())
	}
	m.sample.Operations *= int64(a.plan.Batch)
	return []*Sample{&m.sample}, nil
}

// run does a batch, whose items go to the peers in turn. It returns the time from Submit to the end.
func (a *agents) run() (time.Duration, error) {
	a.batch.Grow(a.plan.Batch)
	for i := range a.plan.Batch {
		remote, slot := a.remote[i%len(a.remote)], a.layout.Slot(i, 0)
		out, in := a.layout.OutOffset(slot), a.layout.InOffset(slot)
		if a.plan.Test.Op == plan.Read {
			a.batch.Read(remote, out, a.mem[in:][:a.size])
		} else {
			a.batch.Write(remote, in, a.mem[out:][:a.size])
		}
	}
	begun := time.Now()
	h, err := a.list[0].Submit(&a.batch)
	if err != nil {
		return 0, err
	}
	err = h.Wait(a.ctx)
	d := time.Since(begun)
	if a.ctx.Err() != nil {
		h.Cancel()
		<-h.Done()
		err = context.Cause(a.ctx)
	}
	return d, err
}

func (a *agents) Verified() (checked int64, damage string, err error) {
	if a.plan.Verify && a.plan.Test.Op == plan.Read && !a.server {
		a.check("the data that was read", a.size)
	}
	a.checkWritten()
	return a.checks.checked, a.checks.damage, nil
}

func (a *agents) ExpectClose() {}

func (a *agents) Close() (err error) {
	for _, agent := range a.list {
		err = errors.Join(err, agent.Close())
	}
	return errors.Join(err, a.free())
}

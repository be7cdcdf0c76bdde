package perf

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/load"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
	"github.com/verbena-rdma/verbena/device/route"
)

// errDamaged: data arrived damaged, so the figures are of no use.
var errDamaged = errors.New("data was corrupted in transit; see the report")

// measure runs the client.
func measure(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	out := stdout
	if o.json == "-" || o.csv == "-" {
		out = io.Discard
	}
	table := report.NewTable(out, o.gbits)
	all := measureAll
	if o.perftest {
		all = measurePerftest
	}
	reports, err := all(ctx, o, table)
	// Write what was measured before a failure, too.
	return errors.Join(err, table.Err(), write(o, reports, stdout))
}

// write writes the requested files.
func write(o *options, reports []*report.Report, stdout io.Writer) error {
	if len(reports) == 0 {
		return nil
	}
	return errors.Join(
		writeTo(o.json, stdout, func(w io.Writer) error { return report.WriteJSON(w, reports) }),
		writeTo(o.csv, stdout, func(w io.Writer) error { return report.WriteCSV(w, reports) }),
	)
}

func writeTo(name string, stdout io.Writer, f func(io.Writer) error) error {
	switch name {
	case "":
		return nil
	case "-":
		return f(stdout)
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(f(file), file.Close())
}

func measureAll(ctx context.Context, o *options, table *report.Table) (reports []*report.Report, err error) {
	host, port := o.address()
	addr, err := lookUp(ctx, host, o.timeout)
	if err != nil {
		return nil, err
	}
	d, err := open(o, addr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	end := time.Now().Add(o.patience())
	stream, err := dial(ctx, o, d, net.JoinHostPort(addr.String(), port))
	if err != nil {
		return nil, err
	}
	conv := control.NewConversation(ctx, stream)
	defer func() { err = errors.Join(err, conv.Close()) }()
	left := max(time.Until(end), min(o.timeout, shortestAnswer))
	greeted, cancel := context.WithTimeoutCause(conv.Context(), left, fmt.Errorf("the system of %s has accepted the connection, but the server has not answered within %v: the process there is stopped (by SIGSTOP or a debugger), or is not verbena perf; %s", host, left.Round(time.Millisecond), o.why()))
	_, err = control.Await[*control.Ready](greeted, conv)
	cancel()
	if err != nil {
		return nil, err
	}
	for i, p := range o.plans {
		c := &client{o: o, device: d, conv: conv, plan: p, last: i == len(o.plans)-1, table: table, peer: addr}
		r, err := c.run()
		if r != nil {
			reports = append(reports, r)
		}
		if err != nil {
			var fault *control.Fault
			if !errors.As(err, &fault) {
				conv.Refuse(err)
			}
			return reports, fmt.Errorf("%v: %w", p.Test, err)
		}
	}
	return reports, nil
}

// lookUp finds the address of a host. It prefers IPv4, because every RoCE device has IPv4
// GIDs.
func lookUp(ctx context.Context, host string, timeout time.Duration) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := route.LookUp(ctx, host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up %s: %w; check the name, or give an address", host, err)
	}
	return list[max(slices.IndexFunc(list, netip.Addr.Is4), 0)], nil
}

// dial connects to the server.
func dial(ctx context.Context, o *options, d *openDevice, addr string) (control.Stream, error) {
	if o.cm {
		return dialCM(ctx, o, d, addr)
	}
	return dialTCP(ctx, o, "verbena perf", addr)
}

func dialTCP(ctx context.Context, o *options, program, addr string) (*net.TCPConn, error) {
	return reach(ctx, o, program, func(ctx context.Context) (*net.TCPConn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		tcp, _ := conn.(*net.TCPConn)
		return tcp, err
	})
}

// firstAnswer is how long the client waits for a server that should be there, and shortestAnswer how
// long for the answer of one that was there just in time.
const (
	firstAnswer    = 5 * time.Second
	shortestAnswer = time.Second
)

// patience is how long the client waits for the first answer of the server, from its first dial on.
func (o *options) patience() time.Duration {
	if o.wait > 0 {
		return max(o.wait, firstAnswer)
	}
	return min(o.timeout, firstAnswer)
}

// why says how to learn more when the server does not answer.
func (o *options) why() string {
	host, _ := o.address()
	if o.device != "" {
		host = "-d " + o.device + " " + host
	}
	return fmt.Sprintf("with \"verbena ping -s\" there, \"verbena ping %s\" says why", host)
}

// reach dials until a server is there; without -wait, once.
func reach[S any](ctx context.Context, o *options, program string, dial func(context.Context) (S, error)) (S, error) {
	limited, cancel := context.WithTimeout(ctx, o.patience())
	defer cancel()
	var refused error
	for {
		s, err := dial(limited)
		if err == nil {
			return s, nil
		}
		if limited.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			refused = err
		}
		if o.wait > 0 {
			select {
			case <-limited.Done():
			case <-time.After(pause):
				continue
			}
		}
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		if refused == nil {
			refused = fmt.Errorf("%w: there was no answer within %v", err, o.patience())
		}
		return s, fmt.Errorf("reach the server: %w; is %s running there? %s", refused, program, o.why())
	}
}

// pause is how long the client waits before it dials again.
const pause = 100 * time.Millisecond

// client is one test at the client.
type client struct {
	o      *options
	device *openDevice
	conv   *control.Conversation
	plan   *plan.Plan
	last   bool // this is the last test
	table  *report.Table
	peer   netip.Addr
}

// run runs the test. With an error, it may return the part of the report that is complete.
func (c *client) run() (r *report.Report, err error) {
	setUp, cancel := context.WithTimeoutCause(c.conv.Context(), c.o.timeout, fmt.Errorf("the server has not connected within %v", c.o.timeout))
	defer cancel()
	var token []byte
	if c.plan.CM {
		token = make([]byte, control.TokenLen)
		_, _ = rand.Read(token) // never fails
	}
	if err := c.conv.Send(&control.Request{Plan: *c.plan, Token: token}); err != nil {
		return nil, err
	}
	accept, err := control.Await[*control.Accept](setUp, c.conv)
	if err != nil {
		return nil, err
	}
	s, err := load.OpenEnd(c.conv.Context(), load.Config{Device: c.device.dev, More: c.device.more, Port: c.device.port, GIDIndex: c.device.gid, Plan: c.plan, Timeout: c.o.timeout, Token: token})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := c.connect(setUp, s); err != nil {
		return nil, err
	}
	if r, err = c.newReport(s, &accept.Host); err != nil {
		return nil, err
	}
	c.table.Head(r)
	for i := range c.plan.Steps() {
		res, err := c.step(s, i)
		if err != nil {
			return r, err
		}
		r.Results = append(r.Results, *res)
		c.table.Row(c.plan, res)
		if c.o.counters {
			c.table.Counters(res)
		}
		if res.Damage != "" {
			err = errDamaged
		}
		if err != nil {
			return r, err
		}
	}
	path, err := s.Path()
	if err != nil {
		return r, err
	}
	r.Path.Way = path.Way
	r.Warnings = report.WarningsOf(r)
	c.table.Foot(r)
	s.ExpectClose()
	if err := c.conv.Send(&control.Bye{Last: c.last}); err != nil {
		return r, err
	}
	_, err = control.Await[*control.Bye](c.conv.Context(), c.conv)
	return r, err
}

// connect connects to the server. The ends take turns: only one sends at a time.
func (c *client) connect(ctx context.Context, s load.End) error {
	var own []*control.End
	if err := s.Offer(func(e *control.End) error { own = append(own, e); return nil }); err != nil {
		return err
	}
	receive := func() (*control.End, error) { return control.Await[*control.End](ctx, c.conv) }
	if err := s.Connect(receive, load.DialTo{Host: c.peer.String(), Local: c.device.local}); err != nil {
		return err
	}
	for _, e := range own {
		if err := c.conv.Send(e); err != nil {
			return err
		}
	}
	if err := s.WaitReady(); err != nil {
		return err
	}
	_, err := control.Await[*control.Connected](ctx, c.conv)
	return err
}

func (c *client) newReport(s load.End, server *control.Host) (*report.Report, error) {
	own, err := c.device.host(s.GID())
	if err != nil {
		return nil, err
	}
	path, err := s.Path()
	if err != nil {
		return nil, err
	}
	server.Sanitize()
	return &report.Report{
		Format: report.Format, Version: report.Version, Time: time.Now().UTC().Round(time.Second), Plan: *c.plan, Client: own, Server: *server,
		Path: report.Path{Local: path.Local.String(), Peer: path.Peer.String(), MTU: int(path.MTU), Inline: path.Inline},
	}, nil
}

// step measures one size.
func (c *client) step(s load.End, i int) (*report.Result, error) {
	if err := s.Prepare(i); err != nil {
		return nil, err
	}
	g := newCounterSnapshot(c.device)
	if err := c.conv.Send(&control.Begin{Step: i}); err != nil {
		return nil, err
	}
	if _, err := control.Await[*control.Ready](s.Context(), c.conv); err != nil {
		return nil, err
	}
	samples, err := s.Measure()
	if err != nil {
		return nil, err
	}
	if err := c.conv.Send(&control.Stop{}); err != nil {
		return nil, err
	}
	outcome, err := control.Await[*control.Outcome](s.Context(), c.conv)
	if err != nil {
		return nil, err
	}
	outcome.Sanitize()
	res := resultOf(c.plan, i, load.Sum(samples).With(outcome.Operations, outcome.Rate, outcome.Peak), g)
	res.Server = report.Usage{Busy: outcome.Busy, Counters: outcome.Counters, Swapped: outcome.Swapped}
	if res.Rate > 0 {
		res.Server.CPU = 1e9 * outcome.Busy / res.Rate
	}
	if c.plan.Verify {
		checked, damage, err := s.Verified()
		if err != nil {
			return nil, err
		}
		res.Checked = checked + outcome.Checked
		switch {
		case damage != "":
			res.Damage = "at the client: " + damage
		case outcome.Damage != "":
			res.Damage = "at the server: " + outcome.Damage
		case res.Checked == 0:
			res.Damage = "nothing was verified"
		}
	}
	return res, nil
}

// resultOf is the result of a step, without the server's part.
func resultOf(p *plan.Plan, step int, f load.Figures, g *counterSnapshot) *report.Result {
	round, size := p.Step(step)
	res := &report.Result{
		Round: round, Size: size, Operations: f.Operations, Seconds: f.Elapsed.Seconds(),
		Rate: f.Rate, Bandwidth: f.Rate * float64(size), Peak: f.Peak * float64(size), Client: report.Usage{Busy: f.Busy},
	}
	res.Client.Counters, res.Client.Swapped = g.changes()
	if f.Rate > 0 {
		res.Client.CPU = 1e9 * f.Busy / f.Rate
	}
	if f.Latency != nil {
		res.Latency = report.LatencyOf(f.Latency)
	}
	return res
}

package perf

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/load"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/perftest"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
	"github.com/verbena-rdma/verbena/verbs"
)

// checkPerftest checks a plan for a peer that is a program of perftest. Such a program does not
// announce its test, so both ends need the same flags; it measures one test of one size.
func checkPerftest(plans []*plan.Plan, cm bool) error {
	p := plans[0]
	if err := perftest.Check(p.Test); err != nil {
		return err
	}
	switch {
	case len(plans) != 1 || len(p.Sizes) != 1 || p.Rounds != 1 || p.Connections != 1:
		return errors.New("-perftest allows only one test, with one size, on one connection")
	case p.Bidirectional || p.Verify || cm || p.Duration != 0:
		return errors.New("-perftest cannot be used with -b, -verify, -R or -D")
	case p.Iterations < 5:
		return errors.New("-perftest needs at least 5 operations, the minimum of the perftest programs")
	case p.Iterations%int64(p.Batch) != 0:
		return fmt.Errorf("with -perftest the number of operations, %d, must be a multiple of the batch size, %d, because the other end counts them", p.Iterations, p.Batch)
	}
	p.WarmUp = 0 // likewise
	return nil
}

// perftestRun is a test whose other end is a program of perftest.
type perftestRun struct {
	o      *options
	plan   *plan.Plan
	device *openDevice
	stream net.Conn
}

// open exchanges keys with the other end, and connects. The session is then ready for the
// test.
func (f *perftestRun) open(ctx context.Context, server bool) (s *load.Endpoint, session *perftest.Session, peer netip.Addr, err error) {
	endpoint, err := load.Open(ctx, load.Config{Device: f.device.dev, Port: f.device.port, GIDIndex: f.device.gid, Plan: f.plan, Server: server, Timeout: f.o.timeout, Perftest: true})
	if err != nil {
		return nil, nil, peer, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, endpoint.Close())
		}
	}()
	var psn [4]byte
	_, _ = rand.Read(psn[:]) // never fails
	own, mtu, err := endpoint.OfferRaw(binary.NativeEndian.Uint32(psn[:]))
	if err != nil {
		return nil, nil, peer, err
	}
	if session, err = perftest.New(f.stream, f.plan.Test, server); err != nil {
		return nil, nil, peer, err
	}
	_ = f.stream.SetDeadline(time.Now().Add(f.o.timeout))
	keys, mtu, err := session.Open(perftest.Keys{
		LID: own.LID, Reads: uint16(own.Reads), QPN: own.QPN, PSN: own.PSN, RKey: own.RKey, Addr: own.Addr, GID: own.GID,
	}, mtu)
	if err != nil {
		return nil, nil, peer, err
	}
	gid := verbs.GID(keys.GID)
	if err = endpoint.ConnectRaw(own, load.RawEnd{QPN: keys.QPN, PSN: keys.PSN, RKey: keys.RKey, Addr: keys.Addr, GID: gid, LID: keys.LID, Reads: int(keys.Reads)}, mtu); err != nil {
		return nil, nil, peer, err
	}
	if err = endpoint.Prepare(0); err != nil {
		return nil, nil, peer, err
	}
	if err = session.Begin(); err != nil {
		return nil, nil, peer, err
	}
	_ = f.stream.SetDeadline(time.Time{})
	return endpoint, session, gid.Addr(), nil
}

// measurePerftest measures as the client of a program of perftest.
func measurePerftest(ctx context.Context, o *options, table *report.Table) (reports []*report.Report, err error) {
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
	stream, err := dialTCP(ctx, o, "a program of perftest", net.JoinHostPort(addr.String(), port))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	f := &perftestRun{o: o, plan: o.plans[0], device: d, stream: stream}
	s, session, peer, err := f.open(ctx, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c := &client{o: o, device: d, plan: f.plan, table: table, peer: addr}
	r, err := c.newReport(s, &control.Host{Device: "a perftest program", Link: "?", GID: peer.String(), GIDIndex: -1})
	if err != nil {
		return nil, err
	}
	table.Head(r)
	g := newCounterSnapshot(d)
	samples, err := s.Measure()
	if err != nil {
		return nil, err
	}
	res := resultOf(f.plan, 0, load.Sum(samples), g)
	s.ExpectClose() // the other end may close its queue pair
	const mega = 1 << 20
	_ = stream.SetDeadline(time.Now().Add(o.timeout))
	err = session.End(perftest.Result{Size: uint64(res.Size), Operations: uint64(res.Operations), Peak: res.Peak / mega, Average: res.Bandwidth / mega, Rate: res.Rate / 1e6})
	r.Results = append(r.Results, *res)
	table.Row(f.plan, res)
	if o.counters {
		table.Counters(res)
	}
	r.Warnings = report.WarningsOf(r)
	table.Foot(r)
	return []*report.Report{r}, err
}

// servePerftest serves one program of perftest.
func servePerftest(ctx context.Context, o *options, stdout io.Writer) (err error) {
	var cfg net.ListenConfig
	l, err := cfg.Listen(ctx, "tcp", net.JoinHostPort(o.bind, strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("listen for a client: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	_, _ = fmt.Fprintf(stdout, "listening %v: interrupt to stop\n", l.Addr())
	stream, err := l.Accept()
	_ = l.Close()
	if err != nil {
		return fmt.Errorf("wait for a client: %w", err)
	}
	defer func() { _ = stream.Close() }()
	hangUp := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer hangUp()
	peer := stream.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	d, err := open(o, peer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	f := &perftestRun{o: o, plan: o.plans[0], device: d, stream: stream}
	s, session, gid, err := f.open(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	_, _ = fmt.Fprintf(stdout, "serving %v: %v, which measures\n", gid, f.plan.Test)
	failed := context.AfterFunc(s.Context(), func() { _ = stream.Close() })
	defer failed()
	if session.Goodbye() {
		err = session.End(perftest.Result{})
	} else if _, err = s.Measure(); err == nil { // write_lat, in which the server writes first
		session.WaitGone()
	}
	if cause := context.Cause(s.Context()); cause != nil {
		return cause // the reason why the stream was closed
	}
	s.ExpectClose()
	return err
}

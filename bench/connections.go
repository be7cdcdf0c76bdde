package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/footprint"
	"github.com/verbena-rdma/verbena/bench/internal/median"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// The smaller number of other connections, and the sizes of the pools.
const (
	fewOthers  = 10
	smallPools = 16
	largePools = 10000
	// settleTime lets connections that wait for their peer back off before a measurement.
	settleTime = time.Second
)

// contextPair is two contexts, on two devices and one engine, with many connections between
// them. One goroutine does all work of both ends.
type contextPair struct {
	*pe.Engine
	x, y   *endpoint
	others []*rdma.Connection // of x
}

// otherState is the state of the other connections while one is active.
type otherState struct {
	name  string
	about string
	add   func(c *contextPair, n int) error
}

var otherStates = []otherState{
	{"idle", "Ready, with nothing to do", (*contextPair).addReady},
	{"exported", "exported at both ends, never connected", (*contextPair).addExported},
	{"half-open", "Connecting, with a peer that never connects", (*contextPair).addHalfOpen},
	{"no peer", "Connecting, with a peer whose device has been closed", (*contextPair).addPeerClosed},
	{"not ready", "a send waits for a receive that never comes", (*contextPair).addNotReady},
}

func newContextPair(o options, connections, tasks int) (c *contextPair, err error) {
	c = &contextPair{Engine: pe.New(pe.Config{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.x, err = c.open(o, connections, tasks); err != nil {
		return c, err
	}
	c.y, err = c.open(o, connections, tasks)
	return c, err
}

// open opens one end, and starts its context.
func (c *contextPair) open(o options, connections, tasks int) (_ *endpoint, err error) {
	e := &endpoint{engine: c.Engine, counters: o.counters}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.dev, err = device.Open(o.device); err != nil {
		return nil, err
	}
	if e.local, err = mmap.Alloc(e.dev, pingMemory, mmap.LocalReadWrite|access); err != nil {
		return nil, err
	}
	if e.bufs, err = bufinv.New(2 * tasks); err != nil {
		return nil, err
	}
	if e.rdma, err = rdma.New(e.dev, rdma.Config{Engine: c.Engine, Permissions: access, MaxConnections: connections}); err != nil {
		return nil, err
	}
	if err = e.makePool(2 * tasks); err != nil { // for writes and for messages
		return nil, err
	}
	if _, err = e.rdma.ReceivePool(tasks, pe.FreeTask, pe.FailContext); err != nil {
		return nil, err
	}
	if err = e.rdma.Start(); err != nil {
		return nil, err
	}
	return e, waitRunning(e)
}

func (c *contextPair) close() error {
	var errs []error
	for _, e := range []*endpoint{c.x, c.y} {
		if e != nil {
			errs = append(errs, e.close())
		}
	}
	return errors.Join(append(errs, c.Engine.Close())...)
}

// export makes the two ends of a connection.
func (c *contextPair) export() (x, y *rdma.Connection, xDesc, yDesc []byte, err error) {
	if x, xDesc, err = c.x.rdma.Export(); err == nil {
		y, yDesc, err = c.y.rdma.Export()
	}
	return x, y, xDesc, yDesc, err
}

// connect makes n connections and waits until they are Ready at both ends.
func (c *contextPair) connect(n int) (xs, ys []*rdma.Connection, err error) {
	for range n {
		x, y, xDesc, yDesc, err := c.export()
		if err == nil {
			err = errors.Join(x.Connect(yDesc), y.Connect(xDesc))
		}
		if err != nil {
			return nil, nil, err
		}
		xs, ys = append(xs, x), append(ys, y)
		if err := c.progress(); err != nil {
			return nil, nil, err
		}
	}
	for _, conn := range append(slices.Clone(xs), ys...) {
		for conn.State() != rdma.Ready {
			if err := errors.Join(c.progress(), conn.Err()); err != nil {
				return nil, nil, err
			}
		}
	}
	return xs, ys, nil
}

func (c *contextPair) progress() error {
	if err := c.x.progress(); err != nil {
		return err
	}
	return c.y.rdma.Err()
}

func (c *contextPair) addReady(n int) (err error) {
	c.others, _, err = c.connect(n)
	return err
}

func (c *contextPair) addExported(n int) error {
	for range n {
		if _, _, _, _, err := c.export(); err != nil {
			return err
		}
	}
	return nil
}

func (c *contextPair) addHalfOpen(n int) error {
	for range n {
		x, _, _, yDesc, err := c.export()
		if err == nil {
			err = errors.Join(x.Connect(yDesc), c.progress())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addPeerClosed connects to a context that has been closed, with its device.
func (c *contextPair) addPeerClosed(n int) error {
	gone, err := c.open(options{device: c.x.dev.Name()}, n, 1)
	if err != nil {
		return err
	}
	var descs [][]byte
	for range n {
		_, desc, e := gone.rdma.Export()
		err = errors.Join(err, e)
		descs = append(descs, desc)
	}
	gone.engine = nil // the pair owns it
	if err = errors.Join(err, gone.close()); err != nil {
		return err
	}
	for _, desc := range descs {
		x, _, err := c.x.rdma.Export()
		if err == nil {
			err = errors.Join(x.Connect(desc), c.progress())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *contextPair) addNotReady(n int) error {
	if err := c.addReady(n); err != nil {
		return err
	}
	for _, conn := range c.others {
		t, err := c.x.pool.Send(conn, nil)
		if err == nil {
			err = errors.Join(t.Submit(), c.progress())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// activate makes the connection that is measured.
func (c *contextPair) activate() (x, y *pinger, err error) {
	xs, ys, err := c.connect(1)
	if err != nil {
		return nil, nil, err
	}
	c.x.conn, c.y.conn = xs[0], ys[0]
	for _, side := range []struct{ e, peer *endpoint }{{c.x, c.y}, {c.y, c.x}} {
		desc, err := side.peer.local.Export(side.peer.dev)
		if err != nil {
			return nil, nil, err
		}
		if side.e.remote, err = mmap.Import(side.e.dev, desc); err != nil {
			return nil, nil, err
		}
	}
	if x, err = newPinger(c.x); err == nil {
		y, err = newPinger(c.y)
	}
	return x, y, err
}

// tripTimes are the results of round trips on one connection.
type tripTimes struct {
	median, tail, mean time.Duration
	used               time.Duration // processor time of each, at both ends
}

// roundTrips measures pairs of 8-byte writes, there and back.
func (c *contextPair) roundTrips(x, y *pinger, next *uint64, d time.Duration) (f tripTimes, err error) {
	var samples []time.Duration
	begin, before := time.Now(), processor.Time()
	now := begin
	for len(samples) == 0 || now.Sub(begin) < d {
		*next++
		for _, way := range []struct{ from, to *pinger }{{x, y}, {y, x}} {
			if err := way.from.write(*next); err != nil {
				return f, err
			}
			for atomic.LoadUint64(way.to.received) != *next {
				if err := c.progress(); err != nil {
					return f, err
				}
			}
		}
		start := now
		now = time.Now()
		if len(samples) < maxSamples {
			samples = append(samples, now.Sub(start))
		}
		f.mean++
	}
	f.used = (processor.Time() - before) / f.mean
	f.mean = now.Sub(begin) / f.mean
	slices.Sort(samples)
	f.median, f.tail = samples[len(samples)/2], samples[len(samples)*99/100]
	return f, nil
}

// roundTripsBeside measures one connection while n others are in the given state.
func roundTripsBeside(o options, b otherState, n int) (f tripTimes, err error) {
	c, err := newContextPair(o, n+1, max(largePools, n))
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	x, y, err := c.activate()
	if err != nil {
		return f, err
	}
	if err := b.add(c, n); err != nil {
		return f, err
	}
	runtime.GC()
	next := uint64(0)
	if _, err := c.roundTrips(x, y, &next, min(settleTime, 5*o.duration)); err != nil {
		return f, err
	}
	return c.roundTrips(x, y, &next, o.duration)
}

// heapPerConnection makes connections. It returns the heap for each at one end, with its share
// of the pools, and the time for all of them.
func heapPerConnection(o options, tasks int) (perConnection float64, took time.Duration, err error) {
	before := footprint.Heap()
	begin := time.Now()
	c, err := newContextPair(o, o.connections, tasks)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if _, _, err := c.connect(o.connections); err != nil {
		return 0, 0, err
	}
	took = time.Since(begin)
	return float64(footprint.Heap()-before) / float64(2*o.connections), took, nil
}

// manyConnections shows the cost of idle connections: their memory, and their effect on the
// round trips of an active connection.
func manyConnections(o options) (string, error) {
	var b strings.Builder
	const indent = "\n            "
	fmt.Fprintf(&b, "%d connections in one context, both ends on one goroutine", o.connections)
	for _, tasks := range []int{smallPools, largePools} {
		heap, took, err := heapPerConnection(o, tasks)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, indent+"%5d tasks in each of 3 pools: %5.1f KiB of heap for each connection at one end, %v to connect all",
			tasks, heap/1024, took.Round(time.Millisecond))
	}
	fmt.Fprintf(&b, indent+"a round trip of 8-byte writes, in µs; medians of %d rounds, and their ratios", o.rounds)
	fmt.Fprintf(&b, indent+"%-10s %6s %7s %7s %7s %10s   %s", "beside", "", "median", "mean", "99 %", "processor", "ratios of median, mean, processor")
	for _, s := range otherStates {
		if o.only != "" && o.only != s.name {
			continue
		}
		table, err := compareBeside(o, s)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s.name, err)
		}
		b.WriteString(table)
	}
	return b.String(), nil
}

// compareBeside measures an active connection alternately with few and with many other
// connections.
func compareBeside(o options, s otherState) (string, error) {
	counts := [2]int{min(fewOthers, o.connections), o.connections}
	figures := []func(tripTimes) time.Duration{
		func(f tripTimes) time.Duration { return f.median },
		func(f tripTimes) time.Duration { return f.mean },
		func(f tripTimes) time.Duration { return f.tail },
		func(f tripTimes) time.Duration { return f.used },
	}
	values := [2][][]float64{make([][]float64, len(figures)), make([][]float64, len(figures))}
	ratios := make([][]float64, len(figures))
	for range o.rounds {
		for i, n := range counts {
			f, err := roundTripsBeside(o, s, n)
			if err != nil {
				return "", fmt.Errorf("with %d other connections: %w", n, err)
			}
			for k, figure := range figures {
				values[i][k] = append(values[i][k], float64(figure(f).Nanoseconds())/1000)
			}
		}
		for k := range figures {
			last := len(values[0][k]) - 1
			ratios[k] = append(ratios[k], values[1][k][last]/max(values[0][k][last], 0.001))
		}
	}
	var b strings.Builder
	for i, n := range counts {
		fmt.Fprintf(&b, "\n            %-10s %6d %7.2f %7.2f %7.2f %10.2f", s.name, n,
			median.Of(values[i][0]), median.Of(values[i][1]), median.Of(values[i][2]), median.Of(values[i][3]))
	}
	fmt.Fprintf(&b, "   %.2f %.2f %.2f  (%s)", median.Of(ratios[0]), median.Of(ratios[1]), median.Of(ratios[3]), s.about)
	return b.String(), nil
}

package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Connections beside the active one, and the sizes of the pools.
const (
	fewBeside  = 10
	smallPools = 16
	largePools = 10000
	// settleTime lets connections that wait for their peer back off before a measurement.
	settleTime = time.Second
)

// crowd is two contexts, on two devices and one engine, with many connections between them.
// One goroutine does all work of both ends.
type crowd struct {
	*pe.Engine
	x, y   *endpoint
	beside []*rdma.Connection // of x
}

// beside is the state of the other connections while one is active.
type beside struct {
	name  string
	about string
	add   func(c *crowd, n int) error
}

var besides = []beside{
	{"idle", "Ready, with nothing to do", (*crowd).addReady},
	{"exported", "exported at both ends, never connected", (*crowd).addExported},
	{"half-open", "Connecting, with a peer that never connects", (*crowd).addHalfOpen},
	{"no peer", "Connecting, with a peer whose device has been closed", (*crowd).addOrphans},
	{"not ready", "a send waits for a receive that never comes", (*crowd).addNotReady},
}

func newCrowd(o options, connections, tasks int) (c *crowd, err error) {
	c = &crowd{Engine: pe.New(pe.Config{})}
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
func (c *crowd) open(o options, connections, tasks int) (_ *endpoint, err error) {
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

func (c *crowd) close() error {
	var errs []error
	for _, e := range []*endpoint{c.x, c.y} {
		if e != nil {
			errs = append(errs, e.close())
		}
	}
	return errors.Join(append(errs, c.Engine.Close())...)
}

// export makes the two ends of a connection.
func (c *crowd) export() (x, y *rdma.Connection, xDesc, yDesc []byte, err error) {
	if x, xDesc, err = c.x.rdma.Export(); err == nil {
		y, yDesc, err = c.y.rdma.Export()
	}
	return x, y, xDesc, yDesc, err
}

// connect makes n connections and waits until they are Ready at both ends.
func (c *crowd) connect(n int) (xs, ys []*rdma.Connection, err error) {
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

func (c *crowd) progress() error {
	if err := c.x.progress(); err != nil {
		return err
	}
	return c.y.rdma.Err()
}

func (c *crowd) addReady(n int) (err error) {
	c.beside, _, err = c.connect(n)
	return err
}

func (c *crowd) addExported(n int) error {
	for range n {
		if _, _, _, _, err := c.export(); err != nil {
			return err
		}
	}
	return nil
}

func (c *crowd) addHalfOpen(n int) error {
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

// addOrphans connects to a context that has been closed, with its device.
func (c *crowd) addOrphans(n int) error {
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
	gone.engine = nil // the crowd owns it
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

func (c *crowd) addNotReady(n int) error {
	if err := c.addReady(n); err != nil {
		return err
	}
	for _, conn := range c.beside {
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
func (c *crowd) activate() (x, y *pinger, err error) {
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

// trips are the results of round trips on one connection.
type trips struct {
	median, tail, mean time.Duration
	used               time.Duration // processor time of each, at both ends
}

// roundTrips measures pairs of 8-byte writes, there and back.
func (c *crowd) roundTrips(x, y *pinger, next *uint64, d time.Duration) (f trips, err error) {
	var samples []time.Duration
	begin, before := time.Now(), cpuTime()
	now := begin
	for len(samples) == 0 || now.Sub(begin) < d {
		*next++
		for _, way := range []struct{ from, to *pinger }{{x, y}, {y, x}} {
			if err := way.from.hit(*next); err != nil {
				return f, err
			}
			for atomic.LoadUint64(way.to.ball) != *next {
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
	f.used = (cpuTime() - before) / f.mean
	f.mean = now.Sub(begin) / f.mean
	slices.Sort(samples)
	f.median, f.tail = samples[len(samples)/2], samples[len(samples)*99/100]
	return f, nil
}

// tripsBeside measures one connection while n others are in the given state.
func tripsBeside(o options, b beside, n int) (f trips, err error) {
	c, err := newCrowd(o, n+1, max(largePools, n))
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

// heapOf makes connections. It returns the heap for each at one end, with its share of the
// pools, and the time for all of them.
func heapOf(o options, tasks int) (perConnection float64, took time.Duration, err error) {
	before := heap()
	begin := time.Now()
	c, err := newCrowd(o, o.connections, tasks)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if _, _, err := c.connect(o.connections); err != nil {
		return 0, 0, err
	}
	took = time.Since(begin)
	return float64(heap()-before) / float64(2*o.connections), took, nil
}

// heap returns the size of the live heap, in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// manyConnections shows the cost of idle connections: their memory, and their effect on the
// round trips of an active connection.
func manyConnections(o options) (string, error) {
	var b strings.Builder
	const indent = "\n            "
	fmt.Fprintf(&b, "%d connections in one context, both ends on one goroutine", o.connections)
	for _, tasks := range []int{smallPools, largePools} {
		heap, took, err := heapOf(o, tasks)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, indent+"%5d tasks in each of 3 pools: %5.1f KiB of heap for each connection at one end, %v to connect all",
			tasks, heap/1024, took.Round(time.Millisecond))
	}
	fmt.Fprintf(&b, indent+"a round trip of 8-byte writes, in µs; medians of %d rounds, and their ratios", o.rounds)
	fmt.Fprintf(&b, indent+"%-10s %6s %7s %7s %7s %10s   %s", "beside", "", "median", "mean", "99 %", "processor", "ratios of median, mean, processor")
	for _, s := range besides {
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

// compareBeside compares an active connection beside few and beside many others, measured
// alternately.
func compareBeside(o options, s beside) (string, error) {
	counts := [2]int{min(fewBeside, o.connections), o.connections}
	figures := []func(trips) time.Duration{
		func(f trips) time.Duration { return f.median },
		func(f trips) time.Duration { return f.mean },
		func(f trips) time.Duration { return f.tail },
		func(f trips) time.Duration { return f.used },
	}
	values := [2][][]float64{make([][]float64, len(figures)), make([][]float64, len(figures))}
	ratios := make([][]float64, len(figures))
	for range o.rounds {
		for i, n := range counts {
			f, err := tripsBeside(o, s, n)
			if err != nil {
				return "", fmt.Errorf("%d beside: %w", n, err)
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
			middle(values[i][0]), middle(values[i][1]), middle(values[i][2]), middle(values[i][3]))
	}
	fmt.Fprintf(&b, "   %.2f %.2f %.2f  (%s)", middle(ratios[0]), middle(ratios[1]), middle(ratios[3]), s.about)
	return b.String(), nil
}

// middle returns the median. It sorts values.
func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/median"
	"github.com/verbena-rdma/verbena/rdma"
)

// dialer is a context pair whose y listens and whose x dials.
type dialer struct {
	*contextPair
	addr   string
	ready  int // at both ends
	closed int
	failed error
}

func newDialer(o options) (*dialer, error) {
	c, err := newContextPair(o, o.connections, smallPools)
	if err != nil {
		return nil, err
	}
	d := &dialer{contextPair: c}
	for _, e := range []*endpoint{c.x, c.y} {
		e.rdma.OnConnection(func(_ *rdma.Connection, s rdma.ConnectionState, err error) {
			switch s {
			case rdma.Ready:
				d.ready++
			case rdma.Closed:
				d.closed++
			case rdma.Failed:
				d.failed = err
			}
		})
	}
	l, err := c.y.rdma.Listen(":0", rdma.ListenConfig{Backlog: o.connections})
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	d.addr = netip.AddrPortFrom(c.y.rdma.GID().GID.Addr(), l.Addr().Port()).String()
	return d, nil
}

// until drives both ends until done returns true.
func (d *dialer) until(done func() bool) error {
	for !done() {
		if err := errors.Join(d.progress(), d.failed); err != nil {
			return err
		}
	}
	return nil
}

// dialAll dials n connections at the same moment, and closes them. It returns the time until
// all are Ready at both ends.
func (d *dialer) dialAll(n int) (time.Duration, error) {
	d.ready, d.closed = 0, 0
	start := time.Now()
	for range n {
		if _, err := d.x.rdma.Dial(d.addr, rdma.DialConfig{}); err != nil {
			return 0, err
		}
	}
	if err := d.until(func() bool { return d.ready == 2*n }); err != nil {
		return 0, err
	}
	took := time.Since(start)
	for _, conn := range d.x.rdma.List() {
		if err := conn.Close(); err != nil {
			return 0, err
		}
	}
	return took, d.until(func() bool { return d.closed == 2*n })
}

// dialRates measures how fast connections are made by address, with both ends in one process.
func dialRates(o options) (figures string, err error) {
	d, err := newDialer(o)
	if errors.Is(err, rdma.ErrNotSupported) {
		return "the device has no connection manager", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	begin, cycles := time.Now(), 0
	var connecting time.Duration
	for time.Since(begin) < o.duration {
		took, err := d.dialAll(1)
		if err != nil {
			return "", err
		}
		connecting += took
		cycles++
	}
	cycle := time.Since(begin)
	figures = fmt.Sprintf("one after another: %.0f µs to connect, %.0f µs with closing", micros(connecting, cycles), micros(cycle, cycles))
	for _, at := range []int{min(1000, o.connections), o.connections} {
		var all []float64
		for range o.rounds {
			took, err := d.dialAll(at)
			if err != nil {
				return "", err
			}
			all = append(all, took.Seconds())
		}
		figures += fmt.Sprintf("; %d at once: %.0f ms, %.0f µs each", at, median.Of(all)*1e3, median.Of(all)*1e6/float64(at))
	}
	return figures, nil
}

func micros(d time.Duration, n int) float64 { return float64(d.Microseconds()) / float64(n) }

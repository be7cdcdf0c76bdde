package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/rdma"
)

const (
	pingTasks  = 16
	pingMemory = 4096
	pingSize   = 8
	pingSource = 64 // where the words to be sent begin, behind the ball
	maxSamples = 1 << 20
)

// pinger writes a number to the peer, which writes it back.
type pinger struct {
	*endpoint
	tasks []*rdma.WriteTask
	all   []rdma.Task // the same
	next  int
}

func newPinger(e *endpoint) (*pinger, error) {
	p := &pinger{endpoint: e}
	for i := range pingTasks {
		t, err := e.writes.Alloc(e.conn, e.bufs.Source(e.local, pingSource+i*pingSize, pingSize), e.bufs.Target(e.remote, 0, pingSize))
		if err != nil {
			return nil, err
		}
		p.tasks = append(p.tasks, t)
		p.all = append(p.all, t)
	}
	return p, nil
}

func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }

// ball is the number that the peer wrote last.
func (p *pinger) ball() uint64 { return atomic.LoadUint64(word(p.local.Bytes())) }

// hit writes n to the peer.
func (p *pinger) hit(n uint64) error {
	t := p.tasks[p.next]
	for t.InFlight() {
		if err := p.progress(); err != nil {
			return err
		}
	}
	atomic.StoreUint64(word(p.local.Bytes()[pingSource+p.next*pingSize:]), n)
	p.next = (p.next + 1) % pingTasks
	return t.Submit()
}

func writeLatency(o options) (string, error) {
	return withPeer(o, pingTasks, pingMemory, func(e *endpoint) (string, error) {
		p, err := newPinger(e)
		if err != nil {
			return "", err
		}
		samples := make([]time.Duration, 0, maxSamples)
		begin := time.Now()
		for n := uint64(1); len(samples) < maxSamples && time.Since(begin) < warmUp+o.duration; n++ {
			start := time.Now()
			if err := p.hit(n); err != nil {
				return "", err
			}
			for p.ball() != n {
				if err := p.progress(); err != nil {
					return "", err
				}
			}
			if now := time.Now(); now.Sub(begin) > warmUp {
				samples = append(samples, now.Sub(start)/2)
			}
		}
		if err := e.stop(p.all); err != nil {
			return "", err
		}
		if len(samples) == 0 {
			return "", fmt.Errorf("no round trip was finished in %v", o.duration)
		}
		slices.Sort(samples)
		at := func(q float64) float64 {
			return float64(samples[int(q*float64(len(samples)-1))].Nanoseconds()) / 1000
		}
		return fmt.Sprintf("%.2f µs median, %.2f µs least, %.2f µs at 99 %%, %d round trips", at(0.5), at(0), at(0.99), len(samples)), nil
	})
}

// servePing writes every number back.
func servePing(o options) error {
	return serve(o, pingTasks, pingMemory, func(ctx context.Context, e *endpoint) error {
		if err := waitRunning(e); err != nil {
			return err
		}
		p, err := newPinger(e)
		if err != nil {
			return err
		}
		for seen := uint64(0); ctx.Err() == nil; {
			if err := p.progress(); err != nil {
				return err
			}
			if n := p.ball(); n != seen {
				seen = n
				if err := p.hit(n); err != nil {
					return err
				}
			}
		}
		return p.stop(p.all)
	})
}

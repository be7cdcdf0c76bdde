package main

import (
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	ballSize  = 8
	ballTasks = 8 // of each kind
)

// player is one end of the ping-pong with messages.
type player struct {
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	mem    *mmap.Map
	bufs   *bufinv.Inventory
	inbox  *bufinv.Pool
	sends  *rdma.Pool
	conn   *rdma.Connection
	closer []func() error

	counters bool

	first   bool // it begins, and measures
	ball    uint64
	samples []time.Duration
	begin   time.Time
	hit     time.Time // when the ball was sent
	limit   time.Duration

	// Of players with callbacks.
	recvs *rdma.ReceivePool
	idle  []*rdma.Task

	// Of those that wait.
	receiver *await.Receiver
}

// newPlayer makes a player whose context is Starting, and the descriptors of its
// connection and its memory.
func newPlayer(o options, s style) (p *player, conn, mem []byte, err error) {
	p = &player{counters: o.counters, limit: warmUp + o.duration}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.dev, err = device.Open(o.device); err != nil {
		return p, nil, nil, err
	}
	p.closer = append(p.closer, p.dev.Close, p.showCounters)
	p.engine = pe.New(pe.Config{Spin: s.spin})
	p.closer = append(p.closer, p.engine.Close)
	if p.mem, err = mmap.Alloc(p.dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return p, nil, nil, err
	}
	p.closer = append(p.closer, p.mem.Close)
	if p.bufs, err = bufinv.New(ballTasks); err != nil {
		return p, nil, nil, err
	}
	p.closer = append(p.closer, p.bufs.Close)
	if p.inbox, err = bufinv.NewPool(p.mem, bufinv.PoolConfig{Count: ballTasks, Size: ballSize}); err != nil {
		return p, nil, nil, err
	}
	p.closer = append(p.closer, p.inbox.Close)
	if err = p.openContext(s); err != nil {
		return p, nil, nil, err
	}
	if p.conn, conn, err = p.rdma.Export(); err != nil {
		return p, nil, nil, err
	}
	mem, err = p.mem.Export(p.dev)
	return p, conn, mem, err
}

func (p *player) openContext(s style) (err error) {
	if p.rdma, err = rdma.New(p.dev, rdma.Config{EndWithLastConnection: true, Engine: p.engine}); err != nil {
		return err
	}
	p.closer = append(p.closer, p.rdma.Close)
	if err = s.prepare(p); err != nil {
		return err
	}
	return p.rdma.Start()
}

// close closes everything, in the reverse order of its making.
func (p *player) close() error {
	var errs []error
	for i := len(p.closer) - 1; i >= 0; i-- {
		errs = append(errs, p.closer[i]())
	}
	return errors.Join(errs...)
}

func (p *player) showCounters() error {
	if !p.counters {
		return nil
	}
	return (&endpoint{dev: p.dev}).showCounters()
}

// returned takes the time of a round trip, and reports whether to go on.
func (p *player) returned() bool {
	now := time.Now()
	if p.begin.IsZero() {
		p.begin = now
	}
	if now.Sub(p.begin) > warmUp && len(p.samples) < maxSamples {
		p.samples = append(p.samples, now.Sub(p.hit)/2)
	}
	return now.Sub(p.begin) < p.limit || len(p.samples) == 0
}

// source is the memory that a ball is sent from.
func (p *player) source(i int) *bufinv.Buf {
	return p.bufs.Source(p.mem, 2048+i*ballSize, ballSize)
}

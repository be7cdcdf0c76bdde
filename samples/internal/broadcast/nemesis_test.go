package broadcast_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/broadcast"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// Small chunks on slow links, for slow consumers: the ring fills up, and faults meet streams
// that are under way.
const (
	chunks    = 3 * broadcast.Slots
	chunkSize = 16 << 10
	delay     = 200 * time.Millisecond // from the arrival of a chunk until the consumer takes it
)

// serve is broadcast_server on a device, without an end.
func serve(ctx context.Context, dev verbs.Device) (err error) {
	engine := pe.New(pe.Config{})
	defer func() { err = errors.Join(err, engine.Close()) }()
	stream, err := mmap.Alloc(dev, chunks*chunkSize, mmap.LocalReadOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	const most = 16
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: most, ConnectTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	writes, err := r.Pool(broadcast.Slots*most, pe.TaskDone, pe.TaskFailed)
	if err != nil {
		return err
	}
	r.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
		if w, ok := conn.UserData().(*broadcast.Writer); ok && state == rdma.Ready {
			w.Push()
		}
	})
	clients, err := oob.Listen("cm::7471", oob.Config{Name: "broadcast_server", Expect: &oob.Expect{Maps: 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	offer := oob.Offer{Data: broadcast.Make(stream.Bytes(), chunkSize).Encode()}
	err = errors.Join(clients.Serve(r, offer, func(_ string, a *oob.Answer) error {
		conn := a.Connections[0]
		conn.SetUserData(&broadcast.Writer{Conn: conn, Ring: a.Maps[0], Stream: stream, ChunkSize: chunkSize, Tasks: writes})
		return nil
	}), r.Receive(most, 0, func(m *rdma.Message) {
		taken, _ := m.Imm()
		m.Connection().UserData().(*broadcast.Writer).Credit(taken)
	}), r.Start())
	if err != nil {
		return err
	}
	return engine.Run(ctx)
}

// consumer receives the stream again and again.
type consumer struct {
	s        *sim.Sim
	host     *sim.Host
	received int // streams
}

const (
	fullRing = "the ring of a consumer is full"
	lostHalf = "a consumer has taken a part of the stream, and loses the server"
)

func (c *consumer) run(ctx context.Context, dev verbs.Device) error {
	for ctx.Err() == nil {
		wrong, err := c.receive(ctx, dev)
		if wrong != nil {
			return wrong
		}
		if err == nil {
			c.received++
		}
		c.host.Sleep(100 * time.Millisecond)
	}
	return context.Cause(ctx)
}

// receive is broadcast_consumer on a device. wrong is set if what has arrived is not what was sent.
func (c *consumer) receive(ctx context.Context, dev verbs.Device) (wrong, err error) {
	engine := pe.New(pe.Config{})
	defer func() { err = errors.Join(err, engine.Close()) }()
	ring, err := mmap.Alloc(dev, broadcast.Slots*chunkSize, mmap.LocalReadWrite|mmap.RemoteWrite)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ring.Close()) }()
	r, err := rdma.New(dev, rdma.Config{Engine: engine, ConnectTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	credits, err := broadcast.NewCredits(r)
	if err != nil {
		return nil, err
	}
	peer, err := oob.Open("cm:10.0.0.1:7471", oob.Config{Name: "consumer", Peer: "broadcast_server"})
	if err != nil {
		return nil, err
	}
	var check *broadcast.Check
	arrived := uint32(0)
	defer func() { c.s.Sometimes(err != nil && check != nil && check.Taken > 0, lostHalf) }()
	r.OnConnection(func(_ *rdma.Connection, _ rdma.ConnectionState, err error) { r.Fail(err) })
	r.OnStateChange(func(_, next pe.State) {
		if next != pe.Starting {
			return
		}
		peer.Exchange(ctx, r, oob.Offer{Maps: []*mmap.Map{ring}}, func(a *oob.Answer, err error) {
			if err == nil {
				check, err = broadcast.Decode(a.Data, chunkSize)
			}
			if err == nil {
				credits.Begin(a.Connections[0], check.Chunks)
			}
			r.Fail(err)
		})
	})
	take := func() {
		if r.State() != pe.Running {
			return
		}
		wrong = errors.Join(wrong, check.Take(ring.Bytes()))
		r.Fail(wrong)
		credits.Give(check.Taken)
	}
	err = errors.Join(r.Receive(broadcast.Slots, 0, func(m *rdma.Message) {
		wrong = errors.Join(wrong, check.Arrive(m))
		arrived++
		c.s.Sometimes(arrived-check.Taken == broadcast.Slots, fullRing)
		r.Fail(wrong)
		c.host.Go(func() {
			c.host.Sleep(delay)
			_ = engine.Do(take) // fails if the stream has ended meanwhile
		})
	}), r.Start())
	if err == nil {
		err = engine.Run(ctx)
	}
	return wrong, err
}

// No consumer ever takes a wrong chunk, and all receive the stream in the end.
func TestNemesis(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		s.SetDefaultLink(sim.LinkConfig{Latency: 100 * time.Microsecond, Rate: 1e6, Queue: 1 << 20, Loss: 0.001})
		server := s.Host("server")
		server.Run(serve)
		consumers := make([]*consumer, 2)
		for i := range consumers {
			consumers[i] = &consumer{s: s, host: s.Host(fmt.Sprint("consumer", i))}
			consumers[i].host.Run(consumers[i].run)
		}
		chaos := s.Nemesis(sim.Chaos{Interval: time.Second, Longest: 6 * time.Second, Until: 5 * time.Second})
		s.RunUntil(func() bool {
			s.Sometimes(server.Starts() > 1, "the server restarts")
			s.Sometimes(consumers[0].host.Starts() > 1 && consumers[1].host.Starts() == 1, "one consumer of two restarts")
			return chaos.Done()
		}, time.Minute)
		for _, c := range consumers {
			goal := c.received + 1
			s.RunUntil(func() bool { return c.received >= goal }, time.Minute)
		}
	})
}

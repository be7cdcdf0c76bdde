package kv_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/samples/internal/kv"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// serve is kv_server on a device. It calls revoked when it takes slots back from a client that has gone.
func serve(ctx context.Context, dev verbs.Device, revoked func()) (err error) {
	engine := pe.New(pe.Config{})
	defer func() { err = errors.Join(err, engine.Close()) }()
	memory, err := mmap.Alloc(dev, kv.Slots*kv.SlotSize, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: kv.MaxClients, ConnectTimeout: 10 * time.Second, Permissions: mmap.RemoteRead})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	table := kv.NewTable(memory.Bytes())
	answers, err := r.Pool(2*kv.Window*kv.MaxClients, pe.FreeTask, func(t *rdma.Task, _ error) { pe.FreeTask(t) })
	if err != nil {
		return err
	}
	r.OnConnection(func(client *rdma.Connection, state rdma.ConnectionState, _ error) {
		if own, ok := client.UserData().(kv.Granted); ok && state == rdma.Closed {
			table.Revoke(own)
			if len(own) > 0 {
				revoked()
			}
		}
	})
	clients, err := oob.Listen("cm::7471", oob.Config{Name: "kv_server"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clients.Close()) }()
	err = clients.Serve(r, oob.Offer{Maps: []*mmap.Map{memory}}, func(_ string, a *oob.Answer) error {
		a.Connections[0].SetUserData(kv.Granted{})
		return nil
	})
	request := func(m *rdma.Message) {
		imm, _ := m.Imm()
		client, tag, slot := m.Connection(), imm&^kv.NoSlot, imm&kv.NoSlot
		own := client.UserData().(kv.Granted)
		switch {
		case m.Opcode() == rdma.ReceivedWriteImm && !own[slot]:
			_ = client.Close()
			return
		case m.Opcode() == rdma.ReceivedWriteImm:
			table.Publish(slot, own)
			slot = table.Grant(own)
		case m.Length() > 0:
			slot = table.Find(m.Bytes())
		default:
			slot = table.Grant(own)
		}
		if task, err := answers.SendImm(client, nil, tag|slot); pe.SubmitOrFree(task, err) != nil {
			_ = client.Close()
		}
	}
	if err := errors.Join(err, r.Receive(kv.Window*kv.MaxClients, kv.KeySize, request), r.Start()); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// client puts and gets values, and connects again when its connection has ended.
type client struct {
	host  *sim.Host
	ended int // operations
	key   string
}

func (c *client) run(ctx context.Context, dev verbs.Device) error {
	for ctx.Err() == nil {
		if err := c.session(ctx, dev); errors.Is(err, errWrong) {
			return err
		}
		c.host.Sleep(100 * time.Millisecond)
	}
	return context.Cause(ctx)
}

var errWrong = errors.New("a value is wrong")

func (c *client) session(ctx context.Context, dev verbs.Device) (err error) {
	engine := pe.New(pe.Config{})
	defer func() { err = errors.Join(err, engine.Close()) }()
	local, err := mmap.Alloc(dev, kv.SlotSize, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.Close()) }()
	r, err := rdma.New(dev, rdma.Config{Engine: engine, ConnectTimeout: 10 * time.Second, EndWithLastConnection: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	k := &kv.Client{RDMA: r, Local: local}
	if k.Tasks, err = r.Pool(64, pe.TaskDone[*rdma.Task], pe.TaskFailed[*rdma.Task]); err != nil {
		return err
	}
	peer, err := oob.Open("cm:10.0.0.1:7471", oob.Config{Name: "kv_client", Peer: "kv_server", Expect: &oob.Expect{Maps: 1}})
	if err != nil {
		return err
	}
	step := k.NewStep()
	var put, get, read func() error
	slot := uint32(0)
	put = func() error {
		slot = step.Answer
		if slot == kv.NoSlot {
			return errors.New("no slot is free")
		}
		n := kv.Fill(local.Bytes(), c.key, c.host.Rand())
		task, err := k.Tasks.WriteImm(k.Conn, bufinv.Source(local, 0, n), bufinv.Target(k.Table, int(slot)*kv.SlotSize, n), slot)
		return step.Ask(task, err, get)
	}
	granted := uint32(0)
	get = func() error { // the answer to the put is the next slot
		granted = step.Answer
		task, err := k.Tasks.SendImm(k.Conn, bufinv.Source(local, 0, copy(local.Bytes(), c.key)), 0)
		return step.Ask(task, err, read)
	}
	read = func() error {
		if step.Answer == kv.NoSlot {
			return fmt.Errorf("%w: %s has none", errWrong, c.key)
		}
		task, err := k.Tasks.Read(k.Conn, bufinv.Source(k.Table, int(step.Answer)*kv.SlotSize, kv.SlotSize), bufinv.Target(local, 0, kv.SlotSize))
		return step.Submit(task, err, func() error {
			if !kv.Holds(local.Bytes(), c.key) { // nobody else puts this key
				return fmt.Errorf("%w: %s", errWrong, c.key)
			}
			c.ended++
			step.Answer = granted
			return put()
		})
	}
	r.OnConnection(func(_ *rdma.Connection, _ rdma.ConnectionState, err error) { r.Fail(err) })
	r.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			peer.Connect(r, func(conn *rdma.Connection, m *mmap.Map, err error) {
				k.Conn, k.Table = conn, m
				r.Fail(err)
			})
		case pe.Running:
			task, err := k.Tasks.SendImm(k.Conn, nil, 0)
			r.Fail(step.Ask(task, err, put))
		}
	})
	err = errors.Join(r.Receive(4, 0, func(m *rdma.Message) {
		imm, _ := m.Imm()
		step.Answered(imm & kv.NoSlot)
	}), r.Start())
	if err == nil {
		err = engine.Run(ctx)
	}
	return err
}

// Clients and the server crash, stand still and are cut off. No client ever reads a wrong value
// of its key, and all go on in the end.
func TestNemesis(t *testing.T) { sim.Check(t, 5, putAndGet) }

func BenchmarkSeeds(b *testing.B) { sim.Benchmark(b, putAndGet) }

func putAndGet(s *sim.Sim) {
	s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond, Loss: 0.001})
	server := s.Host("server")
	const revoked = "the server takes slots back from a client that has gone"
	s.Sometimes(false, revoked)
	server.Run(func(ctx context.Context, dev verbs.Device) error {
		return serve(ctx, dev, func() { s.Reached(revoked) })
	})
	clients := make([]*client, 3)
	for i := range clients {
		clients[i] = &client{host: s.Host(fmt.Sprint("client", i)), key: fmt.Sprint("key", i)}
		clients[i].host.Run(clients[i].run)
	}
	chaos := s.Nemesis(sim.Chaos{MaxDown: 2, Interval: 500 * time.Millisecond, Longest: 6 * time.Second, Until: 10 * time.Second})
	s.RunUntil(func() bool {
		s.Sometimes(server.Starts() > 1, "the server restarts, and has no values any more")
		s.Sometimes(server.Crashed() && clients[0].host.Crashed(), "the server and a client are down at the same time")
		s.Sometimes(clients[0].ended > 0 && clients[0].host.Starts() > 1, "a client that has put values restarts")
		return chaos.Done()
	}, time.Minute)
	for _, c := range clients {
		goal := c.ended + 20
		s.RunUntil(func() bool { return c.ended >= goal }, time.Minute)
		require.Positive(s, c.ended)
	}
}

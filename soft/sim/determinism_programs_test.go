package sim_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// closing closes something at the end of a function that returns err.
func closing(err *error, close func() error) {
	if closed := close(); closed != nil {
		*err = errors.Join(*err, closed)
	}
}

// slot is how much memory each connection has at either end.
const slot = 8192

const everyAccess = mmap.LocalReadWrite | mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic

// callbackPrograms are a server and its clients. The server lends each connection a window, and
// waits for a sync event; the clients do all operations in random order.
func callbackPrograms(s *sim.Sim, prefix string, j *journal) ([]*sim.Host, func() bool) {
	const clients, connections, operations = 4, 3, 40
	server, finished := s.Host(prefix+"server"), 0
	server.Run(func(ctx context.Context, dev verbs.Device) error {
		return lend(ctx, server, dev, clients*connections, j)
	})
	hosts := s.Hosts(prefix+"client", clients)
	for i, h := range hosts {
		h.SetClockRate(1 + float64(i)/100)
		h.Run(func(ctx context.Context, dev verbs.Device) error {
			if err := borrow(ctx, h, dev, server, connections, operations, j); err != nil {
				return err
			}
			finished++
			return nil
		})
	}
	return append(hosts, server), func() bool { return finished == clients }
}

// lend lends each connection a window.
func lend(ctx context.Context, h *sim.Host, dev verbs.Device, connections int, j *journal) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: connections, Permissions: mmap.RemoteRead | mmap.RemoteAtomic})
	if err != nil {
		return err
	}
	mem, err := mmap.Alloc(dev, connections*slot, mmap.LocalReadWrite|mmap.BindWindows)
	if err != nil {
		return err
	}
	out, err := mmap.Alloc(dev, connections*2*slot, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	event, err := syncevent.New(dev, syncevent.Config{Publishers: syncevent.PublishRemote})
	if err != nil {
		return err
	}
	events, err := syncevent.NewContext(syncevent.ContextConfig{Engine: engine})
	if err != nil {
		return err
	}
	waits, err := events.Pool(1, func(t *syncevent.Task) {
		j.note(h, "event %d", t.Original())
		events.Fail(pe.SubmitOrFree(t, t.SetCondition(syncevent.Greater(t.Original()))))
	}, func(t *syncevent.Task, err error) { _ = t.Free() })
	if err != nil {
		return err
	}
	windows, err := r.WindowPool(connections)
	if err != nil {
		return err
	}
	sends, err := r.Pool(2*connections, pe.FreeTask, func(t *rdma.Task, err error) { _ = t.Free() })
	if err != nil {
		return err
	}
	err = r.Receive(16, slot, func(m *rdma.Message) {
		imm, _ := m.Imm()
		j.note(h, "%v of %d bytes, %d, %x", m.Opcode(), m.Length(), imm, m.Bytes())
	})
	if err != nil {
		return err
	}
	send := func(c *rdma.Connection, off int, desc []byte, err error) {
		r.Fail(err)
		copy(out.Bytes()[off:], desc)
		t, err := sends.Send(c, bufinv.Source(out, off, len(desc)))
		r.Fail(pe.SubmitOrFree(t, err))
	}
	r.OnConnection(func(c *rdma.Connection, state rdma.ConnectionState, err error) {
		j.note(h, "connection %d: %v, %v", c.ID(), state, err != nil)
		switch state {
		case rdma.Ready:
			w, err := windows.Alloc(c)
			if err != nil {
				r.Fail(err)
				return
			}
			c.SetUserData(w)
			i := int(c.ID())
			r.Fail(w.Bind(mem, i*slot, slot, mmap.RemoteRead|mmap.RemoteWrite|mmap.RemoteAtomic, r.Fail))
			desc, err := w.Export()
			send(c, 2*i*slot, desc, err)
			desc, err = event.Export()
			send(c, (2*i+1)*slot, desc, err)
		case rdma.Closed:
			if w, ok := c.UserData().(*rdma.Window); ok {
				r.Fail(w.Free())
			}
		}
	})
	r.OnStateChange(func(_, next pe.State) {
		if next != pe.Starting {
			return
		}
		_, err := r.Listen(":7000", rdma.ListenConfig{})
		r.Fail(err)
	})
	events.OnStateChange(func(_, next pe.State) {
		if next != pe.Running {
			return
		}
		t, err := waits.Wait(event, syncevent.Greater(0))
		events.Fail(pe.SubmitOrFree(t, err))
	})
	if err := errors.Join(r.Start(), events.Start()); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// client is a program that borrows the windows of a server.
type client struct {
	h       *sim.Host
	j       *journal
	dev     verbs.Device
	r       *rdma.Connections
	local   *mmap.Map
	tasks   *rdma.Pool
	borrows map[*rdma.Connection]*borrowed
}

// borrowed is what one connection has been lent.
type borrowed struct {
	index    int
	window   *mmap.Map
	event    *syncevent.Event
	left     int // operations not submitted yet
	inFlight int
	ended    bool
}

func borrow(ctx context.Context, h *sim.Host, dev verbs.Device, server *sim.Host, connections, operations int, j *journal) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: connections})
	if err != nil {
		return err
	}
	local, err := mmap.Alloc(dev, connections*slot, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	c := &client{h: h, j: j, dev: dev, r: r, local: local, borrows: map[*rdma.Connection]*borrowed{}}
	c.tasks, err = r.Pool(connections*4, c.done, func(t *rdma.Task, err error) {
		r.Fail(err)
		_ = t.Free()
	})
	if err != nil {
		return err
	}
	if err := r.Receive(4*connections, slot, c.got); err != nil {
		return err
	}
	r.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		r.Fail(err)
		if state != rdma.Closed {
			return
		}
		if b := c.borrows[conn]; b.event != nil {
			r.Fail(errors.Join(b.window.Close(), b.event.Close()))
		}
		if delete(c.borrows, conn); len(c.borrows) == 0 {
			r.Stop()
		}
	})
	r.OnStateChange(func(_, next pe.State) {
		if next != pe.Starting {
			return
		}
		for i := range connections {
			conn, err := r.Dial(fmt.Sprintf("%v:7000", server.Addr()), rdma.DialConfig{})
			r.Fail(err)
			c.borrows[conn] = &borrowed{index: i, left: operations}
		}
	})
	if err := r.Start(); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// got takes the descriptors of the window and of the event.
func (c *client) got(m *rdma.Message) {
	b := c.borrows[m.Connection()]
	var err error
	if b.window == nil {
		b.window, err = mmap.Import(c.dev, m.Bytes())
		c.r.Fail(err)
		return
	}
	b.event, err = syncevent.Import(c.dev, m.Bytes())
	c.r.Fail(err)
	for range 4 {
		c.next(m.Connection(), b)
	}
}

// next submits a random operation.
func (c *client) next(conn *rdma.Connection, b *borrowed) {
	if b.left == 0 {
		c.end(conn, b)
		return
	}
	b.left--
	random := c.h.Rand()
	n, imm := 1+random.IntN(slot/2), random.Uint32()
	off := b.index*slot + random.IntN(slot-n)
	there := random.IntN(slot - n)
	here := func() *bufinv.Buf { return bufinv.Source(c.local, off, n) }
	target := func() *bufinv.Buf { return bufinv.Target(b.window, there, n) }
	for i := range c.local.Bytes()[off : off+n] {
		c.local.Bytes()[off+i] = byte(imm) + byte(i)
	}
	word := func() *bufinv.Buf { return bufinv.Target(b.window, random.IntN(slot/8)*8, 8) }
	var t *rdma.Task
	var err error
	switch random.IntN(8) {
	case 0:
		t, err = c.tasks.Write(conn, here(), target())
	case 1:
		t, err = c.tasks.WriteImm(conn, here(), target(), imm)
	case 2:
		t, err = c.tasks.Read(conn, bufinv.Source(b.window, there, n), bufinv.Target(c.local, off, n))
	case 3:
		t, err = c.tasks.FetchAdd(conn, word(), uint64(imm))
	case 4:
		t, err = c.tasks.CompareSwap(conn, word(), uint64(imm%2), uint64(imm))
	case 5:
		t, err = c.tasks.Send(conn, here())
	case 6:
		t, err = c.tasks.SendImm(conn, here(), imm)
	default:
		t, err = c.tasks.SyncEventAdd(conn, b.event, 1)
	}
	if err = pe.SubmitOrFree(t, err); err != nil {
		c.r.Fail(err)
		return
	}
	b.inFlight++
}

func (c *client) done(t *rdma.Task) {
	conn := t.Connection()
	b := c.borrows[conn]
	c.j.note(c.h, "%v of %d bytes: %d", t.Operation(), t.Bytes(), t.Original())
	if t.Operation() == rdma.OpRead {
		c.j.note(c.h, "%x", t.Destination().AppendBytes(nil))
	}
	c.r.Fail(t.Free())
	b.inFlight--
	switch {
	case !b.ended:
		c.next(conn, b)
	default:
		c.r.Fail(conn.Close())
	}
}

// end gives the window back, when all operations are done.
func (c *client) end(conn *rdma.Connection, b *borrowed) {
	if b.inFlight > 0 {
		return
	}
	b.ended = true
	t, err := c.tasks.Send(conn, nil)
	if err == nil {
		err = t.SetInvalidate(b.window)
	}
	c.r.Fail(pe.SubmitOrFree(t, err))
	b.inFlight++
}

// goroutinePrograms are a server and its clients, which wait. Each client has goroutines that
// start one after the other, each with a connection.
func goroutinePrograms(s *sim.Sim, prefix string, j *journal) ([]*sim.Host, func() bool) {
	const clients, workers, operations = 3, 3, 15
	server, finished := s.Host(prefix+"server"), 0
	server.Run(func(ctx context.Context, dev verbs.Device) error { return serve(ctx, server, dev, clients*workers, j) })
	hosts := s.Hosts(prefix+"client", clients)
	for _, h := range hosts {
		h.Run(func(ctx context.Context, dev verbs.Device) error {
			if err := work(ctx, h, dev, server, workers, operations, j); err != nil {
				return err
			}
			finished++
			return nil
		})
	}
	return append(hosts, server), func() bool { return finished == clients }
}

// drive drives an engine on a goroutine of its own until stop is called.
func drive(engine *pe.Engine) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- await.Run(ctx, engine) }()
	return func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// serve answers each message with the same one, while another goroutine watches an event.
func serve(ctx context.Context, h *sim.Host, dev verbs.Device, connections int, j *journal) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: connections, Permissions: everyAccess})
	if err != nil {
		return err
	}
	receiver, err := await.NewReceiver(r, 8, slot)
	if err != nil {
		return err
	}
	defer closing(&err, receiver.Close)
	event, err := syncevent.New(dev, syncevent.Config{Publishers: syncevent.PublishRemote})
	if err != nil {
		return err
	}
	defer closing(&err, event.Close)
	out, err := mmap.Alloc(dev, slot, everyAccess)
	if err != nil {
		return err
	}
	desc, err := out.Export(dev)
	if err != nil {
		return err
	}
	defer closing(&err, drive(engine))
	err = await.Func(ctx, engine, func() error {
		if err := r.Start(); err != nil {
			return err
		}
		_, err := r.Listen(":7000", rdma.ListenConfig{PrivateData: append([]byte{byte(len(desc))}, desc...)})
		return err
	})
	if err != nil {
		return err
	}
	for msg, err := range receiver.Messages(ctx) {
		if err != nil {
			return err
		}
		imm, _ := msg.Imm()
		j.note(h, "%v of %d bytes, %d: %x", msg.Opcode(), msg.Length(), imm, msg.Bytes())
		n := copy(out.Bytes()[slot/2:], msg.Bytes())
		if n == 0 {
			continue
		}
		if err := await.SendImm(ctx, msg.Connection(), bufinv.Source(out, slot/2, n), imm); err != nil {
			j.note(h, "not answered: %v", err)
		}
	}
	return nil
}

// work has goroutines work, and takes the answers to their messages.
func work(ctx context.Context, h *sim.Host, dev verbs.Device, server *sim.Host, workers, operations int, j *journal) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: workers})
	if err != nil {
		return err
	}
	receiver, err := await.NewReceiver(r, 4, slot)
	if err != nil {
		return err
	}
	defer closing(&err, receiver.Close)
	local, err := mmap.Alloc(dev, workers*slot, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	defer closing(&err, local.Close)
	defer closing(&err, drive(engine))
	if err := await.Start(ctx, r); err != nil {
		return err
	}
	ended := make(chan error, workers)
	for i := range workers {
		h.Go(func() { ended <- worker(ctx, h, dev, r, server, local, i, operations, j) })
	}
	received := make(chan error, 1)
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	h.Go(func() {
		for msg, err := range receiver.Messages(receiving) {
			if err != nil {
				break
			}
			j.note(h, "answer of %d bytes: %x", msg.Length(), msg.Bytes())
		}
		received <- nil
	})
	for range workers {
		err = errors.Join(err, <-ended)
	}
	stop()
	<-received
	return err
}

func worker(ctx context.Context, h *sim.Host, dev verbs.Device, r *rdma.Connections, server *sim.Host, local *mmap.Map, i, operations int, j *journal) error {
	conn, err := await.Dial(ctx, r, fmt.Sprintf("%v:7000", server.Addr()), rdma.DialConfig{})
	if err != nil {
		return err
	}
	data := conn.AcceptData()
	remote, err := mmap.Import(dev, data[1:1+data[0]])
	if err != nil {
		return err
	}
	defer remote.Close()
	for range operations {
		random := h.Rand()
		h.Sleep(time.Duration(random.IntN(100)) * time.Microsecond)
		n, imm := 1+random.IntN(slot/4), random.Uint32()
		here := func() *bufinv.Buf { return bufinv.Source(local, i*slot, n) }
		var original uint64
		switch random.IntN(6) {
		case 0:
			err = await.Write(ctx, conn, here(), bufinv.Target(remote, i*8, n))
		case 1:
			err = await.WriteImm(ctx, conn, here(), bufinv.Target(remote, i*8, n), imm)
		case 2:
			err = await.Read(ctx, conn, bufinv.Source(remote, i*8, n), bufinv.Target(local, i*slot, n))
		case 3:
			original, err = await.FetchAdd(ctx, conn, bufinv.Target(remote, i*8, 8), uint64(imm))
		case 4:
			err = await.Send(ctx, conn, here())
		default:
			limited, cancel := context.WithTimeout(ctx, time.Duration(1+random.IntN(20))*time.Microsecond)
			err = await.SendImm(limited, conn, here(), imm)
			cancel()
			var pending *await.Pending
			if errors.As(err, &pending) {
				j.note(h, "given up")
				err = pending.Wait(ctx)
			} else if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
		}
		if err != nil {
			return err
		}
		j.note(h, "operation of worker %d: %d bytes, %d", i, n, original)
	}
	return await.Func(ctx, r.Engine(), conn.Close)
}

// datagramPrograms exchange messages by SRD, and by UD to a multicast group.
func datagramPrograms(s *sim.Sim, prefix string, j *journal) ([]*sim.Host, func() bool) {
	const members, operations = 5, 60
	g := &datagramGroup{members: members, operations: operations, j: j}
	hosts := s.Hosts(prefix+"member", members)
	for _, h := range hosts {
		h.Run(func(ctx context.Context, dev verbs.Device) error { return g.run(ctx, h, dev) })
	}
	return hosts, func() bool { return g.finished == members }
}

// datagramGroup is what the members of a group know of each other.
type datagramGroup struct {
	members, operations int
	j                   *journal
	endpoints, memories [][]byte
	finished            int
}

func (g *datagramGroup) run(ctx context.Context, h *sim.Host, dev verbs.Device) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	srd, err := rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine, Transport: verbs.SRD, Name: "srd"})
	if err != nil {
		return err
	}
	ud, err := rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine, Name: "ud"})
	if err != nil {
		return err
	}
	mem, err := mmap.Alloc(dev, 2*slot, everyAccess)
	if err != nil {
		return err
	}
	note := func(m *rdma.Message) {
		imm, _ := m.Imm()
		g.j.note(h, "%v of %d bytes from %v, %d: %x", m.Opcode(), m.Length(), m.Peer(), imm, m.Bytes())
	}
	if err := errors.Join(srd.Receive(64, slot, note), ud.Receive(64, slot, note)); err != nil {
		return err
	}
	var peers []*rdma.Peer
	var remotes []*mmap.Map
	left, inFlight := g.operations, 0
	var group *rdma.Peer
	var sends, messages *rdma.DatagramPool
	next := func() {
		if left == 0 {
			if inFlight == 0 {
				g.finished++
			}
			return
		}
		left--
		random := h.Rand()
		n, imm, i := 1+random.IntN(4000), random.Uint32(), random.IntN(len(peers))
		here := bufinv.Source(mem, slot, n)
		var t *rdma.Task
		var err error
		switch random.IntN(6) {
		case 0:
			t, err = sends.Send(peers[i], here)
		case 1:
			t, err = sends.SendImm(peers[i], here, imm)
		case 2:
			t, err = sends.Write(peers[i], here, bufinv.Target(remotes[i], random.IntN(slot-n), n))
		case 3:
			t, err = sends.WriteImm(peers[i], here, bufinv.Target(remotes[i], random.IntN(slot-n), n), imm)
		case 4:
			_ = here.Free()
			t, err = sends.Read(peers[i], bufinv.Source(remotes[i], random.IntN(slot-n), n), bufinv.Target(mem, slot, n))
		default:
			t, err = messages.SendImm(group, here, imm)
		}
		if err = pe.SubmitOrFree(t, err); err != nil {
			srd.Fail(err)
			return
		}
		inFlight++
	}
	done := func(t *rdma.Task) {
		g.j.note(h, "%v of %d bytes", t.Operation(), t.Bytes())
		srd.Fail(t.Free())
		inFlight--
		next()
	}
	failed := func(t *rdma.Task, err error) {
		srd.Fail(err)
		_ = t.Free()
	}
	if sends, err = srd.Pool(16, done, failed); err != nil {
		return err
	}
	if messages, err = ud.Pool(16, done, failed); err != nil {
		return err
	}
	if err := errors.Join(srd.Start(), ud.Start()); err != nil {
		return err
	}
	endpoint, err := srd.ExportEndpoint()
	if err != nil {
		return err
	}
	desc, err := mem.Export(dev)
	if err != nil {
		return err
	}
	g.endpoints, g.memories = append(g.endpoints, endpoint), append(g.memories, desc)
	for len(g.endpoints) < g.members {
		h.Sleep(10 * time.Microsecond)
	}
	for i := range g.members {
		peer, err := srd.NewPeer(g.endpoints[i])
		if err != nil {
			return err
		}
		remote, err := mmap.Import(dev, g.memories[i])
		if err != nil {
			return err
		}
		peers, remotes = append(peers, peer), append(remotes, remote)
	}
	err = ud.JoinMulticast("239.1.2.3", rdma.MulticastConfig{}, func(m *rdma.MulticastGroup, err error) {
		if err != nil {
			ud.Fail(err)
			return
		}
		group = m.Peer()
		for range 8 {
			next()
		}
	})
	if err != nil {
		return err
	}
	return engine.Run(ctx)
}

// managerPrograms dial, are rejected, close and dial again, while the server crashes and starts
// again, and the network is cut. Others exchange offers by connection manager.
func managerPrograms(s *sim.Sim, prefix string, j *journal) ([]*sim.Host, func() bool) {
	const dialers, dials, clients, exchanges = 4, 10, 3, 3
	server, finished := s.Host(prefix+"server"), 0
	server.Run(func(ctx context.Context, dev verbs.Device) error { return accept(ctx, server, dev, j) })
	hosts := s.Hosts(prefix+"dialer", dialers)
	for _, h := range hosts {
		h.Run(func(ctx context.Context, dev verbs.Device) error {
			if err := dial(ctx, h, dev, server, dials, j); err != nil {
				return err
			}
			finished++
			return nil
		})
	}
	s.After(3*time.Millisecond, server.Crash)
	s.After(5*time.Millisecond, server.Restart)
	s.After(8*time.Millisecond, func() { s.Partition(hosts[:2], []*sim.Host{server}) })
	s.After(12*time.Millisecond, s.Heal)

	giver, others := s.Host(prefix+"giver"), s.Hosts(prefix+"taker", clients)
	giver.Run(func(ctx context.Context, dev verbs.Device) error { return give(ctx, giver, dev, j) })
	for _, h := range others {
		h.Run(func(ctx context.Context, dev verbs.Device) error {
			for range exchanges {
				if err := take(ctx, h, dev, giver, j); err != nil {
					return err
				}
				h.Sleep(time.Millisecond)
			}
			finished++
			return nil
		})
	}
	hosts = append(append(hosts, others...), server, giver)
	return hosts, func() bool { return finished == dialers+clients }
}

// accept accepts, prepares and rejects connections, and answers those that ask for its endpoint.
func accept(ctx context.Context, h *sim.Host, dev verbs.Device, j *journal) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 3})
	if err != nil {
		return err
	}
	ud, err := rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine})
	if err != nil {
		return err
	}
	note := func(m *rdma.Message) { j.note(h, "%v of %d bytes", m.Opcode(), m.Length()) }
	if err := errors.Join(r.Receive(8, slot, note), ud.Receive(8, slot, note)); err != nil {
		return err
	}
	r.OnConnection(func(c *rdma.Connection, state rdma.ConnectionState, err error) {
		j.note(h, "connection %d: %v, %v", c.ID(), state, err)
		if state == rdma.Failed {
			r.Fail(c.Close())
		}
	})
	r.OnStateChange(func(_, next pe.State) {
		if next != pe.Starting {
			return
		}
		_, err := r.Listen(":7000", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
			var err error
			action := h.Rand().IntN(4)
			if action == 1 {
				_, err = q.Prepare()
			}
			switch {
			case action == 0 || err != nil:
				err = q.Reject([]byte("no"))
			default:
				if _, err = q.Accept(rdma.AcceptConfig{PrivateData: q.PrivateData()[:8]}); errors.Is(err, rdma.ErrFull) {
					err = q.Reject([]byte("full"))
				}
			}
			j.note(h, "request from %v: %d, %v", q.RemoteAddr(), action, err)
		}})
		r.Fail(err)
	})
	ud.OnStateChange(func(_, next pe.State) {
		if next != pe.Running {
			return
		}
		_, err := ud.Listen(":7001", rdma.ListenConfig{PrivateData: []byte("endpoint")})
		ud.Fail(err)
	})
	if err := errors.Join(r.Start(), ud.Start()); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// dial dials again and again, and asks for the server's endpoint each time.
func dial(ctx context.Context, h *sim.Host, dev verbs.Device, server *sim.Host, dials int, j *journal) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	r, err := rdma.New(dev, rdma.Config{Engine: engine})
	if err != nil {
		return err
	}
	ud, err := rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine})
	if err != nil {
		return err
	}
	mem, err := mmap.Alloc(dev, slot, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	freed := func(t *rdma.Task, err error) {
		j.note(h, "%v: %v", t.Operation(), err)
		_ = t.Free()
	}
	sends, err := r.Pool(8, func(t *rdma.Task) { freed(t, nil) }, freed)
	if err != nil {
		return err
	}
	messages, err := ud.Pool(8, func(t *rdma.Task) { freed(t, nil) }, freed)
	if err != nil {
		return err
	}
	again := func() {}
	r.OnConnection(func(c *rdma.Connection, state rdma.ConnectionState, err error) {
		j.note(h, "connection %d: %v, %v", c.ID(), state, err)
		switch state {
		case rdma.Ready:
			for range 1 + h.Rand().IntN(3) {
				t, err := sends.Send(c, bufinv.Source(mem, 0, 1+h.Rand().IntN(slot)))
				r.Fail(pe.SubmitOrFree(t, err))
			}
			if h.Rand().IntN(2) == 0 {
				r.Fail(c.Close())
			} else {
				h.Go(func() {
					h.Sleep(time.Duration(h.Rand().IntN(1000)) * time.Microsecond)
					_ = engine.Do(func() { _ = c.Close() })
				})
			}
		case rdma.Failed:
			r.Fail(c.Close())
		case rdma.Closed:
			again()
		}
	})
	again = func() {
		if dials == 0 || r.State() != pe.Running {
			r.Stop()
			ud.Stop()
			return
		}
		dials--
		port := 7000 + 7*h.Rand().IntN(2) // nobody listens on 7007
		cfg := rdma.DialConfig{PrivateData: h.Now().AppendFormat(nil, "15:04:05.999"), Once: port != 7000, Timeout: 3 * time.Millisecond}
		cfg.OnReject = func(data []byte) error {
			if j.note(h, "rejected: %s", data[:4]); h.Rand().IntN(2) == 0 {
				return errors.New("rejected")
			}
			return nil
		}
		c, err := r.Dial(fmt.Sprintf("%v:%d", server.Addr(), port), cfg)
		r.Fail(err)
		if h.Rand().IntN(6) == 0 && err == nil {
			r.Fail(c.Close())
		}
		err = ud.ResolvePeer(fmt.Sprintf("%v:7001", server.Addr()), rdma.DialConfig{Timeout: 2 * time.Millisecond}, func(p *rdma.Peer, data []byte, err error) {
			if j.note(h, "resolved: %.8s, %v", data, err); err != nil || messages.Available() == 0 {
				return
			}
			t, err := messages.Send(p, bufinv.Source(mem, 0, 100))
			if err = pe.SubmitOrFree(t, err); err != nil {
				j.note(h, "%v", err)
			}
		})
		r.Fail(err)
	}
	r.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			again()
		}
	})
	if err := errors.Join(r.Start(), ud.Start()); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// give offers its memory to clients, by connection manager.
func give(ctx context.Context, h *sim.Host, dev verbs.Device, j *journal) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: 8, Permissions: everyAccess})
	if err != nil {
		return err
	}
	mem, err := mmap.Alloc(dev, slot, everyAccess)
	if err != nil {
		return err
	}
	l, err := oob.Listen("cm:"+h.Addr().String()+":7471", oob.Config{Name: "giver"})
	if err != nil {
		return err
	}
	defer closing(&err, l.Close)
	err = l.Serve(r, oob.Offer{Maps: []*mmap.Map{mem}}, func(client string, a *oob.Answer) error {
		j.note(h, "client %s: %s", client, a.Data)
		if h.Rand().IntN(4) == 0 {
			return errors.New("not now")
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.Start(); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// take takes an offer, and writes to the memory.
func take(ctx context.Context, h *sim.Host, dev verbs.Device, giver *sim.Host, j *journal) (err error) {
	engine := pe.New(pe.Config{})
	defer closing(&err, engine.Close)
	r, err := rdma.New(dev, rdma.Config{Engine: engine})
	if err != nil {
		return err
	}
	defer closing(&err, r.Close)
	mem, err := mmap.Alloc(dev, slot, mmap.LocalReadWrite)
	if err != nil {
		return err
	}
	defer closing(&err, mem.Close)
	writes, err := r.Pool(1, func(t *rdma.Task) {
		j.note(h, "written")
		r.Fail(t.Free())
		r.Stop()
	}, pe.FailContext)
	if err != nil {
		return err
	}
	p, err := oob.Open("cm:"+giver.Addr().String()+":7471", oob.Config{Name: h.Name(), Peer: "giver"})
	if err != nil {
		return err
	}
	r.OnStateChange(func(_, next pe.State) {
		if next != pe.Starting {
			return
		}
		p.Exchange(ctx, r, oob.Offer{Data: []byte("hello")}, func(a *oob.Answer, err error) {
			if j.note(h, "answered: %v", err); errors.Is(err, oob.ErrRejected) {
				r.Stop()
				return
			}
			if err != nil {
				r.Fail(err)
				return
			}
			t, err := writes.Write(a.Connections[0], bufinv.Source(mem, 0, 100), bufinv.Target(a.Maps[0], 0, 100))
			r.Fail(pe.SubmitOrFree(t, err))
		})
	})
	if err := r.Start(); err != nil {
		return err
	}
	err = engine.Run(ctx)
	if errors.Is(err, oob.ErrRejected) {
		err = nil
	}
	return errors.Join(err, p.Close(err))
}

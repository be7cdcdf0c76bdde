package rdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// datagramProgram is a program with an endpoint for datagrams.
type datagramProgram struct {
	t      *testing.T
	engine *pe.Engine
	dev    verbs.Device
	ctx    *rdma.Datagrams
	mem    *mmap.Map
	bufs   bufinv.Inventory
	sends  *rdma.DatagramPool
	sent   outcome[*rdma.Task]
	got    []string
	from   []*rdma.Peer
	onGot  func(m *rdma.Message)
}

// newDatagramProgram makes and starts one, which takes messages.
func newDatagramProgram(t *testing.T, engine *pe.Engine, dev verbs.Device, cfg rdma.DatagramsConfig) *datagramProgram {
	t.Helper()
	p := &datagramProgram{t: t, engine: engine, dev: dev}
	cfg.Engine = engine
	if cfg.Transport == verbs.RC {
		cfg.Transport = verbs.UD
	}
	p.ctx = must(rdma.NewDatagrams(dev, cfg))
	p.mem = must(mmap.Alloc(dev, 1<<16, mmap.LocalReadWrite))
	p.sends = must(p.ctx.Pool(64, p.sent.ok, p.sent.bad))
	require.NoError(t, p.ctx.Receive(64, 4096, func(m *rdma.Message) {
		p.got = append(p.got, string(m.Bytes()))
		p.from = append(p.from, m.Peer())
		if p.onGot != nil {
			p.onGot(m)
		}
	}))
	require.NoError(t, p.ctx.Start())
	t.Cleanup(func() {
		require.NoError(t, p.ctx.Stop())
		p.until("the context is Idle", func() bool {
			for _, task := range append(p.sent.done, p.sent.failed...) { // some come back only now
				if !task.InFlight() {
					_ = task.Free()
				}
			}
			return p.ctx.State() == pe.Idle
		})
		require.NoError(t, p.ctx.Close())
		require.NoError(t, p.mem.Close())
	})
	p.until("the context runs", func() bool { return p.ctx.State() == pe.Running })
	return p
}

func newEngine(t *testing.T) *pe.Engine {
	engine := pe.New(pe.Config{})
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	return engine
}

func (p *datagramProgram) until(what string, done func() bool) {
	p.t.Helper()
	(&rig{t: p.t, engine: p.engine}).until(what, done)
}

// peerOf makes the peer that another program is.
func (p *datagramProgram) peerOf(o *datagramProgram) *rdma.Peer {
	p.t.Helper()
	return must(p.ctx.NewPeer(must(o.ctx.ExportEndpoint())))
}

// send submits a message.
func (p *datagramProgram) send(to *rdma.Peer, text string) *rdma.Task {
	p.t.Helper()
	task, err := p.alloc(to, text)
	require.NoError(p.t, err)
	require.NoError(p.t, task.Submit())
	return task
}

func (p *datagramProgram) alloc(to *rdma.Peer, text string) (*rdma.Task, error) {
	var src *bufinv.Buf
	if text != "" {
		src = p.bufs.Source(p.mem, 0, copy(p.mem.Bytes(), text))
	}
	return p.sends.Send(to, src)
}

func TestDatagrams(t *testing.T) {
	engine := newEngine(t)
	a, b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b"})
	toB := a.peerOf(b)
	require.Same(t, toB, a.peerOf(b), "a peer is known by its address")
	assert.Equal(t, must(b.ctx.EndpointAddr()), toB.Addr())

	a.send(toB, "hello")
	b.until("the message comes", func() bool { return len(b.got) == 1 })
	require.Equal(t, []string{"hello"}, b.got)
	toA := b.from[0]
	require.NotNil(t, toA)
	assert.Equal(t, must(a.ctx.EndpointAddr()), toA.Addr(), "the message names its sender")

	b.send(toA, "") // a message of no bytes, to a peer whose descriptor never came
	a.until("the answer comes", func() bool { return len(a.got) == 1 })
	require.Equal(t, []string{""}, a.got)
	require.Same(t, toB, a.from[0])

	a.until("all sends are done", func() bool { return len(a.sent.done) == 1 && len(b.sent.done) == 1 })
	assert.Same(t, toB, a.sent.done[0].Peer())
	assert.Nil(t, a.sent.done[0].Connection())
	require.Empty(t, a.sent.errs)
}

// TestDatagramTasks: receives of the program's own leave the header out.
func TestDatagramReceives(t *testing.T) {
	engine := newEngine(t)
	a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"})
	dev := openSoft(t)
	ctx := must(rdma.NewDatagrams(dev, rdma.DatagramsConfig{Name: "b", Transport: verbs.UD, Engine: engine}))
	mem := must(mmap.Alloc(dev, 8192, mmap.LocalReadWrite))
	var received outcome[*rdma.ReceiveTask]
	pool := must(ctx.ReceivePool(2, received.ok, received.bad))
	require.NoError(t, ctx.Start())
	for i := range 2 {
		task := must(pool.Alloc(bufinv.Target(mem, 4096*i, 4096)))
		require.NoError(t, task.Submit())
	}
	a.until("it runs", func() bool { return ctx.State() == pe.Running })
	peer := must(a.ctx.NewPeer(must(ctx.ExportEndpoint())))
	a.send(peer, "one")
	a.until("the first message comes", func() bool { return received.count() == 1 })
	a.send(peer, "")
	a.until("the second message comes", func() bool { return received.count() == 2 })
	require.Empty(t, received.errs)
	first, second := received.done[0], received.done[1]
	assert.Equal(t, "one", string(first.Destination().Bytes()))
	assert.Equal(t, 3, first.Length())
	assert.Equal(t, rdma.ReceivedSend, first.Opcode())
	assert.Zero(t, second.Length())
	assert.Nil(t, first.Connection())
	assert.Equal(t, must(a.ctx.EndpointAddr()), first.Peer().Addr())
	grh, ok := first.GRH()
	require.True(t, ok)
	assert.Equal(t, a.ctx.GID().GID, grh.SGID)
	assert.Equal(t, ctx.GID().GID, grh.DGID)
	require.NoError(t, rdma.FreeAll(received.done))
	_, ok = first.GRH()
	require.False(t, ok, "of a task that was freed")
	require.NoError(t, ctx.Stop())
	a.until("it is Idle", func() bool { return ctx.State() == pe.Idle })
	require.NoError(t, ctx.Close())
	require.NoError(t, mem.Close())
}

// TestDatagramsToMany: one queue pair, many peers, and answers to all of them.
func TestDatagramsToMany(t *testing.T) {
	const clients, messages = 20, 50
	engine := newEngine(t)
	server := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "server"})
	server.onGot = func(m *rdma.Message) {
		_ = must(server.alloc(m.Peer(), string(m.Bytes()))).Submit()
	}
	server.sent.then = func(task *rdma.Task) { _ = task.Free() }
	for i := range clients {
		c := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: fmt.Sprintf("client %d", i)})
		c.sent.then = func(task *rdma.Task) { _ = task.Free() }
		to := c.peerOf(server)
		for n := range messages {
			text := fmt.Sprintf("%d of %d", n, i)
			c.send(to, text)
			c.until("the answer comes", func() bool { return len(c.got) == n+1 })
			require.Equal(t, text, c.got[n])
		}
		for _, p := range c.from {
			require.Same(t, to, p)
		}
	}
	require.Empty(t, server.sent.errs)
	require.Len(t, server.got, clients*messages)
}

func TestDatagramMessageLimit(t *testing.T) {
	engine := newEngine(t)
	a, b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b"})
	mtu := int(a.ctx.Config().Path.MTU)
	require.Equal(t, uint32(mtu), a.ctx.Capabilities().MaxSend)
	a.send(a.peerOf(b), string(bytes.Repeat([]byte{'x'}, mtu)))
	b.until("the longest message comes", func() bool { return len(b.got) == 1 })
	require.Len(t, b.got[0], mtu)
	_, err := a.alloc(a.peerOf(b), string(bytes.Repeat([]byte{'x'}, mtu+1)))
	require.ErrorIs(t, err, rdma.ErrRange)
	assert.ErrorContains(t, err, fmt.Sprintf("moves at most %d in one send over UD", mtu))
}

func TestDatagramQKey(t *testing.T) {
	engine := newEngine(t)
	a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a", QKey: 5})
	b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b", QKey: 7})
	stranger := must(a.ctx.PeerAt(must(b.ctx.EndpointAddr())))
	a.send(stranger, "with the wrong key")
	a.send(a.peerOf(b), "with the right one")
	b.until("a message comes", func() bool { return len(b.got) > 0 })
	require.Equal(t, []string{"with the right one"}, b.got)
}

// TestDatagramsAfterAFailure: a task that fails ends no endpoint.
func TestDatagramsAfterAFailure(t *testing.T) {
	engine := newEngine(t)
	dev := openFaulty(t)
	a, b := newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{Name: "a"}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b"})
	to := a.peerOf(b)
	require.NoError(t, must(a.alloc(to, "bad")).Submit(pe.Aggregate))
	require.NoError(t, must(a.alloc(to, "behind")).Submit(pe.Aggregate))
	dev.Set(func(h *faultydevice.Hooks) {
		h.PostSend = func(qp verbs.QP, wrs []verbs.SendWR) (int, error) {
			dev.Heal()
			wrs[0].Flags &^= verbs.FlagInline
			wrs[0].SGL = []verbs.SGE{{Addr: 1, Length: 1, LKey: 1}}
			return qp.PostSend(wrs)
		}
	})
	a.until("both have ended", func() bool { return a.sent.count() == 2 })
	require.Len(t, a.sent.failed, 2)
	require.ErrorIs(t, a.sent.errs[0], rdma.ErrLocalProtection)
	assert.ErrorContains(t, a.sent.errs[0], "to peer ")
	require.ErrorIs(t, a.sent.errs[1], rdma.ErrFlushed)
	require.ErrorIs(t, a.sent.errs[1], rdma.ErrLocalProtection, "flushed tasks have the cause")
	require.Equal(t, pe.Running, a.ctx.State())
	a.send(to, "again")
	b.until("the next message comes", func() bool { return len(b.got) == 1 })
	require.Equal(t, []string{"again"}, b.got)
}

// TestDatagramRestart: peers outlive a run, endpoints do not.
func TestDatagramRestart(t *testing.T) {
	engine := newEngine(t)
	a, b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b"})
	to := a.peerOf(b)
	before := must(a.ctx.EndpointAddr())
	a.send(to, "first")
	b.until("it comes", func() bool { return len(b.got) == 1 })
	a.until("the send has completed", func() bool { return a.sent.count() == 1 })
	require.NoError(t, a.sent.done[0].Free())
	a.sent = outcome[*rdma.Task]{}
	require.NoError(t, a.ctx.Stop())
	a.until("it is Idle", func() bool { return a.ctx.State() == pe.Idle })
	_, err := a.ctx.EndpointAddr()
	require.ErrorIs(t, err, pe.ErrBadState)
	_, err = a.ctx.ExportEndpoint()
	require.ErrorIs(t, err, pe.ErrBadState)
	require.NoError(t, a.ctx.Start())
	a.until("it runs again", func() bool { return a.ctx.State() == pe.Running })
	assert.NotEqual(t, before, must(a.ctx.EndpointAddr()))
	a.send(to, "second")
	b.until("it comes", func() bool { return len(b.got) == 2 })
}

// TestDatagramStop: tasks that wait come back, flushed.
func TestDatagramStop(t *testing.T) {
	engine := newEngine(t)
	a, b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a", SendQueueSize: 1}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b"})
	to := a.peerOf(b)
	for i := range 50 {
		require.NoError(t, must(a.alloc(to, fmt.Sprint(i))).Submit(pe.Aggregate))
	}
	require.NoError(t, a.ctx.Stop())
	a.until("all tasks are back", func() bool { return a.sent.count() == 50 })
	for _, err := range a.sent.errs {
		require.ErrorIs(t, err, rdma.ErrFlushed)
	}
}

func TestLearnedPeers(t *testing.T) {
	engine := newEngine(t)
	a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"})
	own := must(a.ctx.EndpointAddr())
	known := must(a.ctx.PeerAt(own))
	a.send(known, "to itself")
	a.until("it comes", func() bool { return len(a.got) == 1 })
	require.Same(t, known, a.from[0])
	require.NoError(t, known.Forget())
	require.NoError(t, known.Forget())
	a.send(known, "again")
	a.until("it comes", func() bool { return len(a.got) == 2 })
	require.NotSame(t, known, a.from[1])
	require.Equal(t, own, a.from[1].Addr())
}

// TestAddressHandlesAreBounded: peers on more devices than a context keeps address
// handles for.
func TestAddressHandlesAreBounded(t *testing.T) {
	engine := newEngine(t)
	a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"})
	own := must(a.ctx.EndpointAddr())
	a.sent.then = func(task *rdma.Task) { _ = task.Free() }
	first := must(a.ctx.PeerAt(own))
	for i := range 3000 {
		addr := own
		addr.GID = verbs.GIDFromAddr(netip.AddrFrom4([4]byte{127, 200, byte(i >> 8), byte(i)}))
		before := a.sent.count()
		a.send(must(a.ctx.PeerAt(addr)), "lost")
		a.until("it is sent", func() bool { return a.sent.count() > before })
	}
	a.send(first, "to itself")
	a.until("it comes", func() bool { return len(a.got) == 1 })
	require.Empty(t, a.sent.errs)
}

func TestDatagramMisuse(t *testing.T) {
	engine := newEngine(t)
	dev := openSoft(t)
	a := newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{Name: "a"})
	b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b"})

	for _, c := range []struct {
		cfg rdma.DatagramsConfig
		err error
	}{
		{rdma.DatagramsConfig{Transport: verbs.UC}, rdma.ErrInvalid},
		{rdma.DatagramsConfig{Transport: 99}, rdma.ErrInvalid},
		{rdma.DatagramsConfig{Transport: verbs.UD, QKey: 1 << 31}, rdma.ErrRange},
		{rdma.DatagramsConfig{Transport: verbs.UD, UnsolicitedWriteRecv: true}, rdma.ErrNotSupported},
		{rdma.DatagramsConfig{UnsolicitedWriteRecv: true}, rdma.ErrNotSupported},
	} {
		_, err := rdma.NewDatagrams(dev, c.cfg)
		require.ErrorIs(t, err, c.err, "%+v", c.cfg)
	}

	shared := anyPool(a.ctx)
	_, err := shared.Write(must(a.ctx.PeerAt(must(a.ctx.EndpointAddr()))), nil, nil)
	require.ErrorIs(t, err, rdma.ErrNotSupported)
	_, err = shared.Read(must(a.ctx.PeerAt(must(a.ctx.EndpointAddr()))), nil, nil)
	require.ErrorIs(t, err, rdma.ErrNotSupported)

	own := must(a.ctx.EndpointAddr())
	for _, addr := range []rdma.EndpointAddr{{}, {GID: own.GID, QPN: 1}, {GID: own.GID, QPN: 1 << 24}, {QPN: 7}} {
		_, err := a.ctx.PeerAt(addr)
		require.Error(t, err, "%v", addr)
	}
	_, err = a.ctx.PeerAt(rdma.EndpointAddr{GID: verbs.GIDFromAddr(netip.MustParseAddr("fd00::1")), QPN: 7})
	require.ErrorIs(t, err, rdma.ErrMismatch)

	for _, to := range []*rdma.Peer{nil, b.peerOf(a)} {
		_, err := a.sends.Send(to, nil)
		require.ErrorIs(t, err, rdma.ErrInvalid)
	}
	task := must(a.alloc(a.peerOf(b), "x"))
	require.ErrorIs(t, task.SetPeer(nil), rdma.ErrInvalid)
	require.ErrorIs(t, task.SetPeer(b.peerOf(a)), rdma.ErrInvalid)
	require.NoError(t, task.SetPeer(a.peerOf(a)))
	require.NoError(t, task.Submit())
	a.until("it comes", func() bool { return len(a.got) == 1 })
}

func TestEndpointDescriptors(t *testing.T) {
	engine := newEngine(t)
	a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"})
	desc := must(a.ctx.ExportEndpoint())
	armored := []byte(must(descriptor.Armor(desc), nil))
	require.Same(t, must(a.ctx.NewPeer(desc)), must(a.ctx.NewPeer(armored)))
	for n := range desc {
		_, err := a.ctx.NewPeer(desc[:n])
		require.Error(t, err)
	}
	payload := must(descriptor.Decode(descriptor.Endpoint, desc))
	for _, bad := range []struct {
		at    int
		value byte
	}{{0, 0}, {0, 9}, {1, 1}, {18 + 2, 0xff}} {
		p := bytes.Clone(payload)
		p[bad.at] = bad.value
		if bad.at == 20 {
			copy(p[20:], []byte{0, 0xff, 0xff, 0xff})
		}
		_, err := a.ctx.NewPeer(must(descriptor.Encode(descriptor.Endpoint, p)))
		require.ErrorIs(t, err, descriptor.ErrFormat)
	}
}

func FuzzEndpointDescriptor(f *testing.F) {
	dev := must(soft.Open(soft.Config{}))
	defer dev.Close()
	ctx := must(rdma.NewDatagrams(dev, rdma.DatagramsConfig{Transport: verbs.UD, Name: "fuzz"}))
	f.Add(make([]byte, 30))
	f.Fuzz(func(t *testing.T, payload []byte) {
		desc, err := descriptor.Encode(descriptor.Endpoint, payload)
		if err != nil {
			return
		}
		if p, err := ctx.NewPeer(desc); err == nil {
			require.NoError(t, p.Forget())
		} else {
			require.True(t, errors.Is(err, descriptor.ErrFormat) || errors.Is(err, rdma.ErrMismatch) || errors.Is(err, rdma.ErrInvalid) ||
				errors.Is(err, descriptor.ErrTruncated) || errors.Is(err, descriptor.ErrTrailing), "%v", err)
		}
	})
}

// A message to a peer and its answer allocate nothing, from Alloc to Free.
func TestDatagramsAllocateNothing(t *testing.T) {
	engine := newEngine(t)
	a, b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b"})
	toB, answers := a.peerOf(b), 0
	var failure error
	submit := func(p *datagramProgram, to *rdma.Peer) {
		task, err := p.sends.Send(to, p.bufs.Source(p.mem, 0, 64))
		failure = errors.Join(failure, pe.SubmitOrFree(task, err))
	}
	quiet := func(p *datagramProgram, f func(m *rdma.Message)) {
		p.sent.then = func(task *rdma.Task) { p.sent.done = p.sent.done[:0]; failure = errors.Join(failure, task.Free()) }
		p.onGot = func(m *rdma.Message) { p.got, p.from = p.got[:0], p.from[:0]; f(m) }
	}
	quiet(a, func(*rdma.Message) { answers++ })
	quiet(b, func(m *rdma.Message) { submit(b, m.Peer()) })
	round := func() {
		before := answers
		submit(a, toB)
		for answers == before && failure == nil {
			_, err := engine.Progress()
			failure = errors.Join(failure, err)
		}
	}
	round()
	// The test's own string of each message, at either end, is all.
	assert.LessOrEqual(t, testing.AllocsPerRun(100, round), 2.0)
	require.NoError(t, failure)
}

// A request that the device refuses, posted from a callback, ends the context with an
// error, and does not leave it Stopping for ever.
func TestRefusedRequestInACallback(t *testing.T) {
	engine := newEngine(t)
	dev := openFaulty(t)
	ctx := must(rdma.NewDatagrams(dev, rdma.DatagramsConfig{Name: "a", Transport: verbs.UD, Engine: engine}))
	var sent outcome[*rdma.Task]
	sends := must(ctx.Pool(4, sent.ok, sent.bad))
	sent.then = func(task *rdma.Task) {
		dev.Set(func(h *faultydevice.Hooks) {
			h.PostSend = func(verbs.QP, []verbs.SendWR) (int, error) { return 0, verbs.ErrInvalid }
		})
		require.NoError(t, task.Submit())
		sent.then = func(task *rdma.Task) { _ = task.Free() }
	}
	require.NoError(t, ctx.Start())
	p := &datagramProgram{t: t, engine: engine}
	p.until("it runs", func() bool { return ctx.State() == pe.Running })
	task := must(sends.Send(must(ctx.PeerAt(must(ctx.EndpointAddr()))), nil))
	require.NoError(t, task.Submit())
	p.until("the context is Idle", func() bool { return ctx.State() == pe.Idle })
	require.ErrorIs(t, ctx.Err(), rdma.ErrDevice)
	require.NoError(t, ctx.Close())
}

// What a device would refuse is refused before, since it would end the endpoint.
func TestTooMuchForADatagram(t *testing.T) {
	engine := newEngine(t)
	a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a"})
	to := must(a.ctx.PeerAt(must(a.ctx.EndpointAddr())))
	task := must(a.alloc(to, "x"))
	mtu := int(a.ctx.Config().Path.MTU)
	require.NoError(t, task.SetSource(a.bufs.Source(a.mem, 0, mtu+1)))
	require.ErrorIs(t, task.Submit(), rdma.ErrRange)
	require.NoError(t, task.Free())
	a.send(to, "to itself")
	a.until("it comes", func() bool { return len(a.got) == 1 })
}

package transfer

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// efa opens an agent on n devices that look like EFAs, which have SRD and no RC.
func efa(t testing.TB, n int, change ...func(c *Config)) *Agent {
	return open(t, 0, append([]func(c *Config){func(c *Config) {
		for range n {
			dev, err := device.Open("soft-lo?efa=on")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, dev.Close()) })
			c.Devices = append(c.Devices, dev)
		}
	}}, change...)...)
}

// Over SRD, items and notes do what they say, through one and several devices.
func TestSRD(t *testing.T) {
	for _, devices := range []int{1, 2} {
		ctx := testContext(t)
		near, far := efa(t, devices), efa(t, devices)
		require.Equal(t, verbs.SRD, near.cfg.Transport)
		theirs, mine := register(t, far, "blocks", 8<<20), register(t, near, "", 8<<20)
		remote := dial(t, near, far, "blocks")
		var b Batch
		fill(mine.Bytes(), 1)
		for i := range 100 {
			b.Write(remote, i*80_000, mine.Bytes()[i*80_000:][:80_000])
		}
		b.Note(remote.Peer(), 7)
		require.NoError(t, submit(t, near, &b).Wait(ctx))
		note, err := far.Note(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 7, note.Value)
		require.Contains(t, near.Addrs(), note.From)
		require.Equal(t, near.epoch, note.Epoch)
		require.True(t, bytes.Equal(mine.Bytes()[:8_000_000], theirs.Bytes()[:8_000_000]))
		fill(theirs.Bytes(), 2)
		b.Read(remote, 0, mine.Bytes())
		require.NoError(t, submit(t, near, &b).Wait(ctx))
		require.True(t, bytes.Equal(mine.Bytes(), theirs.Bytes()))
		b.FetchAdd(remote, 0, 1)
		_, err = near.Submit(&b)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		remote.Peer().Close()
	}
}

// Notes that nobody takes wait, and hold up nothing else.
func TestSRDNotesThatWait(t *testing.T) {
	ctx := testContext(t)
	near, far := efa(t, 1), efa(t, 1)
	register(t, far, "blocks", 100)
	mine := register(t, near, "", 100)
	remote := dial(t, near, far, "blocks")
	const n = maxNotes + 10
	var notes, read Batch
	for i := range n {
		notes.Note(remote.Peer(), uint32(i))
	}
	h := submit(t, near, &notes)
	require.Eventually(t, func() bool { return near.Counters().Repeated > 0 }, time.Minute, time.Millisecond)
	read.Read(remote, 0, mine.Bytes())
	require.NoError(t, submit(t, near, &read).Wait(ctx))
	dial(t, efa(t, 1), far, "blocks").Peer().Close()
	require.ErrorIs(t, h.Err(), ErrPending)
	remote.Peer().Close()
	require.ErrorIs(t, h.Wait(ctx), ErrClosed)
	seen, came := map[uint32]bool{}, 0
	for i := range n {
		if h.Item(i) == nil {
			came++
		}
	}
	require.GreaterOrEqual(t, came, maxNotes)
	for range came {
		note, err := far.Note(ctx)
		require.NoError(t, err)
		require.False(t, seen[note.Value])
		seen[note.Value] = true
	}
	require.EqualValues(t, 1, near.Counters().Dials)
}

// outsider is an endpoint that is no agent.
type outsider struct {
	*rdma.Datagrams
	engine *pe.Engine
	pool   *rdma.DatagramPool
	memory *mmap.Map
	ended  chan error // sends
	came   chan uint32
}

func newOutsider(t *testing.T) *outsider {
	dev, err := device.Open("soft-lo?efa=on")
	require.NoError(t, err)
	o := &outsider{engine: pe.New(pe.Config{}), ended: make(chan error, 2048), came: make(chan uint32, 1<<13)}
	o.Datagrams, err = rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: o.engine, Transport: verbs.SRD})
	require.NoError(t, err)
	done := func(t *rdma.Task, err error) { _ = t.Free(); o.ended <- err }
	o.pool, err = o.Pool(1, func(t *rdma.Task) { done(t, nil) }, done)
	require.NoError(t, err)
	require.NoError(t, o.Receive(1000, 4096, func(m *rdma.Message) {
		kind, _ := m.Imm()
		o.came <- kind // it does not say that it has closed
	}))
	o.memory, err = mmap.Alloc(dev, 4096, mmap.LocalReadWrite)
	require.NoError(t, err)
	require.NoError(t, o.Start())
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { _ = o.engine.Run(ctx); close(over) }()
	t.Cleanup(func() {
		cancel()
		<-over
		require.NoError(t, errors.Join(o.engine.Close(), o.Close(), o.memory.Close(), dev.Close()))
	})
	return o
}

// note, as a kind, is no message.
const note = 1000

// send sends bytes to an endpoint of an agent, and returns when they have arrived.
func (o *outsider) send(a *Agent, qpn, kind uint32, b []byte) error {
	err := o.engine.Do(func() {
		to, err := o.PeerAt(rdma.EndpointAddr{GID: verbs.GIDFromAddr(a.Addrs()[0].AddrPort.Addr()), UDPPort: a.Addrs()[0].AddrPort.Port(), QPN: qpn})
		var task *rdma.Task
		var src *bufinv.Buf
		if copy(o.memory.Bytes(), b) > 0 {
			src = bufinv.Source(o.memory, 0, len(b))
		}
		switch {
		case err != nil:
		case kind == note:
			task, err = o.pool.WriteImm(to, nil, nil, 1)
		case kind == 0:
			task, err = o.pool.Send(to, src)
		default:
			task, err = o.pool.SendImm(to, src, kind)
		}
		if err = pe.SubmitOrFree(task, err); err != nil {
			o.ended <- err
		}
	})
	if err == nil {
		err = <-o.ended
	}
	return err
}

// Messages that break the protocol, or come again, are refused and counted. Memory for those who send them is bounded.
func TestSRDHostile(t *testing.T) {
	const most = 10 // of one host
	far := efa(t, 1, func(c *Config) { c.MaxConnections = 2 * most })
	register(t, far, "blocks", 100)
	o := newOutsider(t)
	refused := uint64(0)
	control, data := far.Addrs()[0].QPN, far.devices[0].transport.(*srd).own.Data
	send := func(qpn, kind uint32, b []byte, refuses bool) {
		require.NoError(t, o.send(far, qpn, kind, b))
		if refuses {
			refused++
		}
		require.Eventually(t, func() bool { return far.Counters().Refused == refused }, time.Minute, time.Millisecond, "kind %d, %d bytes", kind, len(b))
	}
	good := message{Request: goodRequest, From: address{o.GID().GID, o.GID().UDPPort}, QPN: 5, Data: 6}
	changed := func(change func(m *message)) []byte {
		m := good
		change(&m)
		return encode(m)
	}
	for _, b := range [][]byte{nil, encode(good)[:messageLen-1], encode(good)[:20], changed(func(m *message) { m.Request.Magic++ }), changed(func(m *message) { m.Request.Epoch = 0 }), changed(func(m *message) { m.Accept.Epoch = 1 })} {
		send(control, kindRequest, b, true)
	}
	require.Error(t, o.send(far, control, kindRequest, append(encode(good), 0)))
	for _, kind := range []uint32{0, kindAccept, kindBusy, kindBye, kindBye + 1} {
		send(control, kind, encode(good), true) // of a link that does not exist
	}
	for range 2 {
		require.EqualValues(t, kindBye, <-o.came)
	}
	send(data, 0, nil, true)
	send(data, 3, nil, true)    // a message is no note
	send(data, note, nil, true) // of an endpoint that was answered, but is not connected
	require.Error(t, o.send(far, data, 3, []byte{1}))

	send(control, kindRequest, encode(good), false)
	require.EqualValues(t, kindAccept, <-o.came)
	send(control, kindRequest, encode(good), true)
	send(control, kindRequest, changed(func(m *message) { m.Request.Dials-- }), true)
	send(control, kindBye, changed(func(m *message) { m.Request.Dials-- }), true)
	send(control, kindRequest, changed(func(m *message) { m.Request.Dials++ }), false)
	require.EqualValues(t, kindAccept, <-o.came)

	for i := range 500 {
		require.NoError(t, o.send(far, control, kindRequest, changed(func(m *message) { m.Request.Path.ID[1], m.Request.Path.ID[2] = byte(i), 1+byte(i>>8) })))
	}
	require.EqualValues(t, kindAccept, <-o.came)
	send(control, 0, encode(good), true) // all have been taken; not all were answered
	far.mu.Lock()
	require.Len(t, far.incoming, most)
	far.mu.Unlock()
}

// Those who have gone without a word make room.
func TestSRDGone(t *testing.T) {
	far, gone := efa(t, 1, func(c *Config) { c.MaxConnections = 1 }), efa(t, 1)
	register(t, far, "blocks", 100)
	dial(t, gone, far, "blocks")
	require.NoError(t, gone.Close())
	dial(t, efa(t, 1), far, "blocks")
}

// An acceptance that breaks the protocol is refused, and so is one from somebody else.
func TestSRDHostileAnswers(t *testing.T) {
	near, o := efa(t, 1, func(c *Config) { c.DialTimeout = time.Minute }), newOutsider(t)
	own := make(chan rdma.EndpointAddr, 1)
	require.NoError(t, o.engine.Do(func() {
		addr, err := o.EndpointAddr()
		o.Fail(err)
		own <- addr
	}))
	at := <-own
	failed := make(chan error, 1)
	go func() {
		_, err := near.Dial(testContext(t), Addr{netip.AddrPortFrom(at.GID.Addr(), at.UDPPort), at.QPN}.String())
		failed <- err
	}()
	require.EqualValues(t, kindRequest, <-o.came)
	near.mu.Lock()
	who := request{Magic: magic, Path: pathID{near.peers[0].id, 0}, Dials: 1, Epoch: 1} // of the first request
	near.mu.Unlock()
	other := newOutsider(t)
	answer := message{Request: who, From: address{at.GID, at.UDPPort}, QPN: at.QPN, Data: 1 << 23, Accept: goodSRD}
	for _, change := range []func(m *message){func(m *message) { m.Request.Path.ID[0]++ }, func(m *message) { m.Request.Dials += 1000 }, func(m *message) { m.Request.Dials-- }, func(m *message) { m.Data = 0 }} {
		m, before := answer, near.Counters().Refused
		change(&m)
		require.NoError(t, other.send(near, near.Addrs()[0].QPN, kindAccept, encode(m)))
		require.Eventually(t, func() bool { return near.Counters().Refused == before+1 }, time.Minute, time.Millisecond)
	}
	answer.Accept.Devices = 0
	before := near.Counters().Refused
	require.NoError(t, o.send(near, near.Addrs()[0].QPN, kindAccept, encode(answer)))
	require.ErrorIs(t, <-failed, ErrProtocol)
	require.Greater(t, near.Counters().Refused, before)
}

// A device of which one endpoint fails is dead: nothing waits for it for ever.
func TestSRDEndpointFails(t *testing.T) {
	for name, endpoint := range map[string]func(s *srd) *rdma.Datagrams{
		"of items":    func(s *srd) *rdma.Datagrams { return s.Datagrams },
		"of messages": func(s *srd) *rdma.Datagrams { return s.control },
	} {
		t.Run(name, func(t *testing.T) {
			near, far := efa(t, 1), efa(t, 1)
			mine := register(t, near, "", 100)
			register(t, far, "blocks", 100)
			remote := dial(t, near, far, "blocks")
			d := near.devices[0]
			require.NoError(t, d.engine.Do(func() { endpoint(d.transport.(*srd)).Fail(errors.New("broken")) }))
			require.Eventually(t, d.isDead, time.Minute, time.Millisecond)
			var b Batch
			b.Read(remote, 0, mine.Bytes())
			_, err := near.Submit(&b)
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorContains(t, err, "broken")
			remote.Peer().Close()
		})
	}
}

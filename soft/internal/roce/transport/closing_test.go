package transport

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The responder closes a region while a message is in flight.
func TestRemoteRegionClosed(t *testing.T) {
	t.Parallel()
	t.Run("write", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpWrite, 1000))
		sent := r.client.transmit(r.now)
		r.server.take(r.now, sent[:2]...)
		r.server.memory.Remove(r.remote.Region)
		before := bytes.Clone(r.remote.Mem)
		// The same key may be given again: the message is none of its business.
		again := newArena(t, r.server.memory, remoteKey, remoteBase, 4096, everyAccess)
		r.server.take(r.now, sent[2:]...)
		r.exchange()
		r.requireSent(1, verbs.StatusRemoteAccessError)
		require.Equal(t, before, r.remote.Mem)
		require.Equal(t, make([]byte, 4096), again.Mem)
	})
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpRead, 1000))
		r.server.take(r.now, r.client.transmit(r.now)...)
		c := collector{t: t}
		require.True(t, r.server.qp.Transmit(&c, r.now, 2))
		r.server.memory.Remove(r.remote.Region)
		r.client.take(r.now, c.packets...)
		responses := r.server.transmit(r.now)
		require.Len(t, responses, 1)
		require.Equal(t, wire.Nak(wire.NakRemoteAccess), responses[0].AETH.Syndrome)
		r.client.take(r.now, responses...)
		r.requireSent(1, verbs.StatusRemoteAccessError)
		require.Equal(t, pattern(make([]byte, arenaLen), 1)[512:], r.local.Mem[512:])
	})
	t.Run("read that is repeated", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpRead, 1000))
		sent := r.client.transmit(r.now)
		r.server.take(r.now, sent...)
		require.Len(t, r.server.transmit(r.now), 4) // and lost
		r.server.memory.Remove(r.remote.Region)
		r.expire()
		r.exchange()
		r.requireSent(1, verbs.StatusRemoteAccessError)
		require.Equal(t, pattern(make([]byte, arenaLen), 1), r.local.Mem)
		require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
	})
	t.Run("read that was executed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpRead, 1000))
		sent := r.client.transmit(r.now)
		r.server.take(r.now, sent...)
		r.exchange()
		r.requireSent(1, verbs.StatusSuccess)
		r.server.memory.Remove(r.remote.Region)
		r.server.take(r.now, sent...) // the network's copy
		r.exchange()
		again := newArena(t, r.server.memory, 0x99, 0x99000, 4096, everyAccess)
		wr := r.wr(2, verbs.OpWrite, 8)
		wr.RemoteAddr, wr.RKey = again.Base, again.Key
		r.client.post(wr)
		r.exchange()
		r.requireSent(2, verbs.StatusSuccess)
	})
	t.Run("atomic that is repeated", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		add := r.wr(1, verbs.OpFetchAdd, 8)
		add.CompareAdd = 1
		*word(r.remote.Mem) = 41
		r.client.post(add)
		r.server.take(r.now, r.client.transmit(r.now)...)
		require.Len(t, r.server.transmit(r.now), 1) // and lost
		r.server.memory.Remove(r.remote.Region)
		r.expire()
		r.exchange()
		r.requireSent(1, verbs.StatusSuccess) // it was executed
		require.Equal(t, uint64(41), *word(r.local.Mem))
		require.Equal(t, uint64(42), *word(r.remote.Mem))
	})
	t.Run("receive", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		box := newArena(t, r.server.memory, 0x77, 0x9000, 1000, verbs.AccessLocalWrite)
		r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 300), box.sge(0, 1000)}})
		r.client.post(r.wr(1, verbs.OpSend, 1000))
		sent := r.client.transmit(r.now)
		r.server.take(r.now, sent[0])
		r.server.memory.Remove(box.Region)
		r.server.take(r.now, sent[1:]...)
		r.exchange()
		r.requireSent(1, verbs.StatusRemoteOperationError)
		list := r.server.recv.take()
		require.Len(t, list, 1)
		require.Equal(t, verbs.StatusLocalProtectionError, list[0].Status)
		require.Equal(t, make([]byte, 1000), box.Mem)
	})
}

// The requester closes a region while its request is in flight.
func TestLocalRegionClosed(t *testing.T) {
	t.Parallel()
	t.Run("source, before it is sent", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{timeout: 255})
		source := newArena(t, r.client.memory, 0x55, 0x5000, 1000, 0)
		before := r.wr(1, verbs.OpWrite, 8)
		before.Flags = 0
		wr := r.wr(2, verbs.OpWrite, 0)
		wr.SGL = []verbs.SGE{source.sge(0, 1000)}
		r.client.post(before, wr, r.wr(3, verbs.OpWrite, 8))
		r.client.memory.Remove(source.Region)
		r.exchange()
		list := r.client.send.take()
		require.Equal(t, []uint64{2, 3}, ids(list))
		require.Equal(t, verbs.StatusLocalProtectionError, list[0].Status)
		require.Equal(t, verbs.StatusFlushed, list[1].Status)
		require.Equal(t, r.local.Mem[:8], r.remote.Mem[:8])
	})
	t.Run("source, before it is sent again", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpSend, 1000))
		require.Len(t, r.client.transmit(r.now), 4)
		r.client.memory.Remove(r.local.Region)
		r.expire()
		require.Empty(t, r.client.transmit(r.now))
		r.requireSent(1, verbs.StatusLocalProtectionError)
	})
	t.Run("source, when all is sent", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpWrite, 1000))
		sent := r.client.transmit(r.now)
		r.client.memory.Remove(r.local.Region)
		r.server.take(r.now, sent...)
		r.client.take(r.now, r.server.transmit(r.now)...)
		r.requireSent(1, verbs.StatusSuccess)
	})
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd} {
		t.Run("target of a "+op.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{})
			r.client.post(r.wr(1, op, 8))
			sent := r.client.transmit(r.now)
			r.client.memory.Remove(r.local.Region)
			r.server.take(r.now, sent...)
			r.client.take(r.now, r.server.transmit(r.now)...)
			r.requireSent(1, verbs.StatusLocalProtectionError)
			require.Equal(t, pattern(make([]byte, arenaLen), 1), r.local.Mem)
		})
	}
}

func TestMemoryTable(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	a := newArena(t, m, 1, 0x1000, 16, everyAccess)
	require.False(t, m.Add(&Region{Key: 1, Mem: make([]byte, 1)}), "taken")
	require.False(t, m.Add(&Region{Key: 0, Mem: make([]byte, 1)}), "zero is no key")
	require.Equal(t, 1, m.Len())
	for _, c := range []struct {
		addr uint64
		n    uint32
		ok   bool
	}{
		{0x1000, 0, true}, {0x1010, 0, true}, {0x1011, 0, false}, {0xfff, 0, false}, {0x1000, 16, true}, {0x1000, 17, false},
		{0x100f, 1, true}, {0x1010, 1, false}, {0xfff, 1, false}, {0, 16, false}, {^uint64(0), 1, false},
		{0x1001, ^uint32(0), false}, {0xfff, ^uint32(0), false},
	} {
		b, ok := a.slice(c.addr, c.n)
		require.Equal(t, c.ok, ok, "%#x, %d", c.addr, c.n)
		require.Len(t, b, map[bool]int{true: int(c.n)}[ok])
		require.Equal(t, len(b), cap(b))
	}
	m.Remove(a.Region)
	require.Zero(t, m.Len())
	_, ok := m.find(1, testDomain, 0x1000, 1, 0)
	require.False(t, ok)
}

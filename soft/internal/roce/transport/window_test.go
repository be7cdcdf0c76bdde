package transport

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// testWindow and testRegion stand for the objects of the device.
type testWindow struct{ *Window }

func (w testWindow) Type() verbs.MWType { return w.Window.Type }
func (testWindow) Close() error         { return nil }

type testRegion struct {
	verbs.MR
	region *Region
}

func findTestBind(b *verbs.MWBind) (*Window, *Region, error) {
	return b.MW.(testWindow).Window, b.MR.(testRegion).region, nil
}

func bindOf(w *Window, r *Region, key uint32, off, n int, access verbs.Access) *verbs.MWBind {
	return &verbs.MWBind{MW: testWindow{w}, RKey: key, MR: testRegion{region: r}, Addr: r.Base + uint64(off), Length: uint64(n), Access: access}
}

func localWR(id uint64, b *verbs.MWBind) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpBindMW, Flags: verbs.FlagSignaled, Bind: b}
}

func invalidation(id uint64, key uint32) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpLocalInvalidate, Flags: verbs.FlagSignaled, InvalidateRKey: key}
}

const (
	windowKey = 0xabcdef00
	windowOff = 1024 // of the window, in the server's region
	windowLen = 2048
)

// newWindow allocates a window at the server.
func (r *rig) newWindow(t verbs.MWType, key uint32) *Window {
	w := NewWindow(t, testDomain, key)
	require.True(r.t, r.server.memory.AddWindow(w))
	return w
}

// bindRemote binds a window over part of the server's memory, and returns its key.
func (r *rig) bindRemote(w *Window, access verbs.Access) uint32 {
	r.t.Helper()
	r.server.post(localWR(77, bindOf(w, r.remote.Region, verbs.NextRKey(w.RKey()), windowOff, windowLen, access)))
	r.exchange()
	require.Equal(r.t, []verbs.WC{{ID: 77, Opcode: verbs.WCBindMW, QPN: serverQPN}}, r.server.send.take())
	return w.RKey()
}

// A window gives peers its own access rights and range, and no more.
func TestWindowStatuses(t *testing.T) {
	t.Parallel()
	const ok, access = verbs.StatusSuccess, verbs.StatusRemoteAccessError
	for _, c := range []struct {
		name   string
		rights verbs.Access
		op     verbs.Opcode
		off, n int // in the window
		status verbs.Status
	}{
		{"write at the start", peerAccess, verbs.OpWrite, 0, 8, ok},
		{"long write of all", peerAccess, verbs.OpWrite, 0, windowLen, ok},
		{"write before the start", peerAccess, verbs.OpWrite, -1, 8, access},
		{"write up to the end", peerAccess, verbs.OpWrite, windowLen - 8, 8, ok},
		{"write over the end", peerAccess, verbs.OpWrite, windowLen - 7, 8, access},
		{"write behind the end", peerAccess, verbs.OpWrite, windowLen, 1, access},
		{"empty write elsewhere", peerAccess, verbs.OpWrite, 1 << 20, 0, ok},
		{"long write over the end", peerAccess, verbs.OpWrite, 1, windowLen, access},
		{"write, read-only window", verbs.AccessRemoteRead, verbs.OpWrite, 0, 8, access},
		{"read", verbs.AccessRemoteRead, verbs.OpRead, 0, windowLen, ok},
		{"read over the end", verbs.AccessRemoteRead, verbs.OpRead, 1, windowLen, access},
		{"read before the start", verbs.AccessRemoteRead, verbs.OpRead, -8, 8, access},
		{"read, write-only window", verbs.AccessRemoteWrite, verbs.OpRead, 0, 8, access},
		{"fetch-and-add", verbs.AccessRemoteAtomic, verbs.OpFetchAdd, 8, 8, ok},
		{"fetch-and-add behind the end", verbs.AccessRemoteAtomic, verbs.OpFetchAdd, windowLen, 8, access},
		{"compare-and-swap, without the right", verbs.AccessRemoteRead | verbs.AccessRemoteWrite, verbs.OpCompareSwap, 0, 8, access},
		{"no rights at all", 0, verbs.OpRead, 0, 8, access},
		{"atomic write", verbs.AccessRemoteWrite, verbs.OpAtomicWrite, 8, 8, ok},
		{"atomic write behind the end", peerAccess, verbs.OpAtomicWrite, windowLen, 8, access},
		{"atomic write, without the right", verbs.AccessRemoteRead | verbs.AccessRemoteAtomic, verbs.OpAtomicWrite, 0, 8, access},
	} {
		for _, base := range []verbs.Access{0, verbs.AccessZeroBased} {
			for _, kind := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
				if kind == verbs.MWType1 && base != 0 {
					continue
				}
				r := newRig(t, options{})
				r.remote.Access = verbs.AccessLocalWrite | verbs.AccessMWBind // itself, it grants nothing
				key := r.bindRemote(r.newWindow(kind, windowKey), c.rights|base)
				wr := r.wr(9, c.op, c.n)
				wr.RKey, wr.RemoteAddr = key, r.remote.Base+windowOff+uint64(c.off)
				if base != 0 {
					wr.RemoteAddr = uint64(c.off)
				}
				r.client.post(wr)
				r.exchange()
				list := r.client.send.take()
				require.Len(t, list, 1)
				require.Equal(t, c.status, list[0].Status, "%s, type %d, %#x: %v", c.name, kind, uint32(base), list[0].Status)
				if c.status != ok {
					r.requireIntact()
					require.Equal(t, []verbs.EventType{verbs.EventQPAccessError}, r.server.events)
				}
				r.remote.requireGuards(t)
			}
		}
	}
}

// A zero-based window that begins at an unaligned address grants no aligned word to an atomic,
// or an atomic write.
func TestZeroBasedAtomic(t *testing.T) {
	t.Parallel()
	for _, op := range []verbs.Opcode{verbs.OpFetchAdd, verbs.OpCompareSwap, verbs.OpAtomicWrite} {
		t.Run(op.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{})
			w := r.newWindow(verbs.MWType2, windowKey)
			r.server.post(localWR(1, bindOf(w, r.remote.Region, windowKey, 4, 64, peerAccess|verbs.AccessZeroBased)))
			r.exchange()
			wr := r.wr(9, op, 8)
			wr.RKey, wr.RemoteAddr = windowKey, 8
			r.requireFailed(wr, verbs.StatusRemoteInvalidRequest)
			r.requireIntact()
		})
	}
}

// A region can have an aligned address for memory that is not aligned (ibv_reg_mr_iova). Processors
// without unaligned atomic operations would fault there.
func TestUnalignedAtomic(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.remote.Mem = r.remote.Mem[4:]
	before := bytes.Clone(r.remote.Mem)
	r.requireFailed(r.wr(9, verbs.OpFetchAdd, 8), verbs.StatusRemoteInvalidRequest)
	require.Equal(t, before, r.remote.Mem)
}

// Keys that grant nothing, or nothing to this peer.
func TestWindowKeys(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]func(r *rig) uint32{
		"before the first bind":   func(r *rig) uint32 { return r.newWindow(verbs.MWType2, windowKey).RKey() },
		"of type 1, before":       func(r *rig) uint32 { return r.newWindow(verbs.MWType1, windowKey).RKey() },
		"a guess of the low byte": func(r *rig) uint32 { return r.bindRemote(r.newWindow(verbs.MWType2, windowKey), peerAccess) + 1 },
		"the last key of type 1": func(r *rig) uint32 {
			w := r.newWindow(verbs.MWType1, windowKey)
			before := r.bindRemote(w, peerAccess)
			require.NotEqual(r.t, before, r.bindRemote(w, peerAccess))
			return before
		},
		"type 1, bound to nothing": func(r *rig) uint32 {
			w := r.newWindow(verbs.MWType1, windowKey)
			r.bindRemote(w, peerAccess)
			r.server.post(localWR(78, &verbs.MWBind{MW: testWindow{w}, MR: testRegion{region: r.remote.Region}}))
			r.exchange()
			require.Equal(r.t, verbs.StatusSuccess, r.server.send.take()[0].Status)
			require.Zero(r.t, r.remote.Bound())
			return w.RKey()
		},
		"invalidated": func(r *rig) uint32 {
			key := r.bindRemote(r.newWindow(verbs.MWType2, windowKey), peerAccess)
			r.server.post(invalidation(78, key))
			r.exchange()
			require.Equal(r.t, []verbs.WC{{ID: 78, Opcode: verbs.WCLocalInvalidate, QPN: serverQPN}}, r.server.send.take())
			require.Zero(r.t, r.remote.Bound())
			return key
		},
		"removed": func(r *rig) uint32 {
			w := r.newWindow(verbs.MWType2, windowKey)
			key := r.bindRemote(w, peerAccess)
			r.server.memory.RemoveWindow(w)
			require.Zero(r.t, r.remote.Bound())
			return key
		},
		"bound on another queue pair": func(r *rig) uint32 {
			other := newEnd(r.t, 0x33, r.server.memory, r.o)
			other.ready(r.o.attr(0x44, 0, 0))
			w := r.newWindow(verbs.MWType2, windowKey)
			other.post(localWR(1, bindOf(w, r.remote.Region, windowKey|5, windowOff, windowLen, peerAccess)))
			other.transmit(r.now)
			require.Equal(r.t, verbs.StatusSuccess, other.send.take()[0].Status)
			return windowKey | 5
		},
		"of another domain": func(r *rig) uint32 {
			w := NewWindow(verbs.MWType1, testDomain+1, windowKey)
			require.True(r.t, r.server.memory.AddWindow(w))
			w.region, w.addr, w.length, w.access = r.remote.Region, r.remote.Base, arenaLen, peerAccess
			return windowKey
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{})
			wr := r.wr(9, verbs.OpWrite, 8)
			wr.RKey, wr.RemoteAddr = key(r), r.remote.Base+windowOff
			r.requireFailed(wr, verbs.StatusRemoteAccessError)
			r.requireIntact()
			require.Equal(t, []verbs.EventType{verbs.EventQPAccessError}, r.server.events)
		})
	}
}

// A window of type 1 grants access to every queue pair of its protection domain.
func TestType1OnAnotherQueuePair(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	other := newEnd(t, 0x33, r.server.memory, r.o)
	other.ready(r.o.attr(0x44, 0, 0))
	w := r.newWindow(verbs.MWType1, windowKey)
	other.post(localWR(1, bindOf(w, r.remote.Region, 0, windowOff, windowLen, peerAccess)))
	other.transmit(r.now)
	other.modify(verbs.QPReset)
	wr := r.wr(9, verbs.OpWrite, 8)
	wr.RKey, wr.RemoteAddr = w.RKey(), r.remote.Base+windowOff
	r.client.post(wr)
	r.exchange()
	r.requireSent(9, verbs.StatusSuccess)
	require.Equal(t, 1, r.remote.Bound())
}

// Binds and invalidations that are not legal end the queue pair that they are posted to.
func TestWindowRequestsRefused(t *testing.T) {
	t.Parallel()
	type set = func(r *rig, w *Window) verbs.SendWR
	bind := func(change func(r *rig, w *Window, b *verbs.MWBind)) set {
		return func(r *rig, w *Window) verbs.SendWR {
			b := bindOf(w, r.remote.Region, windowKey|1, windowOff, windowLen, peerAccess)
			change(r, w, b)
			return localWR(1, b)
		}
	}
	for name, c := range map[string]struct {
		t   verbs.MWType
		set set
	}{
		"already bound":            {verbs.MWType2, bind(func(r *rig, w *Window, _ *verbs.MWBind) { r.bindRemote(w, peerAccess) })},
		"no bytes":                 {verbs.MWType2, bind(func(_ *rig, _ *Window, b *verbs.MWBind) { b.Length = 0 })},
		"a key of another":         {verbs.MWType2, bind(func(_ *rig, _ *Window, b *verbs.MWBind) { b.RKey += 1 << 8 })},
		"zero-based, type 1":       {verbs.MWType1, bind(func(_ *rig, _ *Window, b *verbs.MWBind) { b.Access |= verbs.AccessZeroBased })},
		"before the region":        {verbs.MWType1, bind(func(_ *rig, _ *Window, b *verbs.MWBind) { b.Addr = remoteBase - 1 })},
		"over the end":             {verbs.MWType2, bind(func(_ *rig, _ *Window, b *verbs.MWBind) { b.Length = arenaLen - windowOff + 1 })},
		"over 2^64":                {verbs.MWType2, bind(func(_ *rig, _ *Window, b *verbs.MWBind) { b.Length = below(8) })},
		"not bindable":             {verbs.MWType2, bind(func(r *rig, _ *Window, _ *verbs.MWBind) { r.remote.Access &^= verbs.AccessMWBind })},
		"write, no local write":    {verbs.MWType1, bind(func(r *rig, _ *Window, _ *verbs.MWBind) { r.remote.Access &^= verbs.AccessLocalWrite })},
		"region of another domain": {verbs.MWType2, bind(func(r *rig, _ *Window, _ *verbs.MWBind) { r.remote.Domain++ })},
		"window of another domain": {verbs.MWType1, bind(func(_ *rig, w *Window, _ *verbs.MWBind) { w.Domain++ })},
		"region closed":            {verbs.MWType2, bind(func(r *rig, _ *Window, _ *verbs.MWBind) { r.server.memory.Remove(r.remote.Region) })},
		"window closed":            {verbs.MWType2, bind(func(r *rig, w *Window, _ *verbs.MWBind) { r.server.memory.RemoveWindow(w) })},

		"invalidate: bound to nothing": {verbs.MWType2, func(*rig, *Window) verbs.SendWR { return invalidation(1, windowKey) }},
		"invalidate: type 1":           {verbs.MWType1, func(r *rig, w *Window) verbs.SendWR { return invalidation(1, r.bindRemote(w, peerAccess)) }},
		"invalidate: another low byte": {verbs.MWType2, func(r *rig, w *Window) verbs.SendWR { return invalidation(1, r.bindRemote(w, peerAccess)^1) }},
		"invalidate: a region":         {verbs.MWType2, func(*rig, *Window) verbs.SendWR { return invalidation(1, remoteKey) }},
		"invalidate: no such key":      {verbs.MWType2, func(*rig, *Window) verbs.SendWR { return invalidation(1, 0xbad) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{})
			w := r.newWindow(c.t, windowKey)
			wr := c.set(r, w)
			was := w.region
			r.server.post(wr, verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.FlagSignaled})
			r.exchange()
			require.Equal(t, []verbs.WC{
				{ID: 1, Status: verbs.StatusMemoryWindowBindError, Opcode: CompletionOpcodes[wr.Op], QPN: serverQPN},
				{ID: 2, Status: verbs.StatusFlushed, QPN: serverQPN},
			}, r.server.send.take())
			require.Equal(t, verbs.QPError, r.server.qp.State())
			require.Equal(t, was, w.region, "what was bound stays")
		})
	}
}

func TestWindowRequestsNotPosted(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	for _, wr := range []verbs.SendWR{
		{Op: verbs.OpLocalInvalidate, SGL: []verbs.SGE{r.local.sge(0, 1)}},
		{Op: verbs.OpLocalInvalidate, Flags: verbs.FlagInline},
		{Op: verbs.OpBindMW, Flags: verbs.FlagSolicited},
	} {
		_, err := r.client.qp.PostSend([]verbs.SendWR{wr})
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	r.client.qp.findBind = nil
	_, err := r.client.qp.PostSend([]verbs.SendWR{{Op: verbs.OpBindMW}})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.Zero(t, r.client.qp.sq.Len())
}

// A window is revoked in the middle of a write: the bytes from before stay, and no further one
// is written.
func TestRevokedDuringWrite(t *testing.T) {
	t.Parallel()
	for name, revoke := range map[string]func(r *rig, w *Window){
		"invalidated": func(r *rig, w *Window) {
			r.server.post(invalidation(5, w.RKey()))
			r.server.transmit(r.now)
			require.Equal(r.t, verbs.StatusSuccess, r.server.send.take()[0].Status)
		},
		"invalidated and bound again": func(r *rig, w *Window) {
			key := w.RKey()
			r.server.post(invalidation(5, key), localWR(6, bindOf(w, r.remote.Region, key, windowOff, windowLen, peerAccess)))
			r.server.transmit(r.now)
			require.Len(r.t, r.server.send.take(), 2)
		},
		"closed": func(r *rig, w *Window) { r.server.memory.RemoveWindow(w) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{})
			w := r.newWindow(verbs.MWType2, windowKey)
			wr := r.wr(9, verbs.OpWrite, windowLen)
			wr.RKey, wr.RemoteAddr = r.bindRemote(w, peerAccess), r.remote.Base+windowOff
			r.client.post(wr)
			packets := r.client.transmit(r.now)
			r.server.take(r.now, packets[:3]...)
			revoke(r, w)
			before := bytes.Clone(r.remote.Mem)
			require.Equal(t, r.local.Mem[:3*256], before[windowOff:windowOff+3*256])
			r.server.take(r.now, packets[3:]...)
			r.exchange()
			r.requireSent(9, verbs.StatusRemoteAccessError)
			require.Equal(t, before, r.remote.Mem)
		})
	}
}

// The same in the middle of a read response, and of one that was executed and is requested
// again.
func TestRevokedDuringRead(t *testing.T) {
	t.Parallel()
	for _, sent := range []int{0, 3} {
		r := newRig(t, options{})
		w := r.newWindow(verbs.MWType2, windowKey)
		wr := r.wr(9, verbs.OpRead, windowLen)
		wr.RKey, wr.RemoteAddr = r.bindRemote(w, peerAccess), r.remote.Base+windowOff
		r.client.post(wr)
		r.server.take(r.now, r.client.transmit(r.now)...)
		c := collector{t: t}
		r.server.qp.Transmit(&c, r.now, sent)
		require.Len(t, c.packets, sent)
		r.server.memory.RemoveWindow(w)
		after := r.server.transmit(r.now)
		require.Equal(t, []wire.Opcode{wire.RCAcknowledge}, opcodes(after))
		r.client.take(r.now, c.packets...)
		r.client.take(r.now, after...)
		r.requireSent(9, verbs.StatusRemoteAccessError)
		require.Equal(t, pattern(make([]byte, arenaLen), 1)[sent*256:], r.local.Mem[sent*256:])
	}
	r := newRig(t, options{})
	w := r.newWindow(verbs.MWType2, windowKey)
	wr := r.wr(9, verbs.OpRead, 8)
	wr.RKey, wr.RemoteAddr = r.bindRemote(w, peerAccess), r.remote.Base+windowOff
	r.client.post(wr)
	request := r.client.transmit(r.now)
	r.server.take(r.now, request...)
	require.Equal(t, []wire.Opcode{wire.RCReadResponseOnly}, opcodes(r.server.transmit(r.now)), "which is lost")
	r.server.memory.RemoveWindow(w)
	r.expire()
	r.exchange()
	r.requireSent(9, verbs.StatusRemoteAccessError)
}

// Requests without packets keep the order: a bind is done before the requests after it, and
// none completes before those posted earlier, whatever is lost.
func TestWindowRequestsInOrder(t *testing.T) {
	t.Parallel()
	for _, adaptive := range []bool{false, true} {
		r := newRig(t, options{depth: 16, adaptive: adaptive})
		w := NewWindow(verbs.MWType2, testDomain, windowKey)
		require.True(t, r.client.memory.AddWindow(w))
		bind := func(id uint64, key uint32) verbs.SendWR {
			return localWR(id, bindOf(w, r.local.Region, key, 0, 8, peerAccess))
		}
		silent := r.wr(1, verbs.OpWrite, 700)
		silent.Flags = 0
		r.client.post(
			silent, bind(2, windowKey|2), invalidation(3, windowKey|2), r.wr(4, verbs.OpRead, 700), bind(5, windowKey|5),
			r.wr(6, verbs.OpWrite, 8), invalidation(7, windowKey|5), bind(8, windowKey|8))
		lost := r.client.transmit(r.now)
		require.Len(t, lost, 5)
		require.Empty(t, r.client.send.take(), "nothing before the write")
		require.Equal(t, uint32(windowKey|8), w.key, "the read does not hold them up")
		r.expire()
		r.exchange()
		require.Equal(t, []uint64{2, 3, 4, 5, 6, 7, 8}, ids(r.client.send.take()))
		require.Zero(t, r.client.qp.sq.Len())
		require.Equal(t, uint64(2), w.binds, "each was executed once")
	}
}

// A fence makes an invalidation wait for the reads before it.
func TestFencedInvalidation(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	w := NewWindow(verbs.MWType2, testDomain, windowKey)
	require.True(t, r.client.memory.AddWindow(w))
	fenced := invalidation(3, windowKey)
	fenced.Flags |= verbs.FlagFence
	r.client.post(localWR(1, bindOf(w, r.local.Region, windowKey, 0, 8, peerAccess)), r.wr(2, verbs.OpRead, 8), fenced)
	request := r.client.transmit(r.now)
	require.NotNil(t, w.region)
	r.server.take(r.now, request...)
	r.exchange()
	require.Nil(t, w.region)
	require.Equal(t, []uint64{1, 2, 3}, ids(r.client.send.take()))
}

// In SQD, requests that have not begun wait.
func TestWindowRequestsDrained(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	w := NewWindow(verbs.MWType2, testDomain, windowKey)
	require.True(t, r.client.memory.AddWindow(w))
	r.client.modify(verbs.QPSendQueueDrained)
	r.client.post(localWR(1, bindOf(w, r.local.Region, windowKey, 0, 8, peerAccess)))
	r.exchange()
	require.Nil(t, w.region)
	r.client.modify(verbs.QPReadyToSend)
	r.exchange()
	require.NotNil(t, w.region)
	r.requireSent(1, verbs.StatusSuccess)
}

func (r *rig) sendInvalidate(id uint64, key uint32, n int) verbs.SendWR {
	wr := r.wr(id, verbs.OpSendInvalidate, n)
	wr.InvalidateRKey = key
	return wr
}

func TestSendInvalidate(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 13, 256, 700} {
		r := newRig(t, options{})
		w := r.newWindow(verbs.MWType2, windowKey)
		key := r.bindRemote(w, peerAccess)
		r.server.postRecv(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{r.remote.sge(8192, 1024)}}, verbs.RecvWR{ID: 4})
		r.client.post(r.sendInvalidate(9, key, n))
		packets := r.client.transmit(r.now)
		want := []wire.Opcode{wire.RCSendOnlyInvalidate}
		if n > 256 {
			want = []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastInvalidate}
		}
		require.Equal(t, want, opcodes(packets))
		require.Equal(t, key, packets[len(packets)-1].InvalidateRKey)
		r.server.take(r.now, packets[:len(packets)-1]...)
		require.NotNil(t, w.region, "it is the last packet that takes it away")
		r.server.take(r.now, packets[len(packets)-1])
		require.Nil(t, w.region)
		require.Equal(t, []verbs.WC{{ID: 3, Bytes: uint32(n), Opcode: verbs.WCRecv, InvalidatedRKey: key, QPN: serverQPN}}, r.server.recv.take())
		require.Equal(t, r.local.Mem[:n], r.remote.Mem[8192:8192+n])
		r.client.take(r.now, r.server.transmit(r.now)...)
		r.requireSent(9, verbs.StatusSuccess)
		require.Equal(t, uint64(1), r.client.counters.Sends)

		// The same key, bound anew, does not fall to a packet that comes again.
		r.server.post(localWR(5, bindOf(w, r.remote.Region, key, windowOff, windowLen, peerAccess)))
		r.server.transmit(r.now)
		r.server.take(r.now, packets...)
		require.NotNil(t, w.region)
		require.Empty(t, r.server.recv.take())
		require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
	}
}

// Keys that a peer cannot invalidate.
func TestSendInvalidateRefused(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]func(r *rig) uint32{
		"no such key":      func(*rig) uint32 { return 0xbad },
		"a region":         func(*rig) uint32 { return remoteKey },
		"type 1":           func(r *rig) uint32 { return r.bindRemote(r.newWindow(verbs.MWType1, windowKey), peerAccess) },
		"another byte":     func(r *rig) uint32 { return r.bindRemote(r.newWindow(verbs.MWType2, windowKey), peerAccess) + 1 },
		"bound to nothing": func(r *rig) uint32 { return r.newWindow(verbs.MWType2, windowKey).RKey() },
		"another peer's": func(r *rig) uint32 {
			other := newEnd(r.t, 0x33, r.server.memory, r.o)
			other.ready(r.o.attr(0x44, 0, 0))
			other.post(localWR(1, bindOf(r.newWindow(verbs.MWType2, windowKey), r.remote.Region, windowKey, windowOff, windowLen, peerAccess)))
			other.transmit(r.now)
			return windowKey
		},
	} {
		for _, n := range []int{13, 700} {
			r := newRig(t, options{})
			r.server.postRecv(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{r.remote.sge(8192, 1024)}})
			k := key(r)
			held := r.remote.Bound()
			r.requireFailed(r.sendInvalidate(9, k, n), verbs.StatusRemoteAccessError)
			require.Equal(t, verbs.QPError, r.server.qp.State(), name)
			require.Equal(t, []verbs.EventType{verbs.EventQPAccessError}, r.server.events)
			require.Equal(t, []verbs.WC{{ID: 3, Status: verbs.StatusFlushed, Opcode: verbs.WCRecv, QPN: serverQPN}}, r.server.recv.take())
			require.Equal(t, held, r.remote.Bound(), "%s: still bound", name)
		}
	}
}

// A send with invalidate that finds no receive invalidates nothing until it finds one.
func TestSendInvalidateNotReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	w := r.newWindow(verbs.MWType2, windowKey)
	key := r.bindRemote(w, peerAccess)
	r.client.post(r.sendInvalidate(9, key, 13))
	r.exchange()
	require.NotNil(t, w.region)
	r.server.postRecv(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{r.remote.sge(8192, 1024)}})
	r.expire()
	r.exchange()
	require.Nil(t, w.region)
	r.requireSent(9, verbs.StatusSuccess)
}

// The end of a queue pair's connection revokes its windows of type 2, so that the next peer
// cannot use them; the state Error alone revokes nothing.
func TestWindowsOfAQueuePairThatEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *rig){
		"reset":  func(r *rig) { r.server.modify(verbs.QPReset) },
		"closed": func(r *rig) { r.server.qp.Close() },
	} {
		r := newRig(t, options{})
		one, two := r.newWindow(verbs.MWType2, windowKey), r.newWindow(verbs.MWType2, windowKey+1<<8)
		shared := r.newWindow(verbs.MWType1, windowKey+2<<8)
		for _, w := range []*Window{one, two, shared} {
			r.bindRemote(w, peerAccess)
		}
		r.server.modify(verbs.QPError)
		require.Equal(t, 3, r.remote.Bound(), name)
		end(r)
		require.Equal(t, 1, r.remote.Bound(), name)
		require.Nil(t, one.region)
		require.Nil(t, two.region)
		require.NotNil(t, shared.region)
		require.Zero(t, r.server.qp.windows.Len())
	}
}

// The keys of a window are never those of another one.
func TestWindowKeysAreItsOwn(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	require.True(t, m.AddWindow(NewWindow(verbs.MWType2, 1, 0x1234_5678)))
	require.False(t, m.AddWindow(NewWindow(verbs.MWType1, 1, 0x1234_5600)))
	require.False(t, m.AddWindow(NewWindow(verbs.MWType1, 1, 0x17)), "the key zero is none")
	require.False(t, m.Add(&Region{Key: 0x1234_56ff, Mem: make([]byte, 1)}))
	require.True(t, m.Add(&Region{Key: 0x1234_57ff, Mem: make([]byte, 1)}))
	require.False(t, m.AddWindow(NewWindow(verbs.MWType1, 1, 0x1234_5700)))
	require.Equal(t, 1, m.Windows())
}

func TestUnreliableWindows(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{kind: verbs.UC})
	w := r.newWindow(verbs.MWType2, windowKey)
	r.server.post(localWR(1, bindOf(w, r.remote.Region, windowKey, windowOff, windowLen, peerAccess)))
	r.server.transmit(r.now)
	wr := r.wr(9, verbs.OpWrite, 700)
	wr.RKey, wr.RemoteAddr = windowKey, r.remote.Base+windowOff
	r.client.post(wr)
	packets := r.client.transmit(r.now)
	r.server.take(r.now, packets[:2]...)
	r.server.post(invalidation(2, windowKey))
	r.server.transmit(r.now)
	require.Equal(t, []uint64{1, 2}, ids(r.server.send.take()))
	r.server.take(r.now, packets[2:]...)
	require.Equal(t, r.local.Mem[:512], r.remote.Mem[windowOff:windowOff+512])
	require.NotEqual(t, r.local.Mem[512:700], r.remote.Mem[windowOff+512:windowOff+700])
	r.server.post(invalidation(3, windowKey))
	r.server.transmit(r.now)
	require.Equal(t, []verbs.WC{{ID: 3, Status: verbs.StatusMemoryWindowBindError, Opcode: verbs.WCLocalInvalidate, QPN: serverQPN}}, r.server.send.take())
	require.Equal(t, verbs.QPSendQueueError, r.server.qp.State())
}

func TestWindowsAllocateNothing(t *testing.T) {
	r := newRig(t, options{})
	w := r.newWindow(verbs.MWType2, windowKey)
	b := bindOf(w, r.remote.Region, windowKey, windowOff, windowLen, peerAccess)
	wrs := []verbs.SendWR{{Op: verbs.OpBindMW, Bind: b}, {Op: verbs.OpLocalInvalidate, Flags: verbs.FlagSignaled}}
	silent := &noOutput{}
	n := testing.AllocsPerRun(100, func() {
		b.RKey = verbs.NextRKey(b.RKey)
		wrs[1].InvalidateRKey = b.RKey
		if _, err := r.server.qp.PostSend(wrs); err != nil {
			t.Error(err)
		}
		r.server.qp.Transmit(silent, r.now, 16)
		r.server.send.clear()
	})
	require.Zero(t, n)
	require.Zero(t, r.server.qp.sq.Len())
}

// noOutput is an Output that no packet leaves.
type noOutput struct{}

func (*noOutput) Send(*wire.Packet, [][]byte, int) bool { return true }

// outputFunc is an Output.
type outputFunc func(p *wire.Packet, pieces [][]byte, n int)

func (f outputFunc) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	f(p, pieces, n)
	return true
}

// A window of type 1 is revoked under another lock than that of the queue pair whose peer
// reads through it: an Output that reads the payload later finds the bytes that were there
// when it was sent.
func TestPayloadOfAWindowTakenAwayElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	w := r.newWindow(verbs.MWType1, windowKey)
	wr := r.wr(9, verbs.OpRead, windowLen)
	wr.RKey, wr.RemoteAddr = r.bindRemote(w, verbs.AccessRemoteRead), r.remote.Base+windowOff
	lent := r.remote.Mem[windowOff : windowOff+windowLen]
	want := bytes.Clone(lent)
	r.client.post(wr)
	r.request()
	var got []byte
	elsewhere := newEnd(t, 4711, r.server.memory, options{}.defaults())
	r.server.qp.Transmit(outputFunc(func(_ *wire.Packet, pieces [][]byte, n int) {
		require.True(t, elsewhere.qp.bind(&binding{window: w, key: w.RKey()}))
		clear(lent)
		for _, piece := range pieces {
			got = append(got, piece...)
		}
	}), r.now, 1)
	require.NotEmpty(t, got)
	require.Equal(t, want[:len(got)], got)

	header := wire.RETH{VA: r.remote.Base + windowOff, RKey: r.bindRemote(w, verbs.AccessRemoteRead), Length: windowLen}
	copy(lent, want)
	var bounce []byte
	part, ok := r.server.memory.ReadPart(testDomain, header, 64, 512, &bounce) // as SRD does
	require.True(t, ok)
	clear(lent)
	require.Equal(t, want[64:576], part)
}

// An accepted read is answered before a later request is refused; then the queue pair fails
// and sends nothing more.
func TestReadBeforeARefusal(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	bad := r.wr(2, verbs.OpWrite, 8)
	bad.RKey++
	r.client.post(r.wr(1, verbs.OpRead, 2048), bad)
	r.request()
	require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
	r.exchange()
	require.Equal(t, verbs.QPError, r.server.qp.State())
	require.Equal(t, []verbs.EventType{verbs.EventQPAccessError}, r.server.events)
	list := r.client.send.take()
	require.Equal(t, []verbs.Status{verbs.StatusSuccess, verbs.StatusRemoteAccessError}, []verbs.Status{list[0].Status, list[1].Status})
}

// A queue pair that fails sends nothing more of the memory that its peer was reading.
func TestFailureEndsReads(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.post(r.wr(1, verbs.OpRead, 2048))
	r.request()
	r.server.qp.PeerGone()
	require.Empty(t, r.server.transmit(r.now))
}

// 8 aligned bytes are stored as one word, also if they arrive in two pieces: a reader never
// sees one piece without the other.
func TestWordFromTwoPieces(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	dst := r.remote.Mem[:8]
	header := wire.RETH{VA: r.remote.Base, RKey: r.remote.Key, Length: 8}
	at := word(dst)
	clear(dst)
	stop := make(chan struct{})
	torn := make(chan uint64, 1)
	go func() {
		defer close(torn)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if v := atomic.LoadUint64(at); uint32(v) != uint32(v>>32) {
				torn <- v
				return
			}
		}
	}()
	writes := 1_000_000
	if testing.Short() {
		writes /= 5
	}
	var b [8]byte
	pieces := [][]byte{b[:4], b[4:]}
	for i := range writes {
		binary.NativeEndian.PutUint64(b[:], uint64(byte(i))*0x0101_0101_0101_0101)
		var w incomingWrite
		if !w.begin(r.server.qp, header) {
			require.Fail(t, "the write is refused")
		}
		if held, fault := w.copy(8, pieces); !held || fault != dma.NoFault {
			require.Fail(t, "the bytes are not written")
		}
	}
	close(stop)
	v, ok := <-torn
	require.False(t, ok, "%#x", v)
}

// A program that sees a small write finds the data of earlier ones in place.
func TestWritesInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	const apart = 1 << 10 // not on the same cache line
	data, flag := word(r.remote.Mem), (*[4]byte)(r.remote.Mem[apart:])
	*data, *flag = 0, [4]byte{}
	writes := uint64(1_000_000)
	if testing.Short() {
		writes /= 5
	}
	// The data are a counter, and the flag is its last byte: neither can be seen half written.
	go func() {
		var b [8]byte
		for i := uint64(1); i <= writes; i++ {
			binary.NativeEndian.PutUint64(b[:], i)
			var w incomingWrite
			w.begin(r.server.qp, wire.RETH{VA: r.remote.Base, RKey: r.remote.Key, Length: 8})
			w.copy(8, [][]byte{b[:]})
			w.begin(r.server.qp, wire.RETH{VA: r.remote.Base + apart, RKey: r.remote.Key, Length: 1})
			w.copy(1, [][]byte{{byte(i)}})
		}
	}()
	for before, after := uint64(0), uint64(0); after < writes; {
		before = atomic.LoadUint64(data)
		var seen [4]byte
		binary.NativeEndian.PutUint32(seen[:], atomic.LoadUint32((*uint32)(unsafe.Pointer(flag))))
		after = atomic.LoadUint64(data)
		oldest := max(before, 1) - 1 // that the flag can be of
		if count := oldest + uint64(seen[0]-byte(oldest)); count > after {
			require.Fail(t, "a later write came first", "between %d and %d: %d", before, after, seen[0])
		}
	}
}

// If there is no room for the NAK of a refusal among the responses, the connection ends at
// once.
func TestRefusalWithoutRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.post(r.wr(1, verbs.OpRead, 2048))
	r.request()
	for !r.server.qp.responses.Full() {
		r.server.qp.nak(wire.NakSequence)
	}
	r.server.qp.refuse(wire.NakInvalidRequest)
	require.Equal(t, verbs.QPError, r.server.qp.State())
}

// A payload that could not be read has no effect on the next one, which may arrive by another
// path.
func TestUnreadableOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.server.qp.unreadable = true
	p := wire.Packet{Opcode: wire.RCAcknowledge}
	require.False(t, r.server.qp.ReceivePieces(&p, r.client.qp.PathMTU(), nil, nil, 0))
	require.False(t, r.server.qp.unreadable)
}

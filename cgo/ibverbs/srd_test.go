//go:build linux && cgo && verbs

package ibverbs

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/internal/efa"
	"github.com/verbena-rdma/verbena/cgo/internal/efa/efatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// newEFA makes a device with the efadv of a version of rdma-core, and nothing else.
func newEFA(t *testing.T, rdmaCore int) *device {
	t.Helper()
	own, err := efa.Open(efatest.Build(t, rdmaCore), nil)
	require.NoError(t, err)
	d := &device{
		info: verbs.DeviceInfo{Name: "efa_0"}, queues: make(map[uint64]*completionQueue), pairs: make(map[uint32]*queuePair),
		attr: verbs.DeviceAttr{Transports: verbs.TransportSet(verbs.UD), MaxMessage: 8928, MaxCQE: 1000, MaxQPWR: 100, MaxSGE: 1},
	}
	d.useEFA(own, 1)
	return d
}

func TestSRDAttr(t *testing.T) {
	d := newEFA(t, 52)
	assert.Equal(t, verbs.TransportSet(verbs.UD, verbs.SRD), d.attr.Transports)
	assert.Equal(t, verbs.WCSource, d.attr.CompletionFields)
	assert.Equal(t, verbs.SRDAttr{
		MaxSendWR: 4096, MaxRecvWR: 32768, MaxSendSGE: 2, MaxRecvSGE: 3, MaxReadSGE: 1, MaxInline: 32,
		MaxMessage: 8928, MaxRDMA: 1 << 30, Read: true, Write: true, UnsolicitedWriteRecv: true, RNRRetry: true,
	}, d.attr.SRD)
	assert.Equal(t, queueLimits{4096, 32768, 2, 3, 32}, d.limitsOf(verbs.SRD))
	assert.Equal(t, queueLimits{100, 100, 1, 1, 1 << 16}, d.limitsOf(verbs.UD))
}

// What older libraries lack is refused, with the version that has it.
func TestSRDLacks(t *testing.T) {
	d := newEFA(t, 44)
	err := d.checkService(&verbs.QPInit{Type: verbs.SRD, UnsolicitedWriteRecv: true})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.ErrorContains(t, err, "rdma-core 52")
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpWriteImm} {
		err = d.checkSRD(&verbs.SendWR{Op: op})
		require.ErrorIs(t, err, verbs.ErrNotSupported)
		assert.ErrorContains(t, err, "rdma-core 46")
		require.NoError(t, newEFA(t, 46).checkSRD(&verbs.SendWR{Op: op}))
	}
	require.NoError(t, d.checkSRD(&verbs.SendWR{Op: verbs.OpRead}))
	require.NoError(t, d.checkSRD(&verbs.SendWR{Op: verbs.OpSendImm}))
	d.attr.SRD.Read = false
	require.ErrorIs(t, d.checkSRD(&verbs.SendWR{Op: verbs.OpRead}), verbs.ErrNotSupported)

	require.NoError(t, d.checkService(&verbs.QPInit{Type: verbs.SRD}))
	require.ErrorIs(t, d.checkService(&verbs.QPInit{Type: verbs.SRD, SRQ: &sharedReceiveQueue{}}), verbs.ErrNotSupported)
	require.ErrorIs(t, d.checkService(&verbs.QPInit{Type: verbs.UD, UnsolicitedWriteRecv: true}), verbs.ErrInvalid)
	require.ErrorIs(t, d.checkService(&verbs.QPInit{Type: verbs.RC}), verbs.ErrNotSupported)
	assert.True(t, d.needsExtendedCQ(0))
	assert.False(t, newEFA(t, 26).needsExtendedCQ(0), "its library has none")
}

// An EFA whose library is missing has the other services, and says why not this one.
func TestSRDLibrary(t *testing.T) {
	for _, file := range []string{"libefa-that-is-not-there.so.1", "libc.so.6"} {
		_, why := efa.Open(file, nil)
		d := &device{info: verbs.DeviceInfo{Name: "efa_0"}, efaErr: efaError("efadv_query_device", "efa_0", why)}
		err := d.checkService(&verbs.QPInit{Type: verbs.SRD})
		require.ErrorIs(t, err, verbs.ErrNotSupported)
		var verb *Error
		require.ErrorAs(t, err, &verb)
		assert.Equal(t, "efadv_query_device", verb.Verb)
		assert.Equal(t, "device efa_0 has no transport service SRD: efadv_query_device: efa_0: "+why.Error(), err.Error())
	}
	require.ErrorIs(t, efaError("efadv_query_ah", "a handle", syscall.EINVAL), verbs.ErrInvalid)
}

// The completions of the library's queues, taken in batches of two and all at once.
func TestSRDCompletions(t *testing.T) {
	gid := verbs.GID{}
	for i := range gid {
		gid[i] = 0xfe
	}
	want := []completion{
		{verbs.WC{ID: 1, Opcode: verbs.WCRecv, Bytes: 100, HasImm: true, Imm: 0xabcd, QPN: 17, SrcQPN: 18}, verbs.WCExtra{SourceAH: 5}},
		{verbs.WC{ID: 2, Opcode: verbs.WCRecv, Bytes: 200, QPN: 17, SrcQPN: 18}, verbs.WCExtra{SourceAH: verbs.NoAH, SourceGID: gid}},
		{verbs.WC{Opcode: verbs.WCRecvWriteImm, Bytes: 1 << 20, HasImm: true, Imm: 0xabcd, QPN: 17, SrcQPN: 18, Unsolicited: true}, verbs.WCExtra{SourceAH: 6}},
		{verbs.WC{ID: 3, Opcode: verbs.WCSend, QPN: 17}, verbs.WCExtra{SourceAH: verbs.NoAH}},
		{verbs.WC{ID: 4, Status: verbs.StatusRemoteInvalidRDRequest, VendorError: 13, QPN: 17}, verbs.WCExtra{SourceAH: verbs.NoAH}},
	}
	for _, capacity := range []int{2, 100} {
		for _, fields := range []verbs.WCFields{0, verbs.WCSource} {
			q := &completionQueue{device: newEFA(t, 52)}
			require.NoError(t, q.createExtended(capacity, fields))
			assert.Equal(t, capacity, q.Capacity())
			wcs, extras := make([]verbs.WC, 10), make([]verbs.WCExtra, 10)
			n, err := q.PollExtended(wcs[:3], extras[:3])
			require.NoError(t, err)
			require.Equal(t, 3, n)
			q.dropCompletions(4242) // it holds the others then, which are nobody's that it forgets
			more, err := q.PollExtended(wcs[3:], extras[3:])
			require.NoError(t, err)
			require.Equal(t, len(want), n+more)
			for i, c := range want {
				assert.Equal(t, c.wc, wcs[i])
				if fields == 0 {
					c.extra = verbs.WCExtra{}
				}
				assert.Equal(t, c.extra, extras[i])
			}
			n, err = q.Poll(wcs)
			require.NoError(t, err)
			require.Zero(t, n)
			_, err = q.Arm(false)
			require.ErrorIs(t, err, verbs.ErrNotSupported, "it has no channel for events")
			q.extended.free()
		}
	}
	q := &completionQueue{device: newEFA(t, 44)}
	require.NoError(t, q.createExtended(4, verbs.WCSource), "nothing marks unsolicited completions, nor are there any")
	wcs := make([]verbs.WC, 10)
	n, err := q.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, len(want), n)
	assert.False(t, wcs[2].Unsolicited)
	q.extended.free()
	// An older library says no to what it does not know.
	q = &completionQueue{device: newEFA(t, 44)}
	err = q.createExtended(4, verbs.WCTimestamp)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.ErrorContains(t, err, "efadv_create_cq: 4 entries")
}

// The times of completions, in queues that were made for one, both or none.
func TestCompletionTimes(t *testing.T) {
	d := newEFA(t, efatest.WithClock)
	for _, fields := range []verbs.WCFields{0, verbs.WCTimestamp, verbs.WCWallClock, verbs.WCTimestamp | verbs.WCWallClock} {
		q := &completionQueue{device: d}
		require.NoError(t, q.createExtended(10, fields))
		wcs, extras := make([]verbs.WC, 5), make([]verbs.WCExtra, 5)
		n, err := q.PollExtended(wcs, extras)
		require.NoError(t, err)
		require.Equal(t, 5, n)
		for i, id := range []uint64{1, 2, 99, 3, 4} {
			var want verbs.WCExtra
			if fields&verbs.WCTimestamp != 0 && wcs[i].Status == verbs.StatusSuccess {
				want.Timestamp = 1000 + id
			}
			if fields&verbs.WCWallClock != 0 && wcs[i].Status == verbs.StatusSuccess {
				want.WallClock = 1000000 + id
			}
			assert.Equal(t, want, extras[i], "fields %#x, completion %d", uint32(fields), id)
		}
		q.extended.free()
	}
}

// point makes a pointer that is not nil, to what C would have made.
func point[T any](p **T) *T {
	*p = new(T)
	return *p
}

// newSRDPair makes a queue pair that takes requests, with a completion queue that is empty.
func newSRDPair(t *testing.T, d *device, init verbs.QPInit) (*queuePair, *completionQueue) {
	t.Helper()
	require.NoError(t, load())
	point(&d.ctx)
	cq := &completionQueue{device: d}
	require.NoError(t, cq.createExtended(100, verbs.WCSource))
	d.queues[cq.key] = cq
	_, err := cq.Poll(make([]verbs.WC, 10))
	require.NoError(t, err)
	init.Type, init.SendCQ, init.RecvCQ = verbs.SRD, cq, cq
	qp, err := (&protectionDomain{device: d}).CreateQP(init)
	require.NoError(t, err)
	q := qp.(*queuePair)
	q.state = verbs.QPReadyToSend
	return q, cq
}

// ahHandle is where the number of an address handle is in C.
type ahHandle struct {
	context, pd uintptr
	handle      uint32
}

func newSRDHandle(t *testing.T, q *queuePair, handle uint32) numberedHandle {
	t.Helper()
	ah := &addressHandle{pd: q.pd}
	(*ahHandle)(unsafe.Pointer(point(&ah.c))).handle = handle
	number, err := q.pd.device.handleNumber(ah.c)
	require.NoError(t, err)
	return numberedHandle{ah, number}
}

// What the library's queue pairs are given is what was posted: the library has one peer,
// whose numbers are these.
func TestSRDPosts(t *testing.T) {
	d := newEFA(t, 52)
	q, cq := newSRDPair(t, d, verbs.QPInit{MaxSendWR: 16, MaxRecvWR: 1, MaxSendSGE: 2, MaxInline: 32, UnsolicitedWriteRecv: true})
	assert.Equal(t, uint32(101), q.Num(), "with the flag")
	peer, unknownPeer := newSRDHandle(t, q, 7), newSRDHandle(t, q, 8)
	assert.Equal(t, uint16(7), peer.Number())
	_, err := d.handleNumber(point(&new(addressHandle).c))
	require.ErrorIs(t, err, verbs.ErrInvalid)

	data := make([]byte, 16)
	good := verbs.SendWR{
		Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{{Length: 8}, {Length: 8}},
		AH: peer, RemoteQPN: 0x123, RemoteQKey: 0x456, RKey: 0x789, RemoteAddr: 0xb000 - 16,
	}
	with := func(change func(*verbs.SendWR)) verbs.SendWR {
		wr := good
		change(&wr)
		return wr
	}
	operation := func(op verbs.Opcode) verbs.SendWR { return with(func(wr *verbs.SendWR) { wr.Op = op }) }
	inline := with(func(wr *verbs.SendWR) {
		wr.Op, wr.Flags = verbs.OpSend, wr.Flags|verbs.FlagInline
		wr.SGL = []verbs.SGE{{Addr: uint64(uintptr(unsafe.Pointer(&data[0]))), Length: 16}}
	})
	want := []verbs.WC{
		{Opcode: verbs.WCWrite}, {Opcode: verbs.WCWrite}, {Opcode: verbs.WCRead}, {Opcode: verbs.WCSend}, {Opcode: verbs.WCSend}, {Opcode: verbs.WCSend},
		{Status: verbs.StatusResponseTimeout}, {Status: verbs.StatusRemoteInvalidRDRequest}, {Status: verbs.StatusRemoteInvalidRDRequest},
		{Status: verbs.StatusRemoteAccessError}, {Status: verbs.StatusRemoteAccessError}, {Opcode: verbs.WCWrite},
	}
	wrs := []verbs.SendWR{
		good, operation(verbs.OpWriteImm), operation(verbs.OpRead), operation(verbs.OpSend), operation(verbs.OpSendImm), inline,
		with(func(wr *verbs.SendWR) { wr.AH = unknownPeer }),
		with(func(wr *verbs.SendWR) { wr.RemoteQPN++ }),
		with(func(wr *verbs.SendWR) { wr.RemoteQKey++ }),
		with(func(wr *verbs.SendWR) { wr.RKey++ }),
		with(func(wr *verbs.SendWR) { wr.RemoteAddr++ }),
		good,
	}
	for i := range wrs {
		wrs[i].ID = uint64(i)
	}
	n, err := q.PostSend(wrs)
	require.NoError(t, err)
	require.Equal(t, len(wrs), n)
	wcs := make([]verbs.WC, 100)
	n, err = cq.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, len(want), n)
	for i, wc := range want {
		wc.ID, wc.QPN = uint64(i), 17
		if wc.Status != verbs.StatusSuccess {
			wc.VendorError = 13
		}
		assert.Equal(t, wc, wcs[i])
	}

	// One that is refused, by whomever, is refused alone.
	for _, bad := range []struct {
		wr   verbs.SendWR
		want string
		kind error
	}{
		{with(func(wr *verbs.SendWR) { wr.Flags = 0 }), "ibv_wr_complete: invalid argument", verbs.ErrInvalid},
		{with(func(wr *verbs.SendWR) { wr.AH = nil }), "needs an address handle", verbs.ErrInvalid},
		{with(func(wr *verbs.SendWR) { wr.Flags |= verbs.FlagFence }), "SRD has only", verbs.ErrInvalid},
		{operation(verbs.OpFetchAdd), "no such operation", verbs.ErrInvalid},
		{with(func(wr *verbs.SendWR) { wr.SGL = make([]verbs.SGE, 3) }), "3 scatter-gather entries", verbs.ErrInvalid},
		{with(func(wr *verbs.SendWR) {
			wr.Op, wr.Flags, wr.SGL = verbs.OpSend, wr.Flags|verbs.FlagInline, []verbs.SGE{{Length: 33}}
		}), "33 bytes of inline data; at most 32 are allowed", verbs.ErrInvalid},
	} {
		n, err = q.PostSend([]verbs.SendWR{good, good, bad.wr, good})
		require.ErrorIs(t, err, bad.kind)
		assert.ErrorContains(t, err, "post send 3 of 4")
		assert.ErrorContains(t, err, bad.want)
		assert.Equal(t, 2, n)
		n, err = cq.Poll(wcs)
		require.NoError(t, err)
		assert.Equal(t, 2, n, "%s", bad.want)
	}
	full := make([]verbs.SendWR, 50)
	for i := range full {
		full[i] = good
	}
	n, err = q.PostSend(full)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	assert.Equal(t, 16, n)

	// With rdma-core 44 there are no writes, and the flag of the queue pair is not set.
	q, _ = newSRDPair(t, newEFA(t, 44), verbs.QPInit{MaxSendWR: 1, MaxRecvWR: 1, SignalAll: true})
	assert.Equal(t, uint32(100), q.Num())
	good.AH, good.Flags, good.SGL = newSRDHandle(t, q, 7), 0, good.SGL[:1]
	n, err = q.PostSend([]verbs.SendWR{operation(verbs.OpRead), good})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.ErrorContains(t, err, "rdma-core 46")
	assert.Equal(t, 1, n)
}

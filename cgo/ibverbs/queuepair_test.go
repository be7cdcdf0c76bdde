//go:build linux && cgo && verbs

package ibverbs_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestGuestTransitions(t *testing.T) {
	d := openAdapter(t)
	e := newEnd(t, d, config{})
	good := verbs.QPAttr{Port: 1, Address: verbs.AddressAttr{DGID: e.gid.GID, SGIDIndex: e.gid.Index, Port: 1}, PathMTU: 1024, DestQPN: 17, MaxDestReadAtomic: 1, MaxInitReadAtomic: 1}
	type step struct {
		to   verbs.QPState
		mask verbs.QPAttrMask
	}
	init, rtr := step{verbs.QPInitialized, verbs.RCToInit}, step{verbs.QPReadyToReceive, verbs.RCToRTR}
	check := func(s step, drop, add verbs.QPAttrMask, change func(*verbs.QPAttr), want string) {
		t.Helper()
		attr := good
		attr.State = s.to
		if change != nil {
			change(&attr)
		}
		before, err := e.qp.Query()
		require.NoError(t, err)
		err = e.qp.Modify(attr, s.mask&^drop|add)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		assert.ErrorContains(t, err, want)
		after, err := e.qp.Query()
		require.NoError(t, err)
		assert.Equal(t, before, after, "a refused change changes nothing")
	}
	check(init, verbs.QPAttrPort, 0, nil, "Reset to Init: invalid argument (errno 22): attribute Port is missing")
	check(init, 0, verbs.QPAttrDestQPN, nil, "attribute DestQPN is not allowed in this transition")
	check(init, 0, 0, func(a *verbs.QPAttr) { a.Port = 2 }, "attribute Port is 2; it must be from 1 to 1")
	check(init, 0, 0, func(a *verbs.QPAttr) { a.Port = 300 }, "attribute Port is 300")
	check(step{verbs.QPReadyToSend, verbs.QPAttrState}, 0, 0, nil, "there is no such transition")
	attr := good
	attr.State = verbs.QPInitialized
	require.NoError(t, e.qp.Modify(attr, init.mask))
	check(rtr, verbs.QPAttrRQPSN, 0, nil, "Init to RTR: invalid argument (errno 22): attribute RQPSN is missing")
	check(rtr, 0, 0, func(a *verbs.QPAttr) { a.PathMTU = 1500 }, "attribute PathMTU is 1500; it must be 256, 512, 1024, 2048 or 4096")
	check(rtr, 0, 0, func(a *verbs.QPAttr) { a.MaxDestReadAtomic = 1000 }, "attribute MaxDestReadAtomic is 1000; it must be from 0 to 128")
	check(rtr, 0, 0, func(a *verbs.QPAttr) { a.Address.UDPPort = 4792 }, "attribute Address: UDPPort is 4792")
	check(rtr, 0, 0, func(a *verbs.QPAttr) { a.Address.SGIDIndex = 200 }, "it is empty; these can: 1 (10.0.0.1, RoCEv2, v0)")
	check(rtr, 0, 0, func(a *verbs.QPAttr) { a.Address.SGIDIndex = 2 }, "its GID fd00::1 does not have the peer's address family; these can: 1 (10.0.0.1, RoCEv2, v0)")
	check(rtr, 0, 0, func(a *verbs.QPAttr) { a.Address.Port = 2 }, "port 2 of rxe0")
	require.NoError(t, e.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
	require.NoError(t, e.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))

	err := e.qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend}, verbs.QPAttrState)
	verb, ok := errors.AsType[*ibverbs.Error](err)
	require.True(t, ok)
	assert.Equal(t, "ibv_modify_qp", verb.Verb)
	require.ErrorIs(t, err, syscall.EINVAL)
	t.Log(err)
}

func TestGuestQueryPair(t *testing.T) {
	d := openAdapter(t)
	a, b := pair(t, d, d, config{})
	got, err := a.qp.Query()
	require.NoError(t, err)
	assert.Equal(t, verbs.QPReadyToSend, got.State)
	assert.Equal(t, b.qp.Num(), got.DestQPN)
	assert.Equal(t, verbs.MTU(4096), got.PathMTU)
	assert.Equal(t, b.gid.GID, got.Address.DGID)
	assert.Equal(t, a.gid.Index, got.Address.SGIDIndex)
	assert.Equal(t, uint8(64), got.Address.HopLimit)
	assert.Equal(t, allAccess&^verbs.AccessLocalWrite, got.Access&^verbs.AccessLocalWrite)
	assert.Equal(t, []uint8{17, 7, 7, 12}, []uint8{got.Timeout, got.RetryCount, got.RNRRetry, got.MinRNRTimer})
	assert.Equal(t, verbs.RC, a.qp.Type())
}

func TestGuestLimits(t *testing.T) {
	d := openAdapter(t)
	cq, err := d.CreateCQ(verbs.CQInit{Capacity: 10})
	require.NoError(t, err)
	defer func() { require.NoError(t, cq.Close()) }()
	assert.GreaterOrEqual(t, cq.Capacity(), 10)
	attr, err := d.Query()
	require.NoError(t, err)
	for _, n := range []int{0, -1, attr.MaxCQE + 1} {
		_, err = d.CreateCQ(verbs.CQInit{Capacity: n})
		require.ErrorIs(t, err, verbs.ErrLimit)
	}
	pd := d.DefaultPD()
	for _, c := range []struct {
		change func(*verbs.QPInit)
		want   error
	}{
		{func(i *verbs.QPInit) { i.MaxSendWR = attr.MaxQPWR + 1 }, verbs.ErrLimit},
		{func(i *verbs.QPInit) { i.MaxRecvWR = -1 }, verbs.ErrLimit},
		{func(i *verbs.QPInit) { i.MaxSendSGE = attr.MaxSGE + 1 }, verbs.ErrLimit},
		{func(i *verbs.QPInit) { i.MaxInline = attr.MaxInline + 1 }, nil}, // what counts is what the device says
		{func(i *verbs.QPInit) { i.Type = 3 }, verbs.ErrNotSupported},
		{func(i *verbs.QPInit) { i.Type = -1 }, verbs.ErrNotSupported},
		{func(i *verbs.QPInit) { i.SendCQ = nil }, verbs.ErrInvalid},
	} {
		init := verbs.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}
		c.change(&init)
		_, err = pd.CreateQP(init)
		require.Error(t, err)
		if c.want != nil {
			require.ErrorIs(t, err, c.want)
		}
	}
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxInline: attr.MaxInline})
	require.NoError(t, err, "as much inline data as Query says")
	require.NoError(t, qp.Close())
	_, err = pd.CreateSRQ(verbs.SRQInit{MaxWR: 0})
	require.ErrorIs(t, err, verbs.ErrLimit)
	_, err = pd.CreateSRQ(verbs.SRQInit{MaxWR: 1, MaxSGE: attr.MaxSRQSGE + 1})
	require.ErrorIs(t, err, verbs.ErrLimit)
}

func TestGuestBadPosts(t *testing.T) {
	d := openAdapter(t)
	e := newEnd(t, d, config{})
	_, err := e.qp.PostSend(make([]verbs.SendWR, 1))
	require.ErrorIs(t, err, verbs.ErrState)
	_, err = e.qp.PostRecv(make([]verbs.RecvWR, 1))
	require.ErrorIs(t, err, verbs.ErrState)

	a, b := pair(t, d, d, config{depth: 8, sge: 2, inline: 16})
	good := writeTo(a, b)
	for _, bad := range []struct {
		change func(*verbs.SendWR)
		want   string
	}{
		{func(wr *verbs.SendWR) { wr.Op = 99 }, "unknown operation"},
		{func(wr *verbs.SendWR) { wr.Op = -1 }, "unknown operation"},
		{func(wr *verbs.SendWR) { wr.SGL = make([]verbs.SGE, 3) }, "3 scatter-gather entries; at most 2 are allowed"},
		{func(wr *verbs.SendWR) { wr.Op, wr.SGL = verbs.OpFetchAdd, a.mem.sgl(0, 7) }, "ibv_post_send: invalid argument"},
		{func(wr *verbs.SendWR) { wr.Flags = verbs.FlagInline; wr.SGL = a.mem.sgl(0, 4096) }, "ibv_post_send: invalid argument"},
	} {
		n, err := a.qp.PostSend([]verbs.SendWR{good, with(good, bad.change), good})
		assert.Equal(t, 1, n, bad.want)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		assert.ErrorContains(t, err, "post send 2 of 3")
		assert.ErrorContains(t, err, bad.want)
	}
	n, err := b.qp.PostRecv([]verbs.RecvWR{{}, {SGL: make([]verbs.SGE, 3)}})
	assert.Equal(t, 1, n)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	assert.ErrorContains(t, err, "post receive 2 of 2")

	n, err = b.qp.PostRecv(make([]verbs.RecvWR, 1000))
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	assert.GreaterOrEqual(t, n, 7)
	assert.Less(t, n, 100)

	x, _ := pair(t, d, d, config{srq: true})
	_, err = x.qp.PostRecv(make([]verbs.RecvWR, 1))
	require.ErrorIs(t, err, verbs.ErrInvalid)
	n, err = x.srq.PostRecv(make([]verbs.RecvWR, 1000))
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	assert.GreaterOrEqual(t, n, 64)
}

// A batch larger than the C memory for it, gathered, unsignaled but for the last.
func TestGuestBatch(t *testing.T) { bothWays(t, testBatch) }

func testBatch(t *testing.T, d verbs.Device) {
	const count, pieces = 500, 8
	a, b := pair(t, d, d, config{depth: 512, sge: pieces})
	fill(a.mem.bytes[:count*pieces*16], 1)
	wrs := make([]verbs.SendWR, count)
	for i := range wrs {
		wr := &wrs[i]
		*wr = verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, RemoteAddr: b.mem.mr.Addr() + uint64(i*pieces*8), RKey: b.mem.mr.RKey()}
		for p := range pieces {
			wr.SGL = append(wr.SGL, a.mem.sge((i*pieces+p)*16, 8))
		}
	}
	wrs[count-1].Flags = verbs.FlagSignaled | verbs.FlagFence
	a.send(wrs...)
	wc := a.await(b)
	wc.Bytes = 0
	require.Equal(t, verbs.WC{ID: count - 1, Opcode: verbs.WCWrite, QPN: a.qp.Num()}, wc)
	for i := range count * pieces {
		require.True(t, bytes.Equal(a.mem.bytes[i*16:i*16+8], b.mem.bytes[i*8:i*8+8]), "piece %d", i)
	}
}

func TestGuestInline(t *testing.T) { bothWays(t, testInline) }

func testInline(t *testing.T, d verbs.Device) {
	a, b := pair(t, d, d, config{inline: 32, sge: 2})
	const text = "not registered at all"
	for _, first := range []int{0, 1, 14, len(text)} {
		data := []byte(text)
		sgl := []verbs.SGE{
			{Addr: addressOf(data), Length: uint32(first)}, {Addr: addressOf(data[first:]), Length: uint32(len(data) - first)},
		}
		if first == len(text) {
			sgl = sgl[:1]
		}
		clear(b.mem.bytes[:100])
		b.receive(verbs.RecvWR{SGL: b.mem.sgl(0, 100)})
		a.send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagInline | verbs.FlagSignaled, SGL: sgl})
		clear(data)
		require.Equal(t, uint32(len(data)), b.await(a).Bytes)
		require.Equal(t, verbs.WCSend, a.await(b).Opcode)
		assert.Equal(t, text, string(b.mem.bytes[:len(data)]))
	}
}

func TestGuestUC(t *testing.T) { bothWays(t, testUC) }

func testUC(t *testing.T, d verbs.Device) {
	a, b := pair(t, d, d, config{service: verbs.UC})
	for _, size := range []int{0, 1, 4096, 65537} {
		fill(a.mem.bytes[:size], size)
		b.receive(verbs.RecvWR{ID: 1, SGL: b.mem.sgl(half, size)})
		a.send(verbs.SendWR{ID: 2, Op: verbs.OpSendImm, Imm: 77, Flags: verbs.FlagSignaled, SGL: a.mem.sgl(0, size)})
		wc := b.await(a)
		require.Equal(t, verbs.StatusSuccess, wc.Status)
		require.Equal(t, uint32(77), wc.Imm)
		require.Equal(t, uint32(size), wc.Bytes)
		require.True(t, bytes.Equal(a.mem.bytes[:size], b.mem.bytes[half:half+size]))
		require.Equal(t, verbs.WCSend, a.await(b).Opcode)
		a.send(verbs.SendWR{ID: 3, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: a.mem.sgl(0, size), RemoteAddr: b.mem.mr.Addr(), RKey: b.mem.mr.RKey()})
		require.Equal(t, verbs.StatusSuccess, a.await(b).Status)
	}
	_, err := a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRead}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

func TestGuestUD(t *testing.T) { bothWays(t, testUD) }

func testUD(t *testing.T, d verbs.Device) {
	for _, family := range families {
		a, b := pair(t, d, d, config{service: verbs.UD, family: family})
		_, err := a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		ah, err := a.pd.CreateAH(verbs.AddressAttr{DGID: b.gid.GID, SGIDIndex: a.gid.Index})
		require.NoError(t, err)
		const grh = 40
		fill(a.mem.bytes[:1000], 5)
		b.receive(verbs.RecvWR{ID: 1, SGL: b.mem.sgl(0, 2000)})
		a.send(verbs.SendWR{ID: 2, Op: verbs.OpSendImm, Imm: 5, Flags: verbs.FlagSignaled, SGL: a.mem.sgl(0, 1000),
			AH: ah, RemoteQPN: b.qp.Num(), RemoteQKey: qkey})
		require.Equal(t, verbs.StatusSuccess, a.await(b).Status)
		require.Equal(t, verbs.WC{ID: 1, Opcode: verbs.WCRecv, Bytes: 1000 + grh, HasImm: true, Imm: 5, QPN: b.qp.Num(), SrcQPN: a.qp.Num(), HasGRH: true}, b.await(a))
		require.True(t, bytes.Equal(a.mem.bytes[:1000], b.mem.bytes[grh:grh+1000]))

		table, err := d.GIDs(1)
		require.NoError(t, err)
		back, err := verbs.ReplyAddress(&verbs.WC{HasGRH: true}, b.mem.bytes, table)
		require.NoError(t, err)
		require.Equal(t, a.gid.GID, back.DGID)
		reply, err := b.pd.CreateAH(back)
		require.NoError(t, err)
		a.receive(verbs.RecvWR{ID: 3, SGL: a.mem.sgl(0, 2000)})
		b.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.FlagSignaled, AH: reply, RemoteQPN: a.qp.Num(), RemoteQKey: qkey})
		require.Equal(t, verbs.StatusSuccess, b.await(a).Status)
		require.Equal(t, uint32(grh), a.await(b).Bytes)
		require.NoError(t, reply.Close())

		require.NoError(t, ah.Close())
		require.NoError(t, ah.Close())
		_, err = a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, AH: ah}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	_, err := d.DefaultPD().CreateAH(verbs.AddressAttr{DGID: gidOf(t, d, "IPv4").GID, SGIDIndex: 99})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = d.DefaultPD().CreateAH(verbs.AddressAttr{DGID: gidOf(t, d, "IPv4").GID, SGIDIndex: 1, FlowLabel: 1 << 20})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

// Completions of a queue pair that is closed are dropped; others stay.
func TestGuestCloseDropsCompletions(t *testing.T) { bothWays(t, testCloseDropsCompletions) }

func testCloseDropsCompletions(t *testing.T, d verbs.Device) {
	a, b := pair(t, d, d, config{})
	init := verbs.QPInit{SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 1, MaxRecvWR: 20}
	other, err := a.pd.CreateQP(init)
	require.NoError(t, err)
	require.NoError(t, other.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1}, verbs.RCToInit))
	_, err = other.PostRecv(make([]verbs.RecvWR, 20))
	require.NoError(t, err)
	require.NoError(t, other.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
	for i := range 20 {
		a.send(with(writeTo(a, b), func(wr *verbs.SendWR) { wr.ID, wr.Flags = uint64(i), verbs.FlagSignaled }))
	}
	require.NoError(t, other.Close())
	for i := range 20 {
		wc := a.await(b)
		wc.Bytes = 0
		require.Equal(t, verbs.WC{ID: uint64(i), Opcode: verbs.WCWrite, QPN: a.qp.Num()}, wc)
	}
	a.poll()
	assert.Empty(t, a.wcs)
}

func TestGuestNoAllocation(t *testing.T) { bothWays(t, testNoAllocation) }

func testNoAllocation(t *testing.T, d verbs.Device) {
	a, b := pair(t, d, d, config{})
	wrs := []verbs.SendWR{with(writeTo(a, b), func(wr *verbs.SendWR) { wr.Flags = verbs.FlagSignaled })}
	receives := []verbs.RecvWR{{SGL: b.mem.sgl(0, 8)}}
	var wc [4]verbs.WC
	var failed error
	allocs := testing.AllocsPerRun(200, func() {
		if _, err := a.qp.PostSend(wrs); err != nil {
			failed = err
		}
		for {
			n, err := a.cq.Poll(wc[:])
			if err != nil {
				failed = err
			}
			if n > 0 || err != nil {
				return
			}
		}
	})
	require.NoError(t, failed)
	assert.Zero(t, allocs)
	allocs = testing.AllocsPerRun(20, func() { _, failed = b.qp.PostRecv(receives) })
	require.NoError(t, failed)
	assert.Zero(t, allocs)
	_, err := a.cq.Arm(false)
	require.NoError(t, err)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, failed = a.cq.Arm(false) }))
	require.NoError(t, failed)
}

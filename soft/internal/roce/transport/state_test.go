package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

var allStates = []verbs.QPState{
	verbs.QPReset, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend,
	verbs.QPSendQueueDrained, verbs.QPSendQueueError, verbs.QPError,
}

// attributes in the order of their bits, with a value that is legal.
var attributes = []struct {
	mask verbs.QPAttrMask
	name string
}{
	{verbs.QPAttrPKeyIndex, "PKeyIndex"}, {verbs.QPAttrPort, "Port"}, {verbs.QPAttrAccess, "Access"},
	{verbs.QPAttrQKey, "QKey"}, {verbs.QPAttrAddress, "Address"}, {verbs.QPAttrPathMTU, "PathMTU"},
	{verbs.QPAttrTimeout, "Timeout"}, {verbs.QPAttrRetryCount, "RetryCount"}, {verbs.QPAttrRNRRetry, "RNRRetry"},
	{verbs.QPAttrRQPSN, "RQPSN"}, {verbs.QPAttrMaxInitReadAtomic, "MaxInitReadAtomic"},
	{verbs.QPAttrMaxDestReadAtomic, "MaxDestReadAtomic"}, {verbs.QPAttrMinRNRTimer, "MinRNRTimer"},
	{verbs.QPAttrSQPSN, "SQPSN"}, {verbs.QPAttrDestQPN, "DestQPN"},
}

// inState makes a queue pair and takes it to a state. SQE is not for reliable
// connections.
func inState(t *testing.T, s verbs.QPState) (*end, verbs.QPAttr) {
	o := options{}.defaults()
	e := newEnd(t, clientQPN, NewMemory(), o)
	a := o.attr(serverQPN, 1, 2)
	step := func(to verbs.QPState, mask verbs.QPAttrMask) {
		a.State = to
		require.NoError(t, e.qp.Modify(a, mask))
	}
	if s != verbs.QPReset {
		step(verbs.QPInitialized, initMask)
	}
	if s != verbs.QPReset && s != verbs.QPInitialized && s != verbs.QPError {
		step(verbs.QPReadyToReceive, rtrMask)
		if s != verbs.QPReadyToReceive {
			step(verbs.QPReadyToSend, rtsMask)
		}
	}
	if s == verbs.QPSendQueueDrained || s == verbs.QPError {
		step(s, verbs.QPAttrState)
	}
	require.Equal(t, s, e.qp.State())
	return e, a
}

// The whole table of transitions (IBTA 11.2.4.2; ibv_modify_qp(3)), with each attribute
// missing and each attribute added.
func TestModifyTransitions(t *testing.T) {
	t.Parallel()
	const relax = verbs.QPAttrAccess | verbs.QPAttrMinRNRTimer
	type pair struct{ from, to verbs.QPState }
	type rule struct{ required, optional verbs.QPAttrMask }
	legal := map[pair]rule{
		{verbs.QPReset, verbs.QPInitialized}:            {initMask &^ verbs.QPAttrState, 0},
		{verbs.QPInitialized, verbs.QPInitialized}:      {0, initMask &^ verbs.QPAttrState},
		{verbs.QPInitialized, verbs.QPReadyToReceive}:   {rtrMask &^ verbs.QPAttrState, verbs.QPAttrPKeyIndex | verbs.QPAttrAccess},
		{verbs.QPReadyToReceive, verbs.QPReadyToSend}:   {rtsMask &^ verbs.QPAttrState, relax},
		{verbs.QPReadyToSend, verbs.QPReadyToSend}:      {0, relax},
		{verbs.QPReadyToSend, verbs.QPSendQueueDrained}: {},
		{verbs.QPSendQueueDrained, verbs.QPReadyToSend}: {0, relax},
	}
	for _, from := range allStates {
		if from == verbs.QPSendQueueError {
			continue
		}
		for _, to := range allStates {
			r, ok := legal[pair{from, to}]
			if to == verbs.QPReset || to == verbs.QPError && from != verbs.QPReset {
				ok = true // from anywhere, with nothing else
			}
			t.Run(from.String()+" to "+to.String(), func(t *testing.T) {
				t.Parallel()
				refused := func(mask verbs.QPAttrMask, about string) {
					t.Helper()
					e, a := inState(t, from)
					before := e.qp.Attr()
					a.State = to
					a.Access ^= verbs.AccessRemoteRead
					a.MinRNRTimer = 9
					err := e.qp.Modify(a, mask|verbs.QPAttrState)
					require.ErrorIs(t, err, verbs.ErrInvalid)
					require.ErrorContains(t, err, "queue pair 0x11, "+from.String()+" to "+to.String()+": ")
					require.ErrorContains(t, err, about)
					require.Equal(t, before, e.qp.Attr(), "a refused change changes nothing")
				}
				if !ok {
					refused(0, "there is no such transition")
					return
				}
				for _, mask := range []verbs.QPAttrMask{r.required, r.required | r.optional} {
					e, a := inState(t, from)
					a.State = to
					require.NoError(t, e.qp.Modify(a, mask|verbs.QPAttrState))
					require.Equal(t, to, e.qp.State())
				}
				for _, at := range attributes {
					if r.required&at.mask != 0 {
						refused(r.required&^at.mask, "attribute "+at.name+" is missing")
					}
					if (r.required|r.optional)&at.mask == 0 {
						refused(r.required|at.mask, "attribute "+at.name+" is not allowed in this transition")
					}
				}
				refused(r.required|1<<30, "attribute bits 0x40000000 is not allowed in this transition")
			})
		}
	}
}

func TestModifyValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from verbs.QPState
		mask verbs.QPAttrMask
		set  func(a *verbs.QPAttr)
		want string
	}{
		{verbs.QPReset, initMask, func(a *verbs.QPAttr) { a.State, a.PKeyIndex = verbs.QPInitialized, 1 }, "PKeyIndex is 1"},
		{verbs.QPReset, initMask, func(a *verbs.QPAttr) { a.State, a.Port = verbs.QPInitialized, 0 }, "Port is 0"},
		{verbs.QPReset, initMask, func(a *verbs.QPAttr) { a.State, a.Port = verbs.QPInitialized, 2 }, "Port is 2"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.PathMTU = 1500 }, "PathMTU is 1500"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.PathMTU = 0 }, "PathMTU is 0"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.PathMTU = -256 }, "PathMTU is -256"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.DestQPN = 1 << 24 }, "DestQPN is 0x1000000"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.DestQPN = 1 }, "DestQPN is 0x1;"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }, "RQPSN is 0x1000000"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }, "MinRNRTimer is 32"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.MaxDestReadAtomic = -1 }, "MaxDestReadAtomic is -1"},
		{verbs.QPInitialized, rtrMask, func(a *verbs.QPAttr) { a.MaxDestReadAtomic = MaxReadAtomic + 1 }, "MaxDestReadAtomic is 129"},
		{verbs.QPReadyToReceive, rtsMask, func(a *verbs.QPAttr) { a.SQPSN = 1 << 24 }, "SQPSN is 0x1000000"},
		{verbs.QPReadyToReceive, rtsMask, func(a *verbs.QPAttr) { a.Timeout = 32 }, "Timeout is 32"},
		{verbs.QPReadyToReceive, rtsMask, func(a *verbs.QPAttr) { a.RetryCount = 8 }, "RetryCount is 8"},
		{verbs.QPReadyToReceive, rtsMask, func(a *verbs.QPAttr) { a.RNRRetry = 8 }, "RNRRetry is 8"},
		{verbs.QPReadyToReceive, rtsMask, func(a *verbs.QPAttr) { a.MaxInitReadAtomic = 1000 }, "MaxInitReadAtomic is 1000"},
	} {
		e, a := inState(t, c.from)
		before := e.qp.Attr()
		a.State = c.from + 1
		c.set(&a)
		err := e.qp.Modify(a, c.mask)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, "attribute "+c.want)
		require.Equal(t, before, e.qp.Attr())
	}
}

func TestPostingByState(t *testing.T) {
	t.Parallel()
	for _, s := range allStates {
		if s == verbs.QPSendQueueError {
			continue
		}
		e, _ := inState(t, s)
		n, err := e.qp.PostSend([]verbs.SendWR{{ID: 1}})
		switch s {
		case verbs.QPReadyToSend, verbs.QPSendQueueDrained, verbs.QPError:
			require.NoError(t, err, "%v", s)
			require.Equal(t, 1, n)
		default:
			require.ErrorIs(t, err, verbs.ErrState, "%v", s)
			require.ErrorContains(t, err, s.String())
			require.Zero(t, n)
		}
		n, err = e.qp.PostRecv([]verbs.RecvWR{{ID: 2}})
		if s == verbs.QPReset {
			require.ErrorIs(t, err, verbs.ErrState)
			require.Zero(t, n)
		} else {
			require.NoError(t, err, "%v", s)
		}
		if s == verbs.QPError {
			require.Equal(t, []verbs.WC{{ID: 1, Status: verbs.StatusFlushed, QPN: clientQPN}}, e.send.take())
			require.Equal(t, []verbs.WC{{ID: 2, Status: verbs.StatusFlushed, Opcode: verbs.WCRecv, QPN: clientQPN}}, e.recv.take())
		} else {
			require.Empty(t, e.send.take())
			require.Empty(t, e.recv.take())
		}
	}
}

func TestReceivingByState(t *testing.T) {
	t.Parallel()
	for _, s := range allStates {
		if s == verbs.QPSendQueueError {
			continue
		}
		e, _ := inState(t, s)
		a := newArena(t, e.memory, remoteKey, remoteBase, 256, everyAccess)
		e.take(0, wire.Packet{Opcode: wire.RCWriteOnly, PSN: 2, AckReq: true, Payload: []byte{1, 2, 3, 4},
			RETH: wire.RETH{VA: remoteBase, RKey: remoteKey, Length: 4}})
		e.take(0, ackOf(1), nakOf(1, wire.NakRemoteAccess), rnrNak(1, 3))
		responses := e.transmit(0)
		switch s {
		case verbs.QPReadyToReceive, verbs.QPReadyToSend, verbs.QPSendQueueDrained:
			require.Len(t, responses, 1, "%v", s)
			require.Equal(t, []byte{1, 2, 3, 4, 0}, a.Mem[:5])
		default:
			require.Empty(t, responses, "%v", s)
			require.Equal(t, make([]byte, 256), a.Mem)
		}
		require.Equal(t, s, e.qp.State())
		require.Zero(t, e.qp.Deadline())
	}
}

func TestPostRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{depth: 3, maxSGE: 2, maxInline: 16, recvDepth: 2})
	q := r.client.qp
	good := r.wr(1, verbs.OpWrite, 8)
	for _, c := range []struct {
		name string
		set  func(wr *verbs.SendWR)
	}{
		{"entries", func(wr *verbs.SendWR) { wr.SGL = make([]verbs.SGE, 3) }},
		{"unknown operation", func(wr *verbs.SendWR) { wr.Op = 99 }},
		{"unknown operation", func(wr *verbs.SendWR) { wr.Op = -1 }},
		{"17 bytes of inline data", func(wr *verbs.SendWR) { wr.Flags |= verbs.FlagInline; wr.SGL = []verbs.SGE{{Length: 17}} }},
		{"inline", func(wr *verbs.SendWR) {
			wr.Flags |= verbs.FlagInline
			wr.SGL = []verbs.SGE{{Length: ^uint32(0)}, {Length: 2}}
		}},
		{"FlagInline on an operation", func(wr *verbs.SendWR) { wr.Flags |= verbs.FlagInline; wr.Op = verbs.OpRead }},
	} {
		bad := good
		c.set(&bad)
		n, err := q.PostSend([]verbs.SendWR{good, bad, good})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, c.name)
		require.ErrorContains(t, err, "post send 2 of 3")
		require.Equal(t, 1, n)
		r.exchange()
		r.requireSent(1, verbs.StatusSuccess)
	}
	n, err := q.PostSend([]verbs.SendWR{good, good, good, good})
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.ErrorContains(t, err, "post send 4 of 4")
	require.Equal(t, 3, n)

	n, err = q.PostRecv([]verbs.RecvWR{{}, {SGL: make([]verbs.SGE, 5)}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Equal(t, 1, n)
	n, err = q.PostRecv([]verbs.RecvWR{{}, {}})
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 1, n)

	none := newRig(t, options{initReads: -1})
	_, err = none.client.qp.PostSend([]verbs.SendWR{none.wr(1, verbs.OpRead, 8)})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "MaxInitReadAtomic")
}

// All posted sends and receives are flushed in order, and those posted later too.
func TestFlush(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	unsignaled := r.wr(2, verbs.OpWrite, 8)
	unsignaled.Flags = 0
	r.client.post(r.wr(1, verbs.OpWrite, 8), unsignaled, r.wr(3, verbs.OpRead, 600), r.wr(4, verbs.OpSend, 8))
	for i := range 3 {
		r.client.postRecv(verbs.RecvWR{ID: uint64(10 + i), SGL: []verbs.SGE{r.local.sge(0, 256*4)}})
	}
	require.Len(t, r.client.transmit(r.now), 4)
	r.client.take(r.now, wire.Packet{Opcode: wire.RCSendFirst, PSN: r.o.peerPSN, Payload: make([]byte, 256)})
	r.client.modify(verbs.QPError)
	sends, recvs := r.client.send.take(), r.client.recv.take()
	require.Equal(t, []uint64{1, 2, 3, 4}, ids(sends), "unsignaled ones too")
	require.Equal(t, []uint64{10, 11, 12}, ids(recvs), "the one being filled first")
	for _, wc := range append(sends, recvs...) {
		require.Equal(t, verbs.StatusFlushed, wc.Status)
	}
	require.Zero(t, r.client.qp.Deadline())
	require.Empty(t, r.client.transmit(r.now))
	r.client.take(r.now, ackOf(0), ackOf(5))
	r.client.qp.Timeout(r.now + 1<<40)
	r.client.modify(verbs.QPError)
	require.Empty(t, r.client.send.take())

	n, err := r.client.qp.PostSend([]verbs.SendWR{r.wr(5, verbs.OpWrite, 8), {Op: 99}})
	require.Error(t, err)
	require.Equal(t, 1, n)
	r.requireSent(5, verbs.StatusFlushed)
}

func TestFlushWithSharedReceives(t *testing.T) {
	t.Parallel()
	shared := NewRecvQueue(NewMemory(), testDomain, 8, 4)
	limits := 0
	shared.Share(func() { limits++ })
	r := newRig(t, options{shared: shared})
	for i := range 3 {
		n, err := shared.Post([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{r.remote.sge(0, 1000)}}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	_, err := r.server.qp.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "shared")

	shared.SetLimit(2)
	r.client.post(r.wr(1, verbs.OpSend, 8))
	r.exchange()
	require.Zero(t, limits, "two are left")
	r.server.take(r.now, r.forged(wire.RCSendFirst, 1, 256, 0))
	require.Equal(t, 1, limits)
	r.server.modify(verbs.QPError)
	require.Equal(t, []uint64{0, 1}, ids(r.server.recv.take()), "the one in use is flushed, the others stay")
	require.Equal(t, 1, shared.Len())
	require.Equal(t, []verbs.EventType{verbs.EventQPLastWQEReached}, r.server.events)
	require.Equal(t, 1, limits, "the limit is reported once")
}

// Reset drops everything without completions, and the queue pair works again.
func TestReset(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{psn: 5})
	r.server.postRecv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
	r.client.post(r.wr(1, verbs.OpRead, 600), r.wr(2, verbs.OpFetchAdd, 8), r.wr(3, verbs.OpWrite, 1000))
	sent := r.client.transmit(r.now)
	r.server.take(r.now, sent[:3]...) // in the middle of the write
	r.client.modify(verbs.QPReset)
	r.server.modify(verbs.QPReset)
	for _, e := range []*end{r.client, r.server} {
		require.Empty(t, e.send.take())
		require.Empty(t, e.recv.take())
		require.Empty(t, e.transmit(r.now))
		require.Zero(t, e.qp.Deadline())
		require.Zero(t, e.rq.Len())
		require.Equal(t, verbs.QPAttr{}, e.qp.Attr())
	}
	r.client.ready(r.o.attr(serverQPN, 20, 9))
	r.server.ready(r.o.attr(clientQPN, 9, 20))
	before := *word(r.remote.Mem)
	r.server.take(r.now, sent[1]) // a late atomic of the life before
	require.Empty(t, r.server.transmit(r.now), "nothing saved then responses now")
	require.Equal(t, before, *word(r.remote.Mem))
	r.client.post(r.wr(3, verbs.OpRead, 600), r.wr(4, verbs.OpFetchAdd, 8), r.wr(5, verbs.OpWrite, 1000))
	r.exchange()
	require.Equal(t, []uint64{3, 4, 5}, ids(r.client.send.take()))
}

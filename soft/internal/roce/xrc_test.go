package roce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// xrcPair connects a queue pair of x that sends to one of y that takes requests for a domain.
func xrcPair(x, y *side, domain verbs.XRCDomain) (send, recv *side) {
	a, b := *x, *y
	a.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.XRCSend, SendCQ: x.cq, MaxSendWR: 8}))
	b.qp = must(y.dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.XRCRecv, XRCDomain: domain}))
	a.connect(&b)
	b.connect(&a)
	return &a, &b
}

// xrcQueue makes a queue of a domain, with receives.
func (s *side) xrcQueue(domain verbs.XRCDomain, cq verbs.CQ, receives int) (verbs.SRQ, uint32) {
	s.t.Helper()
	srq := must(s.dev.DefaultPD().CreateSRQ(verbs.SRQInit{MaxWR: 8, XRCDomain: domain, CQ: cq}))
	for i := range receives {
		must(srq.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{s.sge(64*i, 64)}}}))
	}
	return srq, srq.(verbs.XRCSRQ).SRQNum()
}

// Two ends that send share two queues of a domain, one of which has a completion queue of another
// shard, by each way between devices.
func TestXRC(t *testing.T) {
	for name, cfg := range map[string]Config{"UDP": {DisableLocal: true}, "shared memory": {}} {
		t.Run(name, func(t *testing.T) {
			x, y := openSide(t, cfg, 4096), openSide(t, cfg, 4096)
			domain := must(y.dev.OpenXRCDomain())
			cqs := []verbs.CQ{y.cq, must(y.dev.CreateCQ(verbs.CQInit{Capacity: 8, Poller: "another"}))}
			var srqs [2]verbs.SRQ
			var numbers [2]uint32
			for i := range srqs {
				srqs[i], numbers[i] = y.xrcQueue(domain, cqs[i], 4)
			}
			copy(x.mem, "to a queue that the request names")
			var open []verbs.QP
			for range 2 {
				send, recv := xrcPair(x, y, domain)
				for i, cq := range cqs {
					send.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 33)}, RemoteSRQN: numbers[i]})
					y.cq = cq
					wc := y.wait(1)[0]
					assert.Equal(t, verbs.WC{ID: wc.ID, Opcode: verbs.WCRecv, Bytes: 33, QPN: recv.qp.Num()}, wc)
					assert.Equal(t, x.mem[:33], y.mem[64*wc.ID:][:33])
					assert.Equal(t, send.qp.Num(), x.wait(1)[0].QPN)
				}
				y.cq = cqs[0]
				open = append(open, send.qp, recv.qp)
			}
			require.ErrorIs(t, domain.Close(), verbs.ErrInUse)
			require.ErrorIs(t, cqs[1].Close(), verbs.ErrInUse)
			for _, qp := range open {
				require.NoError(t, qp.Close())
			}
			require.NoError(t, srqs[0].Close())
			require.ErrorIs(t, domain.Close(), verbs.ErrInUse)
			require.NoError(t, srqs[1].Close())
			require.NoError(t, cqs[1].Close())
			require.NoError(t, domain.Close())
			require.NoError(t, domain.Close())
			_, err := y.dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.XRCRecv, XRCDomain: domain})
			assert.ErrorIs(t, err, verbs.ErrClosed)
		})
	}
}

// A request to a queue of another domain, or to one that is closed, is refused, and the program
// that receives is told.
func TestXRCRefused(t *testing.T) {
	x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
	events := make(chan verbs.Event, 8)
	defer y.dev.SubscribeEvents(func(e verbs.Event) { events <- e })()
	domain, other := must(y.dev.OpenXRCDomain()), must(y.dev.OpenXRCDomain())
	srq, number := y.xrcQueue(other, y.cq, 1)
	closed, closedNumber := y.xrcQueue(domain, y.cq, 1)
	require.NoError(t, closed.Close())
	for _, number := range []uint32{number, closedNumber} {
		send, recv := xrcPair(x, y, domain)
		send.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteSRQN: number})
		assert.Equal(t, verbs.StatusRemoteInvalidRequest, x.wait(1)[0].Status)
		assert.Equal(t, verbs.Event{Type: verbs.EventQPRequestError, QPN: recv.qp.Num()}, <-events)
		require.NoError(t, send.qp.Close())
		require.NoError(t, recv.qp.Close())
	}
	require.NoError(t, srq.Close())
	require.NoError(t, domain.Close())
	require.NoError(t, other.Close())
}

// When the completion queue of an XRC queue overflows, the receiving queue pairs of its domain fail.
func TestXRCOverrun(t *testing.T) {
	x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
	domain := must(y.dev.OpenXRCDomain())
	small := must(y.dev.CreateCQ(verbs.CQInit{Capacity: 1}))
	srq, number := y.xrcQueue(domain, small, 8)
	send, recv := xrcPair(x, y, domain)
	for range 4 {
		send.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteSRQN: number})
	}
	require.Eventually(t, func() bool { return must(recv.qp.Query()).State == verbs.QPError }, 5*time.Minute, time.Millisecond)
	require.NoError(t, send.qp.Close())
	require.NoError(t, recv.qp.Close())
	require.NoError(t, srq.Close())
	require.NoError(t, small.Close())
	require.NoError(t, domain.Close())
}

// What is wrong with the arguments is said.
func TestXRCArguments(t *testing.T) {
	x, y := openSide(t, Config{}, 8), openSide(t, Config{}, 8)
	pd, domain, foreign := x.dev.DefaultPD(), must(x.dev.OpenXRCDomain()), must(y.dev.OpenXRCDomain())
	for _, init := range []verbs.SRQInit{
		{MaxWR: 1, XRCDomain: foreign, CQ: x.cq}, {MaxWR: 1, XRCDomain: domain}, {MaxWR: 1, XRCDomain: domain, CQ: y.cq},
	} {
		_, err := pd.CreateSRQ(init)
		assert.ErrorIs(t, err, verbs.ErrInvalid)
	}
	for _, init := range []verbs.QPInit{
		{Type: verbs.XRCRecv}, {Type: verbs.XRCRecv, XRCDomain: foreign}, {Type: verbs.XRCSend, MaxSendWR: 1},
		{Type: verbs.RC, SendCQ: x.cq, RecvCQ: x.cq, XRCDomain: domain},
	} {
		_, err := pd.CreateQP(init)
		assert.ErrorIs(t, err, verbs.ErrInvalid)
	}
	srq := must(pd.CreateSRQ(verbs.SRQInit{MaxWR: 1, XRCDomain: domain, CQ: x.cq}))
	_, err := pd.CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, SRQ: srq})
	require.ErrorIs(t, err, verbs.ErrInvalid, "an RC queue pair with an XRC queue")
	require.NoError(t, srq.Close())
	require.NoError(t, domain.Close())
	require.NoError(t, foreign.Close())
}

package roce

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/soft/internal/roce/srd"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// The tests whose names begin with EFA are the cases of rdma-core's tests/test_efa_srd.py
// and tests/test_efadv.py, each named in its comment. Left out: test_efadv_query_mr, whose
// interconnects no software has.

// srdNode is a side with queue pairs of SRD.
type srdNode struct {
	*side
	qps    []verbs.QP
	ah     map[*srdNode]verbs.AH
	extras []verbs.WCExtra // of what wait has returned last
}

type srdNodeOptions struct {
	cfg    Config
	qps    int
	fields verbs.WCFields
	init   verbs.QPInit
	memory int
	rnr    uint8
}

func newSRDNode(t testing.TB, o srdNodeOptions) *srdNode {
	t.Helper()
	o.cfg.Name = "soft-test"
	if o.cfg.Addresses == nil {
		o.cfg.Addresses = addresses("127.0.0.1")
	}
	dev, err := Open(o.cfg)
	require.NoError(t, err)
	s := &side{t: t, dev: dev, mem: make([]byte, max(o.memory, 64<<10)), wcs: make([]verbs.WC, 64)}
	p := &srdNode{side: s, ah: make(map[*srdNode]verbs.AH)}
	s.cq, err = dev.CreateCQ(verbs.CQInit{Capacity: 4096, Fields: o.fields})
	require.NoError(t, err)
	s.mr, err = dev.DefaultPD().RegMR(s.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	require.NoError(t, err)
	for range max(o.qps, 1) {
		init := o.init
		init.Type, init.SendCQ, init.RecvCQ = verbs.SRD, s.cq, s.cq
		if init.MaxSendWR == 0 {
			init.MaxSendWR = 512
		}
		if init.MaxRecvWR == 0 {
			init.MaxRecvWR = 512
		}
		init.MaxSendSGE, init.MaxRecvSGE, init.MaxInline = srd.MaxSendSGE, srd.MaxRecvSGE, srd.MaxInline
		qp, err := dev.DefaultPD().CreateQP(init)
		require.NoError(t, err)
		require.Equal(t, verbs.SRD, qp.Type())
		p.qps = append(p.qps, qp)
		s.qp = qp
		p.ready(o.rnr)
	}
	s.qp = p.qps[0]
	t.Cleanup(p.close)
	return p
}

func (p *srdNode) close() {
	if p.dev == nil {
		return
	}
	for _, q := range p.qps {
		require.NoError(p.t, q.Close())
	}
	for _, ah := range p.ah {
		require.NoError(p.t, ah.Close())
	}
	require.NoError(p.t, p.mr.Close())
	require.NoError(p.t, p.cq.Close())
	require.NoError(p.t, p.dev.Close())
	p.dev = nil
}

func (p *srdNode) ready(rnr uint8) {
	p.t.Helper()
	p.modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, QKey: testKey}, verbs.SRDToInit)
	p.modify(verbs.QPAttr{State: verbs.QPReadyToReceive}, verbs.SRDToRTR)
	p.modify(verbs.QPAttr{State: verbs.QPReadyToSend, RNRRetry: rnr}, verbs.SRDToRTS|verbs.QPAttrRNRRetry)
}

// to returns the address handle for another node.
func (p *srdNode) to(peer *srdNode) verbs.AH {
	p.t.Helper()
	ah := p.ah[peer]
	if ah == nil {
		var err error
		ah, err = p.dev.DefaultPD().CreateAH(p.address(peer.side))
		require.NoError(p.t, err)
		p.ah[peer] = ah
	}
	return ah
}

// request fills in where a request to a queue pair of a peer goes.
func (p *srdNode) request(peer *srdNode, qp int, wr verbs.SendWR) verbs.SendWR {
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.to(peer), peer.qps[qp].Num(), testKey
	wr.Flags |= verbs.FlagSignaled
	return wr
}

// poll takes completions, and keeps what comes beside them.
func (p *srdNode) poll(wcs []verbs.WC) int {
	p.t.Helper()
	x, ok := p.cq.(verbs.ExtendedCQ)
	if !ok {
		n, err := p.cq.Poll(wcs)
		require.NoError(p.t, err)
		return n
	}
	extras := make([]verbs.WCExtra, len(wcs))
	n, err := x.PollExtended(wcs, extras)
	require.NoError(p.t, err)
	p.extras = append(p.extras, extras[:n]...)
	return n
}

func (p *srdNode) wait(n int) (all []verbs.WC) {
	p.t.Helper()
	p.extras = p.extras[:0]
	defer func() {
		if p.t.Failed() {
			for _, c := range must(p.dev.Counters()) {
				if c.Value > 0 {
					println(c.Name, c.Value)
				}
			}
		}
	}()
	deadline := time.Now().Add(5 * time.Minute)
	for len(all) < n {
		k := p.poll(p.wcs[:min(len(p.wcs), n-len(all))])
		all = append(all, p.wcs[:k]...)
		if time.Now().After(deadline) {
			require.Fail(p.t, "the time is over", "%d of %d completions came", len(all), n)
		}
	}
	return all
}

func srdPair(t testing.TB, o srdNodeOptions) (client, server *srdNode) {
	client, server = newSRDNode(t, o), newSRDNode(t, o)
	client.to(server)
	server.to(client)
	return client, server
}

const (
	efaIterations = 100
	efaQPs        = 8
	efaMessage    = 1024
)

// traffic makes both nodes send to each other, in turns, over every queue pair.
func traffic(t *testing.T, client, server *srdNode, op verbs.Opcode, n int) {
	t.Helper()
	for i := range efaIterations {
		for q := range client.qps {
			for _, dir := range [][2]*srdNode{{client, server}, {server, client}} {
				from, to := dir[0], dir[1]
				_, err := to.qps[q].PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{to.sge(32<<10, 4096)}}})
				require.NoError(t, err)
				fill(from.mem[:n], uint64(i*efaQPs+q))
				_, err = from.qps[q].PostSend([]verbs.SendWR{from.request(to, q, verbs.SendWR{
					ID: 1, Op: op, Imm: uint32(i), SGL: []verbs.SGE{from.sge(0, n)}, RemoteAddr: to.mr.Addr() + 32<<10, RKey: to.mr.RKey(),
				})})
				require.NoError(t, err)
				want := verbs.WC{ID: uint64(i), Bytes: uint32(n), QPN: to.qps[q].Num(), SrcQPN: from.qps[q].Num(), SrcUDPPort: must(from.dev.GIDs(1))[0].UDPPort}
				if want.SrcUDPPort == 4791 {
					want.SrcUDPPort = 0
				}
				sent := verbs.WC{ID: 1, Opcode: verbs.WCSend, Bytes: uint32(n), QPN: from.qps[q].Num()}
				want.Opcode = verbs.WCRecv
				if op == verbs.OpWriteImm {
					want.Opcode, sent.Opcode = verbs.WCRecvWriteImm, verbs.WCWrite
				}
				if op != verbs.OpSend {
					want.HasImm, want.Imm = true, uint32(i)
				}
				require.Equal(t, want, to.wait(1)[0])
				require.Equal(t, sent, from.wait(1)[0])
				require.True(t, bytes.Equal(from.mem[:n], to.mem[32<<10:32<<10+n]))
			}
		}
	}
}

// rdmaTraffic makes both nodes write to, or read from, each other.
func rdmaTraffic(t *testing.T, client, server *srdNode, op verbs.Opcode) {
	t.Helper()
	for i := range efaIterations {
		for q := range client.qps {
			for _, dir := range [][2]*srdNode{{client, server}, {server, client}} {
				from, to := dir[0], dir[1]
				source, target := from.mem[:efaMessage], to.mem[32<<10:][:efaMessage]
				if op == verbs.OpRead {
					source, target = target, source
				}
				fill(source, uint64(i))
				_, err := from.qps[q].PostSend([]verbs.SendWR{from.request(to, q, verbs.SendWR{
					Op: op, SGL: []verbs.SGE{from.sge(0, efaMessage)}, RemoteAddr: to.mr.Addr() + 32<<10, RKey: to.mr.RKey(),
				})})
				require.NoError(t, err)
				for from.poll(from.wcs[:1]) == 0 {
					to.poll(to.wcs) // nothing comes, but it answers at once
				}
				require.Equal(t, verbs.StatusSuccess, from.wcs[0].Status)
				require.True(t, bytes.Equal(source, target))
			}
		}
	}
}

// test_qp_ex_srd_send, test_qp_ex_srd_send_imm, test_qp_ex_srd_rdma_read,
// test_qp_ex_srd_rdma_write, test_qp_ex_srd_rdma_write_with_imm, test_qp_ex_srd_old_send,
// test_qp_ex_srd_old_send_imm, test_qp_ex_srd_zero_size. The seam has one way to post, so
// that "old" and "ex" are the same here.
func TestEFATraffic(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, client, server *srdNode)
	}{
		{"srd_send", func(t *testing.T, a, b *srdNode) { traffic(t, a, b, verbs.OpSend, efaMessage) }},
		{"srd_send_imm", func(t *testing.T, a, b *srdNode) { traffic(t, a, b, verbs.OpSendImm, efaMessage) }},
		{"srd_rdma_read", func(t *testing.T, a, b *srdNode) { rdmaTraffic(t, a, b, verbs.OpRead) }},
		{"srd_rdma_write", func(t *testing.T, a, b *srdNode) { rdmaTraffic(t, a, b, verbs.OpWrite) }},
		{"srd_rdma_write_with_imm", func(t *testing.T, a, b *srdNode) { traffic(t, a, b, verbs.OpWriteImm, efaMessage) }},
		{"srd_zero_size", func(t *testing.T, a, b *srdNode) { traffic(t, a, b, verbs.OpSend, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, server := srdPair(t, srdNodeOptions{qps: efaQPs})
			c.run(t, client, server)
		})
	}
}

// test_qp_ex_srd_rdma_unsolicited_write_with_imm.
func TestEFAUnsolicitedWrite(t *testing.T) {
	client, server := srdPair(t, srdNodeOptions{qps: efaQPs, init: verbs.QPInit{UnsolicitedWriteRecv: true}})
	for i := range efaIterations {
		for q := range server.qps {
			fill(client.mem[:efaMessage], uint64(i))
			_, err := client.qps[q].PostSend([]verbs.SendWR{client.request(server, q, verbs.SendWR{
				Op: verbs.OpWriteImm, Imm: 7, SGL: []verbs.SGE{client.sge(0, efaMessage)}, RemoteAddr: server.mr.Addr(), RKey: server.mr.RKey(),
			})})
			require.NoError(t, err)
			require.Equal(t, verbs.StatusSuccess, client.wait(1)[0].Status)
			wc := server.wait(1)[0]
			require.True(t, wc.Unsolicited)
			require.Equal(t, []any{uint64(0), true, uint32(7), uint32(efaMessage), verbs.WCRecvWriteImm}, []any{wc.ID, wc.HasImm, wc.Imm, wc.Bytes, wc.Opcode})
			require.True(t, bytes.Equal(client.mem[:efaMessage], server.mem[:efaMessage]))
		}
	}
}

// test_cq_events_srd.
func TestEFACompletionEvents(t *testing.T) {
	client, server := srdPair(t, srdNodeOptions{})
	wake := make(chan struct{}, 1)
	server.cq.OnCompletion(func() { wake <- struct{}{} })
	for range efaIterations {
		server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{server.sge(0, 100)}})
		armed, err := server.cq.Arm(false)
		require.NoError(t, err)
		require.True(t, armed)
		client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{client.sge(0, 100)}}))
		require.Equal(t, verbs.StatusSuccess, client.wait(1)[0].Status)
		select {
		case <-wake:
		case <-time.After(5 * time.Minute):
			require.Fail(t, "no event")
		}
		require.Equal(t, uint32(100), server.wait(1)[0].Bytes)
	}
}

// test_post_receive_qp_state_bad_flow, test_post_send_qp_state_bad_flow.
func TestEFAPostInWrongState(t *testing.T) {
	client, server := srdPair(t, srdNodeOptions{})
	wr := client.request(server, 0, verbs.SendWR{Op: verbs.OpSend})
	for _, c := range []struct {
		state      verbs.QPState
		send, recv bool
	}{
		{verbs.QPReset, false, false}, {verbs.QPInitialized, false, true}, {verbs.QPReadyToReceive, false, true},
		{verbs.QPReadyToSend, true, true}, {verbs.QPSendQueueDrained, true, true}, {verbs.QPError, false, false},
	} {
		client.modify(verbs.QPAttr{State: verbs.QPReset}, 0)
		switch c.state {
		case verbs.QPInitialized, verbs.QPReadyToReceive:
			client.modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, QKey: testKey}, verbs.SRDToInit)
			if c.state == verbs.QPReadyToReceive {
				client.modify(verbs.QPAttr{State: c.state}, verbs.SRDToRTR)
			}
		case verbs.QPReset:
		default:
			client.ready(0)
			if c.state != verbs.QPReadyToSend {
				client.modify(verbs.QPAttr{State: c.state}, 0)
			}
		}
		_, err := client.qp.PostSend([]verbs.SendWR{wr})
		assert.Equal(t, c.send, err == nil, "send in %v: %v", c.state, err)
		if err != nil {
			assert.ErrorIs(t, err, verbs.ErrState)
		}
		_, err = client.qp.PostRecv([]verbs.RecvWR{{}})
		assert.Equal(t, c.recv, err == nil, "receive in %v: %v", c.state, err)
		if err != nil {
			assert.ErrorIs(t, err, verbs.ErrState)
		}
	}
}

// test_full_rq_bad_flow, test_full_sq_bad_flow, test_rq_with_larger_sgl_bad_flow.
func TestEFAFullQueues(t *testing.T) {
	client, server := srdPair(t, srdNodeOptions{init: verbs.QPInit{MaxSendWR: 16, MaxRecvWR: 16}, rnr: 7})
	for range 16 {
		client.postRecv(verbs.RecvWR{})
	}
	_, err := client.qp.PostRecv([]verbs.RecvWR{{}})
	assert.ErrorIs(t, err, verbs.ErrQueueFull)
	_, err = server.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{server.sge(0, 8), server.sge(8, 8), server.sge(16, 8)}}})
	assert.ErrorIs(t, err, verbs.ErrInvalid)

	wr := client.request(server, 0, verbs.SendWR{Op: verbs.OpSend})
	n, err := client.qp.PostSend(slices.Repeat([]verbs.SendWR{wr}, 17)) // none is received
	assert.ErrorIs(t, err, verbs.ErrQueueFull)
	assert.Equal(t, 16, n)
}

// test_efadv_query, test_efadv_create_driver_qp, test_efadv_create_qp_ex.
// A device that looks like an EFA has its vendor, its services, and numbers of 16 bits.
func TestLooksLikeEFA(t *testing.T) {
	d := must(Open(Config{Name: "efa", EFA: true, Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}}))
	defer func() { require.NoError(t, d.Close()) }()
	attr := must(d.Query())
	assert.EqualValues(t, EFAVendorID, attr.VendorID)
	assert.Equal(t, verbs.TransportSet(verbs.UD, verbs.SRD), attr.Transports)
	cq := must(d.CreateCQ(verbs.CQInit{Capacity: 1}))
	_, err := d.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
	assert.ErrorIs(t, err, verbs.ErrNotSupported)
	for range 100 {
		for _, service := range []verbs.QPType{verbs.UD, verbs.SRD} {
			q := must(d.DefaultPD().CreateQP(verbs.QPInit{Type: service, SendCQ: cq, RecvCQ: cq}))
			assert.Less(t, q.Num(), uint32(1<<16))
			assert.EqualValues(t, d.main.slot, q.Num()&shardBits)
			require.NoError(t, q.Close())
		}
	}
	require.NoError(t, cq.Close())
}

func TestEFALimits(t *testing.T) {
	p := newSRDNode(t, srdNodeOptions{})
	attr := must(p.dev.Query())
	require.True(t, attr.Transports.Has(verbs.SRD))
	a := attr.SRD
	assert.Equal(t, verbs.SRDAttr{
		MaxSendWR: 4096, MaxRecvWR: 32768, MaxSendSGE: 2, MaxRecvSGE: 2, MaxReadSGE: 1, MaxInline: 32, MaxMessage: 4096, MaxRDMA: 1 << 30,
		Read: true, Write: true, UnsolicitedWriteRecv: true, RNRRetry: true,
	}, a)
	largest := verbs.QPInit{
		Type: verbs.SRD, SendCQ: p.cq, RecvCQ: p.cq,
		MaxSendWR: a.MaxSendWR, MaxRecvWR: a.MaxRecvWR, MaxSendSGE: a.MaxSendSGE, MaxRecvSGE: a.MaxRecvSGE, MaxInline: a.MaxInline,
	}
	qp, err := p.dev.DefaultPD().CreateQP(largest)
	require.NoError(t, err)
	require.NoError(t, qp.Close())
	for _, spoil := range []func(*verbs.QPInit){
		func(i *verbs.QPInit) { i.MaxSendWR++ }, func(i *verbs.QPInit) { i.MaxRecvWR++ }, func(i *verbs.QPInit) { i.MaxSendSGE++ },
		func(i *verbs.QPInit) { i.MaxRecvSGE++ }, func(i *verbs.QPInit) { i.MaxInline++ }, func(i *verbs.QPInit) { i.MaxRecvWR = -1 },
	} {
		init := largest
		spoil(&init)
		_, err := p.dev.DefaultPD().CreateQP(init)
		assert.ErrorIs(t, err, verbs.ErrLimit)
	}
	srq, err := p.dev.DefaultPD().CreateSRQ(verbs.SRQInit{MaxWR: 1})
	require.NoError(t, err)
	init := largest
	init.SRQ = srq
	_, err = p.dev.DefaultPD().CreateQP(init)
	assert.ErrorIs(t, err, verbs.ErrNotSupported)
	require.NoError(t, srq.Close())
	_, err = p.dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: p.cq, RecvCQ: p.cq, UnsolicitedWriteRecv: true})
	assert.ErrorIs(t, err, verbs.ErrInvalid)
}

// Requests that efa_post_send and the manual pages do not allow.
func TestEFAPostLimits(t *testing.T) {
	client, server := srdPair(t, srdNodeOptions{})
	one := client.sge(0, 1)
	for name, c := range map[string]struct {
		spoil func(*verbs.SendWR)
		want  error
	}{
		"unsignaled":           {func(w *verbs.SendWR) { w.Flags = 0 }, verbs.ErrInvalid},
		"solicited":            {func(w *verbs.SendWR) { w.Flags |= verbs.FlagSolicited }, verbs.ErrInvalid},
		"fence":                {func(w *verbs.SendWR) { w.Flags |= verbs.FlagFence }, verbs.ErrInvalid},
		"compare-and-swap":     {func(w *verbs.SendWR) { w.Op = verbs.OpCompareSwap }, verbs.ErrInvalid},
		"fetch-and-add":        {func(w *verbs.SendWR) { w.Op = verbs.OpFetchAdd }, verbs.ErrInvalid},
		"more than the MTU":    {func(w *verbs.SendWR) { w.SGL = []verbs.SGE{client.sge(0, 4097)} }, verbs.ErrInvalid},
		"three entries":        {func(w *verbs.SendWR) { w.SGL = []verbs.SGE{one, one, one} }, verbs.ErrInvalid},
		"two entries, read":    {func(w *verbs.SendWR) { w.Op, w.SGL = verbs.OpRead, []verbs.SGE{one, one} }, verbs.ErrInvalid},
		"two entries, write":   {func(w *verbs.SendWR) { w.Op, w.SGL = verbs.OpWrite, []verbs.SGE{one, one} }, verbs.ErrInvalid},
		"inline, 33 bytes":     {func(w *verbs.SendWR) { w.Flags |= verbs.FlagInline; w.SGL = []verbs.SGE{client.sge(0, 33)} }, verbs.ErrInvalid},
		"inline write":         {func(w *verbs.SendWR) { w.Flags |= verbs.FlagInline; w.Op = verbs.OpWrite }, verbs.ErrInvalid},
		"no address handle":    {func(w *verbs.SendWR) { w.AH = nil }, verbs.ErrInvalid},
		"handle of the server": {func(w *verbs.SendWR) { w.AH = server.to(client) }, verbs.ErrInvalid},
		"queue pair 0":         {func(w *verbs.SendWR) { w.RemoteQPN = 0 }, verbs.ErrInvalid},
	} {
		wr := client.request(server, 0, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{one}})
		c.spoil(&wr)
		n, err := client.qp.PostSend([]verbs.SendWR{wr})
		assert.ErrorIs(t, err, c.want, name)
		assert.Zero(t, n, name)
	}
	server.postRecv(verbs.RecvWR{SGL: []verbs.SGE{server.sge(0, 100)}})
	client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagInline, SGL: []verbs.SGE{{Addr: addressOfBytes([]byte("unregistered")), Length: 12}}}))
	client.wait(1)
	assert.Equal(t, uint32(12), server.wait(1)[0].Bytes)
	assert.Equal(t, "unregistered", string(server.mem[:12]))

	signals := newSRDNode(t, srdNodeOptions{init: verbs.QPInit{SignalAll: true}})
	server.postRecv(verbs.RecvWR{})
	wr := signals.request(server, 0, verbs.SendWR{Op: verbs.OpSend})
	wr.Flags = 0
	signals.post(wr)
	assert.Equal(t, verbs.StatusSuccess, signals.wait(1)[0].Status)
}

// test_efadv_query_ah: the number of a handle is that of all that lead to the peer.
func TestEFAHandleNumbers(t *testing.T) {
	x, y, z := newSRDNode(t, srdNodeOptions{}), newSRDNode(t, srdNodeOptions{}), newSRDNode(t, srdNodeOptions{})
	pd := x.dev.DefaultPD()
	number := func(ah verbs.AH) uint16 { return ah.(verbs.NumberedAH).Number() }
	first, second, other := must(pd.CreateAH(x.address(y.side))), must(pd.CreateAH(x.address(y.side))), must(pd.CreateAH(x.address(z.side)))
	assert.Equal(t, number(first), number(second))
	assert.NotEqual(t, number(first), number(other))
	require.NoError(t, first.Close())
	third := must(pd.CreateAH(x.address(y.side)))
	assert.Equal(t, number(second), number(third))
	require.NoError(t, second.Close())
	require.NoError(t, third.Close())
	again := must(pd.CreateAH(x.address(y.side)))
	assert.NotEqual(t, number(other), number(again))
	assert.NotEqual(t, uint16(verbs.NoAH), number(again))
	require.NoError(t, again.Close())
	require.NoError(t, other.Close())
}

// test_dv_cq_ex_with_sgid: an unknown sender is named by its GID, a known one by the number of
// its address handle. Checks the other fields too.
func TestEFASource(t *testing.T) {
	before := uint64(time.Now().UnixNano())
	server := newSRDNode(t, srdNodeOptions{fields: verbs.WCSource | verbs.WCTimestamp | verbs.WCWallClock})
	client := newSRDNode(t, srdNodeOptions{fields: verbs.WCSource})
	send := func() verbs.WCExtra {
		server.postRecv(verbs.RecvWR{SGL: []verbs.SGE{server.sge(0, 100)}})
		client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{client.sge(0, 100)}}))
		require.Equal(t, verbs.StatusSuccess, client.wait(1)[0].Status)
		require.Equal(t, verbs.StatusSuccess, server.wait(1)[0].Status)
		return server.extras[0]
	}
	x := send()
	assert.Equal(t, uint16(verbs.NoAH), x.SourceAH)
	assert.Equal(t, must(client.dev.GIDs(1))[0].GID, x.SourceGID)
	assert.GreaterOrEqual(t, x.WallClock, before)
	assert.LessOrEqual(t, x.WallClock, uint64(time.Now().UnixNano()))
	assert.Equal(t, verbs.WCExtra{SourceAH: verbs.NoAH}, client.extras[0], "of a send")

	ah := server.to(client)
	y := send()
	assert.Equal(t, ah.(verbs.NumberedAH).Number(), y.SourceAH)
	assert.Equal(t, verbs.GID{}, y.SourceGID)
	assert.Greater(t, y.Timestamp, x.Timestamp)
	delete(server.ah, client)
	require.NoError(t, ah.Close())
	assert.Equal(t, uint16(verbs.NoAH), send().SourceAH)

	_, err := server.dev.CreateCQ(verbs.CQInit{Capacity: 1, Fields: 1 << 30})
	assert.ErrorIs(t, err, verbs.ErrNotSupported)
	_, err = server.cq.(verbs.ExtendedCQ).PollExtended(make([]verbs.WC, 2), make([]verbs.WCExtra, 1))
	assert.ErrorIs(t, err, verbs.ErrInvalid)
	_, extended := newSRDNode(t, srdNodeOptions{}).cq.(verbs.ExtendedCQ)
	assert.False(t, extended)
	server.postRecv(verbs.RecvWR{})
	client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSend}))
	client.wait(1)
	assert.Len(t, server.side.wait(1), 1, "Poll leaves the rest out")
}

// The statuses of EFA completions.
func TestEFAStatuses(t *testing.T) {
	client, server := srdPair(t, srdNodeOptions{memory: 8192})
	foreign := newSRDNode(t, srdNodeOptions{}) // whom the server does not know
	gone := newSRDNode(t, srdNodeOptions{})
	write := verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{client.sge(0, 100)}, RemoteAddr: server.mr.Addr(), RKey: server.mr.RKey()}
	for name, c := range map[string]struct {
		wr     verbs.SendWR
		spoil  func(*verbs.SendWR)
		want   verbs.Status
		vendor uint32
	}{
		"unknown queue pair": {verbs.SendWR{Op: verbs.OpSend}, func(w *verbs.SendWR) { w.RemoteQPN ^= 0x800000 }, verbs.StatusRemoteInvalidRDRequest, 9},
		"wrong Q_Key":        {verbs.SendWR{Op: verbs.OpSend}, func(w *verbs.SendWR) { w.RemoteQKey++ }, verbs.StatusRemoteInvalidRDRequest, 9},
		"no receive":         {verbs.SendWR{Op: verbs.OpSend}, func(*verbs.SendWR) {}, verbs.StatusRNRRetryExceeded, 10},
		"wrong key":          {write, func(w *verbs.SendWR) { w.RKey++ }, verbs.StatusRemoteAccessError, 7},
		"out of bounds":      {write, func(w *verbs.SendWR) { w.RemoteAddr += uint64(len(server.mem)) - 99 }, verbs.StatusRemoteAccessError, 7},
		"read, wrong key":    {write, func(w *verbs.SendWR) { w.Op = verbs.OpRead; w.RKey++ }, verbs.StatusRemoteAccessError, 7},
		"bad local key":      {write, func(w *verbs.SendWR) { w.SGL = []verbs.SGE{{Addr: 1, Length: 1, LKey: 1}} }, verbs.StatusLocalProtectionError, 5},
		"no receive, write":  {write, func(w *verbs.SendWR) { w.Op = verbs.OpWriteImm }, verbs.StatusRNRRetryExceeded, 10},
	} {
		wr := client.request(server, 0, c.wr)
		c.spoil(&wr)
		client.post(wr)
		wc := client.wait(1)[0]
		assert.Equal(t, []any{c.want, c.vendor, client.qp.Num()}, []any{wc.Status, wc.VendorError, wc.QPN}, name)
		// Nothing has happened to the queue pair.
		client.post(client.request(server, 0, write))
		assert.Equal(t, verbs.StatusSuccess, client.wait(1)[0].Status, name)
	}

	unsolicited := newSRDNode(t, srdNodeOptions{init: verbs.QPInit{UnsolicitedWriteRecv: true}})
	server.to(unsolicited)
	wr := unsolicited.request(server, 0, write)
	wr.Op, wr.SGL = verbs.OpWriteImm, nil
	unsolicited.post(wr)
	wc := unsolicited.wait(1)[0]
	assert.Equal(t, []any{verbs.StatusRemoteInvalidRequest, uint32(18)}, []any{wc.Status, wc.VendorError}, "one end only is unsolicited")

	wr = foreign.request(server, 0, write)
	wr.SGL = []verbs.SGE{foreign.sge(0, 100)}
	foreign.post(wr)
	wc = foreign.wait(1)[0]
	assert.Equal(t, []any{verbs.StatusRemoteOperationError, uint32(14)}, []any{wc.Status, wc.VendorError}, "the server has no address handle")

	server.postRecv(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{server.sge(0, 10)}})
	client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{client.sge(0, 11)}}))
	wc = client.wait(1)[0]
	assert.Equal(t, []any{verbs.StatusRemoteInvalidRequest, uint32(11)}, []any{wc.Status, wc.VendorError}, "longer than the receive")
	client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{client.sge(0, 10)}}))
	assert.Equal(t, uint64(5), server.wait(1)[0].ID, "the receive is still there")
	client.wait(1)

	to := client.request(gone, 0, verbs.SendWR{Op: verbs.OpSend})
	gone.close()
	client.post(to)
	wc = client.wait(1)[0]
	assert.Equal(t, []any{verbs.StatusResponseTimeout, uint32(15)}, []any{wc.Status, wc.VendorError}, "nobody is there")
	assert.Equal(t, uint64(1), counter(t, client.dev, "srd_peer_timeouts"))
	assert.Positive(t, counter(t, server.dev, "rx_qkey_violations"), "a request that was repeated counts again")
}

// Destroying an address handle fails only its outstanding requests.
func TestEFAClosedHandle(t *testing.T) {
	client, server := srdPair(t, srdNodeOptions{rnr: 7})
	other, err := client.dev.DefaultPD().CreateAH(client.address(server.side))
	require.NoError(t, err)
	wr := client.request(server, 0, verbs.SendWR{ID: 1, Op: verbs.OpSend})
	waits := wr
	waits.ID, waits.AH = 2, other
	client.post(wr, waits, waits)
	require.NoError(t, other.Close())
	for _, wc := range client.wait(2) {
		assert.Equal(t, []any{uint64(2), verbs.StatusLocalQPOperationError, uint32(4)}, []any{wc.ID, wc.Status, wc.VendorError})
	}
	server.postRecv(verbs.RecvWR{}, verbs.RecvWR{}, verbs.RecvWR{})
	assert.Equal(t, verbs.WC{ID: 1, Opcode: verbs.WCSend, QPN: client.qp.Num()}, client.wait(1)[0])
	_, err = client.qp.PostSend([]verbs.SendWR{waits})
	assert.ErrorIs(t, err, verbs.ErrClosed)
}

// Every operation, at the edges of packets, to another device, to another queue pair of the
// same device, and to itself.
func TestScalableOperations(t *testing.T) {
	const half = 1 << 20
	for _, v := range variants {
		for _, place := range []string{"another device", "same device", "itself"} {
			t.Run(v.name+", "+place, func(t *testing.T) {
				x := newSRDNode(t, srdNodeOptions{cfg: v.cfg, memory: 2 * half, qps: 2})
				y, qp := x, 1
				switch place {
				case "another device":
					y, qp = newSRDNode(t, srdNodeOptions{cfg: v.cfg, memory: 2 * half}), 0
				case "itself":
					qp = 0
				}
				y.to(x)
				for _, n := range []int{0, 1, 4095, 4096, 4097, 65537, half} {
					fill(x.mem[:n], uint64(n))
					if n <= 4096 {
						_, err := y.qps[qp].PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{y.sge(half, half)}}})
						require.NoError(t, err)
						clear(y.mem[half:])
						x.post(x.request(y, qp, verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{x.sge(0, n/2), x.sge(n/2, n-n/2)}}))
						check(t, x, y, 2)
						require.True(t, bytes.Equal(x.mem[:n], y.mem[half:half+n]), "send of %d bytes", n)
					}
					clear(y.mem[half:])
					wr := x.request(y, qp, verbs.SendWR{ID: 3, Op: verbs.OpWrite, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: y.mr.Addr() + half, RKey: y.mr.RKey()})
					x.post(wr)
					require.Equal(t, verbs.WC{ID: 3, Opcode: verbs.WCWrite, Bytes: uint32(n), QPN: x.qp.Num()}, x.wait(1)[0])
					require.True(t, bytes.Equal(x.mem[:n], y.mem[half:half+n]), "write of %d bytes", n)
					clear(y.mem[half:])
					_, err := y.qps[qp].PostRecv([]verbs.RecvWR{{ID: 1}})
					require.NoError(t, err)
					wr.Op, wr.ID, wr.Imm = verbs.OpWriteImm, 2, 9
					x.post(wr)
					check(t, x, y, 2)
					require.True(t, bytes.Equal(x.mem[:n], y.mem[half:half+n]), "write of %d bytes", n)
					fill(y.mem[half:half+n], uint64(n)+1)
					wr.Op, wr.ID = verbs.OpRead, 3
					x.post(wr)
					require.Equal(t, verbs.WC{ID: 3, Opcode: verbs.WCRead, Bytes: uint32(n), QPN: x.qp.Num()}, x.wait(1)[0])
					require.True(t, bytes.Equal(x.mem[:n], y.mem[half:half+n]), "read of %d bytes", n)
				}
			})
		}
	}
}

// check takes the completions of a request with that ID, and of its receive, with the ID 1.
func check(t *testing.T, x, y *srdNode, id uint64) {
	t.Helper()
	var all []verbs.WC
	if x == y {
		all = x.wait(2)
	} else {
		all = append(x.wait(1), y.wait(1)...)
	}
	ids := []uint64{all[0].ID, all[1].ID}
	for _, wc := range all {
		require.Equal(t, verbs.StatusSuccess, wc.Status)
	}
	slices.Sort(ids)
	require.Equal(t, []uint64{1, id}, ids)
}

// order sends messages at once or one by one, and returns the order of arrival.
func order(t *testing.T, seed uint64, messages int, oneByOne bool) (order []uint32) {
	client, server := srdPair(t, srdNodeOptions{cfg: Config{SRDSeed: seed}})
	for range messages {
		server.postRecv(verbs.RecvWR{})
	}
	// The first one finds the peer.
	server.postRecv(verbs.RecvWR{})
	client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSend}))
	client.wait(1)
	server.wait(1)
	var wrs []verbs.SendWR
	for i := range messages {
		wrs = append(wrs, client.request(server, 0, verbs.SendWR{Op: verbs.OpSendImm, Imm: uint32(i)}))
		if oneByOne {
			client.post(wrs[i])
		}
	}
	if !oneByOne {
		client.post(wrs...)
	}
	client.wait(messages)
	for _, wc := range server.wait(messages) {
		order = append(order, wc.Imm)
	}
	return order
}

// Messages arrive in another order than they were sent, although the network does not reorder,
// and in the same order for the same seed.
func TestScalableOrder(t *testing.T) {
	first := order(t, 1, 50, false)
	assert.False(t, slices.IsSorted(first), "%v", first)
	assert.Equal(t, first, order(t, 1, 50, false))
	assert.NotEqual(t, first, order(t, 2, 50, false))
	sorted := slices.Clone(first)
	slices.Sort(sorted)
	for i := range sorted {
		assert.Equal(t, uint32(i), sorted[i])
	}
	assert.False(t, slices.IsSorted(order(t, 1, 50, true)), "messages that are posted one by one")
}

// Each message arrives once on a lossy network, over real sockets.
func TestScalableFaults(t *testing.T) {
	const messages = 500
	cfg := Config{Faults: faults.Faults{Loss: 0.1, Duplicate: 0.05, Reorder: 0.1, Corrupt: 0.01, Seed: 3}}
	client, server := srdPair(t, srdNodeOptions{cfg: cfg, rnr: 7})
	seen := make(map[uint32]bool)
	posted, completed := 0, 0
	for range 100 {
		server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{server.sge(0, 64)}})
	}
	deadline := time.Now().Add(5 * time.Minute)
	for len(seen) < messages || completed < messages {
		for posted < messages && posted-completed < 200 {
			client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSendImm, Imm: uint32(posted), SGL: []verbs.SGE{client.sge(0, 64)}}))
			posted++
		}
		for _, wc := range client.wcs[:client.poll(client.wcs)] {
			require.Equal(t, verbs.StatusSuccess, wc.Status)
			completed++
		}
		for _, wc := range server.wcs[:server.poll(server.wcs)] {
			require.False(t, seen[wc.Imm], "message %d came twice", wc.Imm)
			seen[wc.Imm] = true
			server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{server.sge(0, 64)}})
		}
		require.Less(t, time.Now(), deadline)
	}
	assert.NotZero(t, counter(t, client.dev, "srd_retransmits"))
	assert.NotZero(t, counter(t, server.dev, "duplicate_request"))
}

// A device that is opened at the address of an earlier one accepts none of its packets, and
// can be used at once. Requests in progress fail.
func TestScalableRestart(t *testing.T) {
	client := newSRDNode(t, srdNodeOptions{})
	server := newSRDNode(t, srdNodeOptions{})
	place := must(server.dev.GIDs(1))[0]
	ah, err := client.dev.DefaultPD().CreateAH(client.address(server.side))
	require.NoError(t, err)
	defer func() { require.NoError(t, ah.Close()) }()
	request := func(p *srdNode) verbs.SendWR {
		return verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, AH: ah, RemoteQPN: p.qp.Num(), RemoteQKey: testKey}
	}
	server.postRecv(verbs.RecvWR{})
	client.post(request(server))
	require.Equal(t, verbs.StatusSuccess, client.wait(1)[0].Status)
	server.wait(1)
	old := request(server)
	server.close()
	client.post(old)
	time.Sleep(10 * time.Millisecond)
	next := newSRDNode(t, srdNodeOptions{cfg: Config{Addresses: []netip.AddrPort{netip.AddrPortFrom(place.GID.Addr(), place.UDPPort)}}})
	wc := client.wait(1)[0]
	assert.Equal(t, []any{verbs.StatusRemoteAborted, uint32(8)}, []any{wc.Status, wc.VendorError})
	next.postRecv(verbs.RecvWR{})
	client.post(request(next))
	assert.Equal(t, verbs.StatusSuccess, client.wait(1)[0].Status)
	assert.Equal(t, client.qp.Num(), next.wait(1)[0].SrcQPN)
	assert.Equal(t, uint64(1), counter(t, client.dev, "srd_peer_restarts"))
}

// Writes that take no receive cannot overrun the receiver's completion queue.
func TestScalableUnsolicitedFlood(t *testing.T) {
	o := srdNodeOptions{init: verbs.QPInit{UnsolicitedWriteRecv: true}, rnr: 7}
	client, server := srdPair(t, o)
	small, err := server.dev.CreateCQ(verbs.CQInit{Capacity: 2})
	require.NoError(t, err)
	require.NoError(t, server.qp.Close())
	server.qp, err = server.dev.DefaultPD().CreateQP(verbs.QPInit{
		Type: verbs.SRD, SendCQ: server.cq, RecvCQ: small, MaxSendWR: 1, MaxRecvWR: 1, UnsolicitedWriteRecv: true,
	})
	require.NoError(t, err)
	server.qps[0] = server.qp
	server.ready(7)
	for i := range 20 {
		client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpWriteImm, Imm: uint32(i)}))
	}
	require.Eventually(t, func() bool {
		client.poll(client.wcs)
		return counter(t, server.dev, "send_rnr_err") >= 18
	}, 5*time.Minute, time.Millisecond)
	seen := make(map[uint32]bool)
	wcs := make([]verbs.WC, 4)
	for deadline := time.Now().Add(5 * time.Minute); len(seen) < 20; {
		client.poll(client.wcs)
		n, err := small.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.False(t, seen[wc.Imm])
			seen[wc.Imm] = true
		}
		require.Less(t, time.Now(), deadline)
	}
	require.NoError(t, server.qp.Close())
	require.NoError(t, small.Close())
}

// Captures contain SRD packets.
func TestScalableCapture(t *testing.T) {
	var trace bytes.Buffer
	client, server := newSRDNode(t, srdNodeOptions{cfg: Config{Capture: &trace}}), newSRDNode(t, srdNodeOptions{})
	server.postRecv(verbs.RecvWR{SGL: []verbs.SGE{server.sge(0, 16)}})
	copy(client.mem, "in the clear now")
	client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{client.sge(0, 16)}}))
	client.wait(1)
	server.wait(1)
	client.close()
	var opcodes []wire.Opcode
	for _, p := range capturedPackets(t, trace.Bytes()) {
		opcodes = append(opcodes, wire.Opcode(p[ipheader.IPv4Len+ipheader.UDPLen]))
	}
	for _, op := range []wire.Opcode{wire.SRDHello, wire.SRDHelloReply, wire.SRDSend, wire.SRDAcknowledge} {
		assert.Contains(t, opcodes, op)
	}
	assert.Contains(t, trace.String(), "in the clear now")
}

// An overflow of a completion queue puts its queue pairs in error.
func TestScalableOverrun(t *testing.T) {
	client, server := srdPair(t, srdNodeOptions{})
	small, err := server.dev.CreateCQ(verbs.CQInit{Capacity: 1, Fields: verbs.WCSource})
	require.NoError(t, err)
	require.NoError(t, server.qp.Close())
	var failed []verbs.CQ
	cancel := server.dev.SubscribeEvents(func(e verbs.Event) { failed = append(failed, e.CQ) })
	defer cancel()
	server.qp, err = server.dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.SRD, SendCQ: server.cq, RecvCQ: small, MaxSendWR: 1, MaxRecvWR: 4, MaxRecvSGE: 1})
	require.NoError(t, err)
	server.qps[0] = server.qp
	server.ready(0)
	server.postRecv(verbs.RecvWR{}, verbs.RecvWR{}, verbs.RecvWR{})
	wr := client.request(server, 0, verbs.SendWR{Op: verbs.OpSend})
	client.post(wr, wr)
	client.wait(2)
	_, err = small.Poll(make([]verbs.WC, 1))
	assert.ErrorIs(t, err, verbs.ErrOverrun)
	assert.Equal(t, verbs.QPError, must(server.qp.Query()).State)
	assert.Equal(t, []verbs.CQ{small}, failed)
	require.NoError(t, server.qp.Close())
	require.NoError(t, small.Close())
}

// Sends, writes and reads allocate nothing, at either end.
func TestScalableAllocations(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("coverage allocates")
	}
	for op := verbs.OpSend; op <= verbs.OpRead; op++ {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			client, server := srdPair(t, srdNodeOptions{rnr: 7})
			const batch = 16
			wr := client.request(server, 0, verbs.SendWR{Op: op, SGL: []verbs.SGE{client.sge(0, 4096)}, RemoteAddr: server.mr.Addr(), RKey: server.mr.RKey()})
			wrs := slices.Repeat([]verbs.SendWR{wr}, batch)
			receives := slices.Repeat([]verbs.RecvWR{{SGL: []verbs.SGE{server.sge(0, 4096)}}}, batch)
			received := 0
			if op == verbs.OpSend || op == verbs.OpSendImm || op == verbs.OpWriteImm {
				received = batch
			}
			play := func() {
				if received > 0 {
					_, _ = server.qp.PostRecv(receives)
				}
				_, _ = client.qp.PostSend(wrs)
				for a, b := 0, 0; a < batch || b < received; {
					n, _ := client.cq.Poll(client.wcs)
					a += n
					n, _ = server.cq.Poll(server.wcs)
					b += n
				}
			}
			for range 20 {
				play()
			}
			assert.Less(t, testing.AllocsPerRun(2000, play), 1.0)
		})
	}
}

// Writes that take no receive leave room in a shared completion queue for the queue pair's own
// requests.
func TestScalableUnsolicitedFloodOfASharedQueue(t *testing.T) {
	o := srdNodeOptions{init: verbs.QPInit{UnsolicitedWriteRecv: true}, rnr: 7}
	client, server := srdPair(t, o)
	small, err := server.dev.CreateCQ(verbs.CQInit{Capacity: 8})
	require.NoError(t, err)
	require.NoError(t, server.qp.Close())
	server.qp, err = server.dev.DefaultPD().CreateQP(verbs.QPInit{
		Type: verbs.SRD, SendCQ: small, RecvCQ: small, MaxSendWR: 1, MaxRecvWR: 1, UnsolicitedWriteRecv: true,
	})
	require.NoError(t, err)
	server.qps[0] = server.qp
	server.ready(7)
	for i := range 20 {
		client.post(client.request(server, 0, verbs.SendWR{Op: verbs.OpWriteImm, Imm: uint32(i)}))
	}
	require.Eventually(t, func() bool {
		client.poll(client.wcs)
		return counter(t, server.dev, "send_rnr_err") >= 5
	}, time.Minute, time.Millisecond)
	client.postRecv(verbs.RecvWR{SGL: []verbs.SGE{client.sge(0, 16)}})
	server.post(server.request(client, 0, verbs.SendWR{Op: verbs.OpSend}))
	require.Eventually(t, func() bool {
		n, err := client.cq.Poll(client.wcs)
		require.NoError(t, err)
		for _, wc := range client.wcs[:n] {
			if wc.Opcode == verbs.WCRecv && wc.Status == verbs.StatusSuccess {
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond)
	assert.Equal(t, verbs.QPReadyToSend, must(server.qp.Query()).State)
	_, err = small.Poll(make([]verbs.WC, 1))
	assert.NoError(t, err)
	require.NoError(t, server.qp.Close())
	require.NoError(t, small.Close())
}

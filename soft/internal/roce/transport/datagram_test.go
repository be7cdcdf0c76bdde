package transport

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// testAH leads datagrams where the end's other packets go.
type testAH struct{ from *end }

func (testAH) Close() error { return nil }

func (a testAH) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	return a.from.out.Send(p, pieces, n)
}

var errTestAH = errors.New("no address handle")

func (e *end) checkAH(ah verbs.AH, _ uint32) error {
	if ah != (testAH{e}) {
		return errTestAH
	}
	return nil
}

// testHeader precedes the data of received datagrams.
var testHeader = [verbs.GRHLen]byte(pattern(make([]byte, verbs.GRHLen), 3))

// datagramOr makes a request like wr, addressed for the case that it is a
// datagram.
func (r *rig) datagramOr(id uint64, op verbs.Opcode, n int) verbs.SendWR {
	wr := r.wr(id, op, n)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = testAH{r.client}, serverQPN, testKey
	return wr
}

func TestDatagram(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm} {
		for _, n := range []int{0, 1, 255, 256} {
			r := newRig(t, options{kind: verbs.UD, psn: 0xffffff})
			// In pieces, the first of them shorter than the header.
			r.server.postRecv(verbs.RecvWR{ID: 7, SGL: []verbs.SGE{r.remote.sge(0, 30), r.remote.sge(30, 10+n)}})
			wr := r.datagramOr(1, op, n)
			r.client.post(wr)
			sent := r.client.transmit(r.now)
			require.Len(t, sent, 1)
			r.requireSent(1, verbs.StatusSuccess)
			p := sent[0]
			assert.Equal(t, wire.DETH{QKey: testKey, SrcQP: clientQPN}, p.DETH)
			assert.Equal(t, uint32(serverQPN), p.DestQP)
			assert.Equal(t, uint32(0xffffff), p.PSN)
			r.server.take(r.now, sent...)
			require.Empty(t, r.server.transmit(r.now))
			want := verbs.WC{ID: 7, Opcode: verbs.WCRecv, Bytes: uint32(verbs.GRHLen + n), QPN: serverQPN, SrcQPN: clientQPN, HasGRH: true, IPv4: true} // its header is all zeros
			if op == verbs.OpSendImm {
				assert.Equal(t, wire.UDSendOnlyImm, p.Opcode)
				want.HasImm, want.Imm = true, wr.Imm
			} else {
				assert.Equal(t, wire.UDSendOnly, p.Opcode)
			}
			r.requireReceived(want)
			assert.Equal(t, testHeader[:], r.remote.Mem[:verbs.GRHLen])
			assert.True(t, bytes.Equal(r.local.Mem[:n], r.remote.Mem[verbs.GRHLen:verbs.GRHLen+n]))
		}
	}
}

// Datagrams are accepted from any sender, with sequence numbers in any order.
func TestDatagramFromAnybody(t *testing.T) {
	r := newRig(t, options{kind: verbs.UD})
	r.receives(3, 100)
	for _, psn := range []uint32{5, 5, 0x800000} {
		r.server.take(r.now, wire.Packet{Opcode: wire.UDSendOnly, DestQP: serverQPN, PSN: psn, DETH: wire.DETH{QKey: testKey, SrcQP: psn + 1}})
	}
	list := r.server.recv.take()
	require.Len(t, list, 3)
	assert.Equal(t, []uint32{6, 6, 0x800001}, []uint32{list[0].SrcQPN, list[1].SrcQPN, list[2].SrcQPN})
}

func TestQKey(t *testing.T) {
	const own = 0x8000_0042
	for _, c := range []struct {
		name           string
		given, arrives uint32
	}{
		{"as given", 0x1234, 0x1234},
		{"the queue pair's own instead", 0x8000_0000, own},
		{"its own, all bits set", 0xffff_ffff, own},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, options{kind: verbs.UD})
			require.NoError(t, r.client.qp.Modify(verbs.QPAttr{QKey: own}, verbs.QPAttrQKey))
			wr := r.datagramOr(1, verbs.OpSend, 1)
			wr.RemoteQKey = c.given
			r.client.post(wr)
			sent := r.client.transmit(r.now)
			assert.Equal(t, c.arrives, sent[0].DETH.QKey)

			r.receives(1, 100)
			r.server.take(r.now, sent...)
			r.requireReceived() // another key is dropped
			assert.Equal(t, uint64(1), r.server.counters.QKeyViolations)
			require.NoError(t, r.server.qp.Modify(verbs.QPAttr{QKey: c.arrives}, verbs.QPAttrQKey))
			r.server.take(r.now, sent...)
			assert.Equal(t, []uint64{100}, ids(r.server.recv.take()))
			assert.Equal(t, c.arrives, r.server.qp.Attr().QKey)
		})
	}
}

func TestDatagramDropped(t *testing.T) {
	r := newRig(t, options{kind: verbs.UD})
	r.client.post(r.datagramOr(1, verbs.OpSend, 101), r.datagramOr(2, verbs.OpSend, 100))
	sent := r.client.transmit(r.now)
	r.server.take(r.now, sent...)
	r.requireReceived()
	assert.Equal(t, uint64(2), r.server.counters.DatagramsDropped, "no receive")

	r.receives(1, verbs.GRHLen+100)
	r.server.take(r.now, sent[0])
	r.requireReceived()
	assert.Equal(t, uint64(3), r.server.counters.DatagramsDropped, "receive too small")
	r.server.take(r.now, sent[1])
	assert.Equal(t, []uint64{100}, ids(r.server.recv.take()), "the receive stays for the next")
	r.remote.requireGuards(t)

	r.receives(1, 4096)
	long := sent[1]
	long.Payload = make([]byte, 257)
	r.server.take(r.now, long)
	r.requireReceived()
	assert.Equal(t, uint64(4), r.server.counters.DatagramsDropped, "longer than the MTU")
	assert.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
	assert.Empty(t, r.server.events)
}

// A receive that was assigned to a dropped datagram is flushed with the others.
func TestHeldReceiveIsFlushed(t *testing.T) {
	r := newRig(t, options{kind: verbs.UD})
	r.receives(2, verbs.GRHLen)
	r.client.post(r.datagramOr(1, verbs.OpSend, 1))
	r.exchange()
	r.requireReceived()
	r.server.modify(verbs.QPError)
	assert.Equal(t, []uint64{100, 101}, ids(r.server.recv.take()))
}

func TestDatagramRegionClosed(t *testing.T) {
	r := newRig(t, options{kind: verbs.UD})
	r.receives(1, 512)
	r.server.memory.Remove(r.remote.Region)
	r.client.post(r.datagramOr(1, verbs.OpSend, 1))
	r.exchange()
	r.requireReceived(verbs.WC{ID: 100, Status: verbs.StatusLocalProtectionError, Opcode: verbs.WCRecv, QPN: serverQPN})
	r.requireIntact()
}

func TestDatagramRefusedAtPosting(t *testing.T) {
	r := newRig(t, options{kind: verbs.UD})
	for _, c := range []struct {
		spoil func(*verbs.SendWR)
		want  string
	}{
		{func(wr *verbs.SendWR) { wr.SGL = []verbs.SGE{r.local.sge(0, 200), r.local.sge(0, 57)} }, "message of 257 bytes exceeds the path MTU of the port, 256"},
		{func(wr *verbs.SendWR) { wr.RemoteQPN = 0 }, "RemoteQPN is 0x0"},
		{func(wr *verbs.SendWR) { wr.RemoteQPN = 1 << 24 }, "RemoteQPN is 0x1000000"},
		{func(wr *verbs.SendWR) { wr.AH = nil }, errTestAH.Error()},
	} {
		good, bad := r.datagramOr(1, verbs.OpSend, 1), r.datagramOr(2, verbs.OpSend, 1)
		c.spoil(&bad)
		n, err := r.client.qp.PostSend([]verbs.SendWR{good, bad, good})
		assert.Equal(t, 1, n)
		assert.ErrorContains(t, err, c.want)
		assert.ErrorContains(t, err, "post send 2 of 3")
	}
	assert.Len(t, r.client.transmit(r.now), 4)
}

func TestDatagramStates(t *testing.T) {
	o := options{kind: verbs.UD}.defaults()
	e := newEnd(t, serverQPN, NewMemory(), o)
	p := wire.Packet{Opcode: wire.UDSendOnly, DestQP: serverQPN, DETH: wire.DETH{QKey: testKey}}
	a := newArena(t, e.memory, localKey, localBase, 100, everyAccess)
	attr := o.attr(0, 0, 0)
	for i, to := range []verbs.QPState{verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend} {
		e.take(0, p)
		attr.State = to
		require.NoError(t, e.qp.Modify(attr, masks[verbs.UD][i]))
		e.postRecv(verbs.RecvWR{ID: uint64(to), SGL: []verbs.SGE{a.sge(0, 100)}})
	}
	assert.Equal(t, []uint64{uint64(verbs.QPInitialized)}, ids(e.recv.take()), "in RTR only")
	e.modify(verbs.QPSendQueueDrained)
	require.NoError(t, e.qp.Modify(verbs.QPAttr{QKey: 1}, verbs.QPAttrQKey))
	e.take(0, p)
	assert.Empty(t, e.recv.take())
	p.DETH.QKey = 1
	e.take(0, p)
	assert.Len(t, e.recv.take(), 1)
}

func TestDatagramToSharedQueue(t *testing.T) {
	memory := NewMemory()
	q := NewRecvQueue(memory, testDomain, 8, 4)
	q.Share(nil)
	r := newRig(t, options{kind: verbs.UD, shared: q})
	n, err := q.Post([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{r.remote.sge(0, 50)}}, {ID: 2, SGL: []verbs.SGE{r.remote.sge(50, 50)}}})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	r.client.post(r.datagramOr(1, verbs.OpSend, 10), r.datagramOr(2, verbs.OpSend, 11), r.datagramOr(3, verbs.OpSend, 10))
	r.exchange()
	assert.Equal(t, []uint64{1, 2}, ids(r.server.recv.take()))
}

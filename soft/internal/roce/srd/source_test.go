package srd

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// forged are packets to a with all numbers of its context with a peer.
func forged(c *Context, a *end) []wire.Packet {
	var all []wire.Packet
	for op, psn := range map[wire.Opcode]uint32{
		wire.SRDSend: c.base, wire.SRDAcknowledge: c.next, wire.SRDNak: c.una, wire.SRDReadResponse: c.una,
	} {
		all = append(all, wire.Packet{
			Opcode: op, PSN: psn, DestQP: a.num, DETH: wire.DETH{QKey: testKey, SrcQP: 100},
			SRDETH: wire.SRDETH{Source: c.peer, Target: c.own, MTU: 3}, AETH: codeBadQPN.aeth(),
		})
	}
	return all
}

// A packet with correct numbers from another port than the peer's is refused, and causes no
// SRDHello.
func TestForgedPackets(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, recvDepth: 4})
	ah := a.to(b.h)
	b.to(a.h)
	b.postRecv(verbs.RecvWR{})
	a.post(send(ah, b, 1))
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	from := Address{0, b.h.addr}
	c := a.t.contexts[from]
	require.Equal(t, uint16(sendPort), c.sendPort)
	a.postRecv(verbs.RecvWR{})
	w.tap = func(from, _ netip.AddrPort, p []byte) []byte {
		if opcodeOf(p) == wire.SRDHello {
			assert.Fail(t, "the peer is asked who it is")
		}
		return p
	}
	before := *c
	for i, p := range forged(c, a) {
		a.t.Receive(c, from, sendPort+1, &p, w.Now)
		a.h.pump()
		require.Equal(t, uint64(i+1), a.t.Counters().WrongSource)
	}
	assert.Equal(t, []any{before.receivedAt, before.una, before.peer, before.sendPort}, []any{c.receivedAt, c.una, c.peer, c.sendPort})
	assert.Empty(t, a.recv.take())
	w.tap = nil

	// The host that receives the SRDHello replies.
	c.requestToken(w.Now)
	a.t.activate(c)
	hello := wire.Packet{}
	w.tap = func(_, to netip.AddrPort, p []byte) []byte {
		if opcodeOf(p) == wire.SRDHello {
			require.NoError(t, hello.Parse(p))
		}
		return p
	}
	a.h.pump()
	require.Equal(t, wire.SRDHello, hello.Opcode)
	for _, wrong := range []wire.Packet{{PSN: hello.PSN + 1, SRDETH: wire.SRDETH{Floor: hello.SRDETH.Floor}}, {PSN: hello.PSN, SRDETH: wire.SRDETH{Floor: hello.SRDETH.Floor ^ 1}}} {
		wrong.Opcode, wrong.SRDETH.Source, wrong.SRDETH.Target, wrong.SRDETH.MTU = wire.SRDHelloReply, 77, c.own, 3
		a.t.Receive(c, from, sendPort+1, &wrong, w.Now)
		require.Equal(t, []any{before.peer, before.sendPort}, []any{c.peer, c.sendPort}, "a guess is believed")
	}
	w.Pass(time.Second)
	b.postRecv(verbs.RecvWR{})
	a.post(send(ah, b, 2))
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	assert.Zero(t, a.t.Counters().Restarts)
}

// A restarted device sends from another port, which both ends learn with its token.
func TestPortOfARestartedPeer(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, recvDepth: 4})
	ah := a.to(b.h)
	b.postRecv(verbs.RecvWR{})
	a.post(send(ah, b, 1))
	a.completed(1)
	next := w.boot(b.h.addr.String(), 3, 1024).newEnd(endOptions{depth: 4, recvDepth: 4})
	next.postRecv(verbs.RecvWR{}, verbs.RecvWR{})
	a.post(send(ah, next, 2))
	a.completed(1) // may have met the old one
	a.post(send(ah, next, 3))
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	assert.Equal(t, uint16(sendPort+1), a.t.contexts[Address{0, b.h.addr}].sendPort)
	assert.Equal(t, uint16(sendPort), next.t.contexts[Address{0, a.h.addr}].sendPort)
}

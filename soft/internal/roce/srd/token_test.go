package srd

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// opcodeOf is the opcode of a packet that is on the way.
func opcodeOf(b []byte) wire.Opcode { return wire.Opcode(b[0]) }

// A device that has sent a peer one token, and opens the context itself after the token has
// changed, is still the same device.
func TestBothOpenAcrossEpochs(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, recvDepth: 4})
	a.postRecv(verbs.RecvWR{})
	b.postRecv(verbs.RecvWR{})
	w.Now = epochTime - time.Millisecond
	begin := w.Now
	w.tap = func(from, _ netip.AddrPort, p []byte) []byte {
		if from == a.h.addr && opcodeOf(p) == wire.SRDSendImm && w.Now < begin+10*time.Millisecond {
			return nil
		}
		return p
	}
	a.post(send(a.to(b.h), b, 1))
	w.Pass(2 * time.Millisecond)
	require.Zero(t, b.t.Counters().Contexts)
	b.post(send(b.to(a.h), a, 2))
	for _, e := range []*end{a, b} {
		assert.Equal(t, verbs.StatusSuccess, e.completed(1)[0].Status)
	}
	for _, e := range []*end{a, b} {
		assert.Len(t, e.recv.take(), 1)
		assert.Zero(t, e.t.Counters().Restarts)
	}
}

// However late packets are when tokens change, two devices still recognize each other: nothing
// is aborted, and nothing is executed twice.
func TestTokensChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newNetwork(t, rapid.Uint64().Draw(t, "seed"), faults{})
		const most = 40
		o := endOptions{depth: most, recvDepth: most, rnrRetry: 7}
		ends := []*end{w.boot(at(1), 1, 1024).newEnd(o), w.boot(at(2), 2, 1024).newEnd(o)}
		ways := []*fakeAH{ends[0].to(ends[1].h), ends[1].to(ends[0].h)}
		upTo := func(d time.Duration) time.Duration { return time.Duration(w.Random.Int64N(int64(d))) }
		worst := time.Duration(rapid.IntRange(1, 300).Draw(t, "delay")) * time.Millisecond
		w.Now = epochTime*time.Duration(rapid.IntRange(1, 4).Draw(t, "epoch")) - upTo(2*worst)
		w.tap = func(from, to netip.AddrPort, p []byte) []byte {
			for range 1 + w.Random.IntN(2) {
				late := append([]byte(nil), p...)
				if w.Chance(0.8) {
					w.After(upTo(worst), func() { w.fly(from, to, late) })
				}
			}
			return nil
		}
		posted := [2]int{}
		for range rapid.IntRange(1, most).Draw(t, "messages") {
			i := w.Random.IntN(2)
			ends[1-i].postRecv(verbs.RecvWR{})
			posted[i]++
			ends[i].post(send(ways[i], ends[1-i], uint64(posted[i])))
			w.Pass(upTo(worst))
		}
		w.Pass(3 * peerDeadTimeout)
		for i, e := range ends {
			done := e.send.take()
			require.Len(t, done, posted[i])
			for _, wc := range done {
				require.Equal(t, verbs.StatusSuccess, wc.Status, "vendor error %d", wc.VendorError)
			}
			seen := make(map[uint32]bool)
			for _, wc := range e.recv.take() {
				require.False(t, seen[wc.Imm], "message %d was received twice", wc.Imm)
				seen[wc.Imm] = true
			}
			require.Len(t, seen, posted[1-i])
			require.Zero(t, e.t.Counters().Restarts)
		}
	})
}

// An answer with the token of an earlier peer makes the device request the peer's token.
func TestStaleAnswer(t *testing.T) {
	for _, op := range []wire.Opcode{wire.SRDAcknowledge, wire.SRDNak, wire.SRDReadResponse} {
		w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, recvDepth: 4})
		b.postRecv(verbs.RecvWR{})
		a.post(send(a.to(b.h), b, 1))
		a.completed(1)
		from := Address{0, b.h.addr}
		c := a.t.contexts[from]
		hellos := 0
		w.tap = func(from, _ netip.AddrPort, p []byte) []byte {
			if from == a.h.addr && opcodeOf(p) == wire.SRDHello {
				hellos++
			}
			return p
		}
		p := wire.Packet{Opcode: op, PSN: c.una, SRDETH: wire.SRDETH{Source: c.peer + 1, Target: c.own, MTU: 3}}
		for range 100 {
			a.t.Receive(c, from, w.portOf(from.Peer), &p, w.Now)
			a.h.pump()
		}
		assert.Equal(t, 1, hellos, "%v: the peer is asked, and not in quick succession", op)
		w.Pass(time.Second)
		p.SRDETH.Target++
		a.t.Receive(c, from, w.portOf(from.Peer), &p, w.Now)
		a.h.pump()
		assert.Equal(t, 1, hellos, "%v: it was not for this device", op)
		assert.Equal(t, uint64(101), a.t.Counters().Stale)
	}
}

// A context never accepts a token that one before it with the same peer may have accepted.
func TestTokensOfPredecessor(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, recvDepth: 4})
	from := Address{0, b.h.addr}
	for range 50 {
		b.postRecv(verbs.RecvWR{})
		a.post(send(a.to(b.h), b, 1))
		require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
		b.recv.take()
		before := a.t.contexts[from]
		w.run(time.Hour, func() bool { return before.closed })
		after, err := a.t.open(from, a.t.token(from, epoch(w.Now)), w.Now)
		require.NoError(t, err)
		for e := uint64(1); e <= epoch(w.Now); e++ {
			token := a.t.token(from, e)
			require.False(t, before.isOwnToken(token) && after.isOwnToken(token), "epoch %d of %d", e, epoch(w.Now))
		}
		a.t.forget(after)
		w.Pass(time.Duration(w.Random.Int64N(int64(epochTime))))
	}
}

package srd

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

func at(i int) string { return fmt.Sprintf("[fd00::%x]:4791", i) }

// twoHosts makes two hosts with a queue pair each, that know each other.
func twoHosts(t tb, seed uint64, f faults, o endOptions) (*network, *end, *end) {
	w := newNetwork(t, seed, f)
	x, y := w.boot(at(1), 1, 1024), w.boot(at(2), 2, 1024)
	a, b := x.newEnd(o), y.newEnd(o)
	x.knows(y)
	y.knows(x)
	return w, a, b
}

// completed runs until an end has n send completions, and returns them.
func (e *end) completed(n int) []verbs.WC {
	e.h.net.run(5*time.Minute, func() bool { return len(e.send.list) >= n })
	return e.send.take()
}

func send(ah *fakeAH, to *end, id uint64) verbs.SendWR {
	return address(verbs.SendWR{ID: id, Op: verbs.OpSendImm, Imm: uint32(id)}, ah, to)
}

// The requests to a peer that dies fail after some time of silence. Other peers are not
// affected.
func TestPeerDies(t *testing.T) {
	w := newNetwork(t, 1, faults{})
	hub := w.boot(at(1), 1, 1024).newEnd(endOptions{depth: 4096, rnrRetry: 7})
	var peers []*end
	for i := range 8 {
		p := w.boot(at(2+i), 1, 1024).newEnd(endOptions{recvDepth: 4096})
		for range 4000 {
			p.postRecv(verbs.RecvWR{})
		}
		peers = append(peers, p)
	}
	ahs := make([]*fakeAH, len(peers))
	for i, p := range peers {
		ahs[i] = hub.to(p.h)
		hub.post(send(ahs[i], p, uint64(i)))
	}
	hub.completed(len(peers))
	begin := w.Now
	dead := peers[3]
	dead.h.t = nil
	for id := range uint64(10) {
		hub.post(send(ahs[3], dead, 1000+id))
	}
	slowest := time.Duration(0)
	failed := 0
	for round := uint64(0); failed < 10; round++ {
		for i, p := range peers {
			if p == dead {
				continue
			}
			posted := w.Now
			hub.post(send(ahs[i], p, round))
			done := false
			w.run(time.Minute, func() bool {
				for _, wc := range hub.send.take() {
					if wc.ID >= 1000 {
						failed++
						require.Equal(t, []any{verbs.StatusResponseTimeout, uint32(codeUnresponsive)}, []any{wc.Status, wc.VendorError})
						silent := w.Now - begin
						require.True(t, silent >= peerDeadTimeout && silent < peerDeadTimeout+2*maxBackoff, "after %v", silent)
						continue
					}
					require.Equal(t, verbs.StatusSuccess, wc.Status)
					done = true
				}
				return done
			})
			slowest = max(slowest, w.Now-posted)
		}
		w.Pass(10 * time.Millisecond)
	}
	assert.Less(t, slowest, time.Millisecond)
	assert.Equal(t, uint64(1), hub.t.Counters().Timeouts)
	assert.Equal(t, verbs.QPReadyToSend, hub.State())
}

// A device that has never answered is unreachable.
func TestPeerUnreachable(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4})
	ah := a.to(b.h)
	b.h.t = nil
	a.post(send(ah, b, 1), send(ah, b, 2))
	for _, wc := range a.completed(2) {
		assert.Equal(t, []any{verbs.StatusResponseTimeout, uint32(codeUnreachable)}, []any{wc.Status, wc.VendorError})
	}
	assert.GreaterOrEqual(t, w.Now, peerDeadTimeout)
}

// Requests in flight to a device that has been restarted fail, since they may have been
// executed; those that have not left go to the new one. Packets from before the restart are
// refused.
func TestPeerRestarts(t *testing.T) {
	for _, rebooted := range []string{"responder", "requester"} {
		t.Run(rebooted, func(t *testing.T) {
			w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 64, recvDepth: 64})
			ah := a.to(b.h)
			b.postRecv(make([]verbs.RecvWR, 8)...)
			var old [][]byte // packets to the responder
			w.tap = func(_, to netip.AddrPort, p []byte) []byte {
				if to == b.h.addr {
					old = append(old, bytes.Clone(p))
				}
				return p
			}
			a.post(send(ah, b, 1))
			require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
			w.tap = nil
			if rebooted == "requester" {
				addr := a.h.addr.String()
				a = w.boot(addr, 3, 1024).newEnd(endOptions{depth: 64})
				ah = a.to(b.h)
				b.h.knows(a.h)
				for _, p := range old { // they come again, before and after the new device is known
					w.fly(a.h.addr, b.h.addr, bytes.Clone(p))
				}
				w.Pass(time.Second)
				b.recv.take()
				a.post(send(ah, b, 2))
				require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
				require.Equal(t, []verbs.WC{{Opcode: verbs.WCRecv, HasImm: true, Imm: 2, QPN: b.num, SrcQPN: a.num}}, b.recv.take())
				for _, p := range old {
					w.fly(a.h.addr, b.h.addr, bytes.Clone(p))
				}
				w.Pass(time.Second)
				assert.Empty(t, b.recv.take(), "a message of the old device was received")
				assert.NotZero(t, b.t.Counters().Stale)
				assert.Equal(t, uint64(1), b.t.Counters().Restarts)
				return
			}
			addr := b.h.addr.String()
			b.h.t = nil
			a.post(send(ah, b, 2), send(ah, b, 3))
			w.Pass(time.Second)
			require.Empty(t, a.send.take())
			next := w.boot(addr, 3, 1024).newEnd(endOptions{depth: 64, recvDepth: 8})
			next.postRecv(make([]verbs.RecvWR, 8)...)
			for _, p := range old {
				w.fly(a.h.addr, next.h.addr, bytes.Clone(p))
			}
			for _, wc := range a.completed(2) {
				assert.Equal(t, []any{verbs.StatusRemoteAborted, uint32(codeAborted)}, []any{wc.Status, wc.VendorError})
			}
			a.post(send(ah, next, 4))
			require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
			require.Equal(t, []verbs.WC{{Opcode: verbs.WCRecv, HasImm: true, Imm: 4, QPN: next.num, SrcQPN: a.num}}, next.recv.take())
			assert.NotZero(t, next.t.Counters().Unverified)
		})
	}
}

// A device is restarted again and again on a lossy network while messages are in flight to it:
// each completes once, is received once if it has succeeded, and never twice.
func TestRestartsUnderFaults(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newNetwork(t, rapid.Uint64().Draw(t, "seed"), faults{Loss: 0.1, Duplicate: 0.3, Reorder: 0.5})
		a := w.boot(at(1), rapid.Uint64().Draw(t, "client"), 1024).newEnd(endOptions{depth: 16, rnrRetry: 7})
		received := make(map[uint32]int)
		var b *end
		collect := func() {
			for _, wc := range b.recv.take() {
				require.Equal(t, verbs.StatusSuccess, wc.Status)
				received[wc.Imm]++
				require.Equal(t, 1, received[wc.Imm], "message %d was received twice", wc.Imm)
				b.postRecv(verbs.RecvWR{})
			}
		}
		boot := func() {
			if b != nil {
				collect()
			}
			b = w.boot(at(2), rapid.Uint64().Draw(t, "server"), 1024).newEnd(endOptions{recvDepth: 8})
			b.postRecv(make([]verbs.RecvWR, 8)...)
			b.h.wake = collect
		}
		boot()
		ah := a.to(b.h)
		next, succeeded := uint64(0), 0
		pending := make(map[uint64]bool)
		for range rapid.IntRange(1, 8).Draw(t, "restarts") {
			for range rapid.IntRange(1, 30).Draw(t, "messages") {
				if a.taken < 16 {
					pending[next] = true
					a.post(send(ah, b, next))
					next++
				}
				w.Pass(time.Duration(rapid.IntRange(0, 3000).Draw(t, "pause")) * time.Microsecond)
				for _, wc := range a.send.take() {
					require.True(t, pending[wc.ID], "message %d completed twice", wc.ID)
					delete(pending, wc.ID)
					if wc.Status == verbs.StatusSuccess {
						collect()
						require.Equal(t, 1, received[uint32(wc.ID)], "message %d has succeeded", wc.ID)
						succeeded++
					}
				}
			}
			boot()
		}
		w.Pass(time.Minute / 2)
		for _, wc := range a.send.take() {
			require.True(t, pending[wc.ID])
			delete(pending, wc.ID)
		}
		require.Empty(t, pending)
		require.Zero(t, a.taken)
	})
}

// Idle contexts are removed at either end, and opened again when needed.
func TestIdleContexts(t *testing.T) {
	for _, pause := range []time.Duration{trustTime, idleTime - time.Second, idleTime, idleTime + time.Second, time.Hour} {
		w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 64, recvDepth: 512})
		ah, back := a.to(b.h), b.to(a.h)
		a.postRecv(make([]verbs.RecvWR, 200)...)
		b.postRecv(make([]verbs.RecvWR, 200)...)
		for i := range 4 {
			a.post(send(ah, b, 1))
			require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status, "after %v", pause)
			if i%2 == 0 {
				b.post(send(back, a, 1))
				require.Equal(t, verbs.StatusSuccess, b.completed(1)[0].Status, "after %v", pause)
			}
			w.Pass(pause + time.Duration(i)*7*time.Millisecond)
		}
		assert.Len(t, b.recv.take(), 4)
		w.Pass(2 * idleTime)
		assert.Zero(t, a.t.Counters().Contexts)
		assert.Zero(t, b.t.Counters().Contexts)
		assert.Zero(t, a.t.Deadline(), "an idle device has no timers")
	}
}

// An address handle does not keep the memory of a context that is removed.
func TestIdleContextsAreFreed(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 64, recvDepth: 512})
	ah := a.to(b.h)
	b.postRecv(make([]verbs.RecvWR, 2)...)
	a.post(send(ah, b, 1))
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	var contexts []weak.Pointer[Context]
	for _, e := range []*end{a, b} {
		require.Len(t, e.t.contexts, 1)
		for _, c := range e.t.contexts {
			contexts = append(contexts, weak.Make(c))
		}
	}
	w.Pass(2 * idleTime)
	runtime.GC()
	for _, c := range contexts {
		assert.True(t, c.Value() == nil, "the context is still in memory")
	}
	a.post(send(ah, b, 1))
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
}

// Forged source addresses cost no memory: only a sender that has received the token sent to
// its address gets a context.
func TestMadeUpPeers(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, recvDepth: 64})
	b.postRecv(make([]verbs.RecvWR, 8)...)
	replies := 0
	w.tap = func(_, _ netip.AddrPort, p []byte) []byte {
		replies++
		assert.LessOrEqual(t, len(p), 28, "no longer than the shortest question")
		return nil
	}
	packets := 100_000
	if testing.Short() {
		packets /= 5
	}
	var p wire.Packet
	for i := range packets {
		from := Address{0, netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 1, 12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}), 4791)}
		p = wire.Packet{Opcode: wire.SRDSend, PKey: 0xffff, DestQP: b.num, PSN: uint32(i)}
		p.SRDETH = wire.SRDETH{Source: 1, Target: uint32(i), MTU: 3}
		p.DETH = wire.DETH{QKey: testKey, SrcQP: 2}
		if i%2 == 0 {
			p.Opcode = wire.SRDHello
		}
		b.t.Receive(b.t.Find(&from, p.SRDETH.Target), from, w.portOf(from.Peer), &p, w.Now)
	}
	w.tap = nil
	c := b.t.Counters()
	assert.Equal(t, packets, replies)
	assert.Zero(t, c.Contexts)
	assert.Equal(t, uint64(packets/2), c.Unverified)
	assert.Empty(t, b.recv.take())
	a.post(send(a.to(b.h), b, 1))
	assert.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)

	// Nor do more than the device takes that are real.
	for i := range maxContexts/2 + 100 {
		from := Address{0, netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 2, 12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}), 4791)}
		p.Opcode = wire.SRDSend
		p.SRDETH.Target = b.t.token(from, epoch(w.Now))
		b.t.Receive(b.t.Find(&from, p.SRDETH.Target), from, w.portOf(from.Peer), &p, w.Now)
	}
	c = b.t.Counters()
	assert.Equal(t, uint64(maxContexts/2), c.Contexts, "the rest is for those that this end speaks to")
	assert.Equal(t, uint64(101), c.NoRoom)
	b.postRecv(verbs.RecvWR{})
	a.post(send(a.to(b.h), b, 1))
	assert.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status, "a peer that was there before")
}

// Packets of a sender without the tokens of both ends have no effect.
func TestForgedAnswers(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 64, rnrRetry: 7})
	ah := a.to(b.h)
	a.post(send(ah, b, 1)) // it waits for a receive
	w.Pass(10 * time.Millisecond)
	from := Address{0, b.h.addr}
	c := a.t.contexts[from]
	require.NotNil(t, c)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 20_000 {
		p := wire.Packet{Opcode: []wire.Opcode{wire.SRDAcknowledge, wire.SRDNak, wire.SRDReadResponse, wire.SRDHelloReply}[i%4], PKey: 0xffff}
		p.PSN = wire.PSNAdd(c.una, random.IntN(40)-20)
		p.SRDETH = wire.SRDETH{Source: c.peer, Target: c.own, MTU: 3}
		if i%8 < 4 && p.Opcode != wire.SRDHelloReply {
			p.SRDETH.Source++
		} else {
			p.SRDETH.Target++
		}
		p.AETH = wire.AETH{Syndrome: wire.Nak(wire.NakRemoteAccess), MSN: uint32(codeBadAddress)}
		p.Payload = bytes.Repeat([]byte{0xff}, 8*random.IntN(17))
		a.t.Receive(c, from, w.portOf(from.Peer), &p, w.Now)
	}
	assert.Empty(t, a.send.take())
	counters := a.t.Counters()
	assert.Equal(t, uint64(20_000), counters.Stale+counters.Unexpected)
	// A reply to no question only has the peer asked.
	p := wire.Packet{Opcode: wire.SRDHelloReply, PSN: 1}
	p.SRDETH = wire.SRDETH{Source: 1, Target: c.own, MTU: 3}
	a.t.Receive(c, from, w.portOf(from.Peer), &p, w.Now)
	w.Pass(time.Second)
	assert.Empty(t, a.send.take())
	b.postRecv(verbs.RecvWR{})
	assert.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	assert.Zero(t, a.t.Counters().Restarts)
}

// A peer with valid tokens sends arbitrary packets. Valid ones are answered, no request
// exceeds its limits, memory is bounded, and other peers are not affected.
func TestHostilePeer(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 64, recvDepth: 64, rnrRetry: 7})
	mem := b.h.arena(4096, everyAccess)
	pattern(mem.Mem, 1)
	before := bytes.Clone(mem.Mem)
	ah := a.to(b.h)
	b.postRecv(verbs.RecvWR{})
	a.post(send(ah, b, 1))
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	b.recv.take()
	from := Address{0, a.h.addr}
	c := b.t.contexts[from]
	sent := 0
	w.tap = func(_, _ netip.AddrPort, _ []byte) []byte { sent++; return nil }
	give := func(p wire.Packet) {
		p.PKey, p.DestQP = 0xffff, b.num
		p.SRDETH.Source, p.SRDETH.Target, p.SRDETH.MTU = c.peer, c.own, 3
		p.DETH = wire.DETH{QKey: testKey, SrcQP: a.num}
		b.t.Receive(c, from, w.portOf(from.Peer), &p, w.Now)
	}
	drain := func() {
		b.h.pump()
		w.Pass(time.Second)
	}
	write := func(psn int, va uint64, length, off uint32, n int) {
		give(wire.Packet{Opcode: wire.SRDWrite, PSN: wire.PSNAdd(c.base, psn), SRDETH: wire.SRDETH{Floor: uint16(max(psn, 0))}, RETH: wire.RETH{VA: va, RKey: mem.Key, Length: length}, Offset: off, Payload: make([]byte, n)})
	}
	for i, f := range []func(){
		func() { write(0, mem.Base, 4097, 0, 1) },          // too long as a whole, though not this part
		func() { write(0, mem.Base, 100, 90, 11) },         // beyond its message
		func() { write(0, mem.Base-1, 10, 0, 10) },         // before the region
		func() { write(0, mem.Base, 1<<32-1, 1<<32-2, 1) }, // wraps around
		func() { write(0, ^uint64(0), 10, 0, 10) },         // the same
		func() {
			give(wire.Packet{Opcode: wire.SRDReadRequest, RETH: wire.RETH{VA: mem.Base, RKey: mem.Key, Length: 4097}, Segments: wire.Segments{Size: 1024, Count: 5}})
		},
		func() {
			give(wire.Packet{Opcode: wire.SRDReadRequest, RETH: wire.RETH{VA: mem.Base, RKey: mem.Key, Length: 4096}, Segments: wire.Segments{Size: 2048, Count: 2}})
		},
	} {
		refused := b.t.Counters().Refused
		f()
		assert.Equal(t, refused+1, b.t.Counters().Refused, "case %d", i)
		drain()
		c.base = wire.PSNAdd(c.base, 1)
	}
	assert.True(t, bytes.Equal(before, mem.Mem))
	// The same number again is the same refusal, though it could be executed now.
	write(0, mem.Base, 4097, 0, 1)
	write(0, mem.Base, 1, 0, 1)
	drain()
	assert.True(t, bytes.Equal(before, mem.Mem))
	// Too far ahead, and far behind.
	write(windowBits, mem.Base, 1, 0, 1)
	write(-5000, mem.Base, 1, 0, 1)
	assert.Equal(t, uint64(1), b.t.Counters().OutOfWindow)
	assert.True(t, bytes.Equal(before, mem.Mem))

	// A peer that requests much and receives nothing is sent a bounded amount.
	drain()
	sent = 0
	for i := range 100_000 {
		give(wire.Packet{Opcode: wire.SRDReadRequest, PSN: uint32(i) & wire.PSNMask, RETH: wire.RETH{VA: mem.Base, RKey: mem.Key, Length: 4096}, Segments: wire.Segments{Size: 256, Count: 16}})
	}
	drain()
	assert.Equal(t, maxReads*16, sent)
	assert.Equal(t, uint64(100_000-maxReads), b.t.Counters().ReadsDropped)
	for range 10 * maxNaks {
		give(wire.Packet{Opcode: wire.SRDWrite, PSN: c.base, RETH: wire.RETH{Length: 1}, Payload: []byte{1}})
	}
	assert.LessOrEqual(t, c.naks.Len(), maxNaks)
	drain()

	// Others do not notice.
	w.tap = nil
	other := w.boot(at(9), 1, 1024).newEnd(endOptions{depth: 4})
	b.h.knows(other.h)
	b.postRecv(verbs.RecvWR{})
	other.post(send(other.to(b.h), b, 7))
	assert.Equal(t, verbs.StatusSuccess, other.completed(1)[0].Status)
}

// A peer without a receive delays neither other queue pairs of its device nor other devices.
func TestNotReadyHoldsUpNobody(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4096, recvDepth: 8192, rnrRetry: 7})
	second := b.h.newEnd(endOptions{recvDepth: 8192})
	ah := a.to(b.h)
	for i := range 100 {
		a.post(send(ah, b, uint64(10_000+i)))
	}
	for i := range 5000 {
		second.postRecv(verbs.RecvWR{})
		a.post(send(ah, second, uint64(i)))
		wc := a.completed(1)[0]
		require.Equal(t, []any{verbs.StatusSuccess, uint64(i)}, []any{wc.Status, wc.ID})
	}
	b.postRecv(make([]verbs.RecvWR, 100)...)
	for _, wc := range a.completed(100) {
		require.Equal(t, verbs.StatusSuccess, wc.Status)
	}
	require.Len(t, b.recv.take(), 100)
	require.Less(t, w.Now, time.Minute)
}

// A message is repeated as often as RNRRetry says.
func TestNotReadyRetries(t *testing.T) {
	for _, retries := range []uint8{0, 1, 6} {
		w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, rnrRetry: retries})
		a.post(send(a.to(b.h), b, 1))
		wc := a.completed(1)[0]
		assert.Equal(t, []any{verbs.StatusRNRRetryExceeded, uint32(codeNotReady)}, []any{wc.Status, wc.VendorError})
		assert.Equal(t, uint64(retries)+1, b.t.Counters().NotReady)
		least := wire.RNRTimer(notReadyTimer) * (1<<retries - 1)
		assert.GreaterOrEqual(t, w.Now, least)
	}
}

// Messages that are posted in SQD leave afterwards; those posted before do not wait.
func TestDrained(t *testing.T) {
	_, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 8, recvDepth: 8})
	b.postRecv(make([]verbs.RecvWR, 4)...)
	ah := a.to(b.h)
	a.post(send(ah, b, 1))
	now := a.h.net.Now
	require.NoError(t, a.Modify(verbs.QPAttr{State: verbs.QPSendQueueDrained}, verbs.QPAttrState, now))
	a.post(send(ah, b, 2))
	assert.Equal(t, uint64(1), a.completed(1)[0].ID)
	a.h.net.Pass(time.Second)
	assert.Empty(t, a.send.take())
	require.NoError(t, a.Modify(verbs.QPAttr{State: verbs.QPReadyToSend}, verbs.QPAttrState, a.h.net.Now))
	a.h.pump()
	assert.Equal(t, uint64(2), a.completed(1)[0].ID)
	// Error flushes both queues.
	b.post(send(b.to(a.h), a, 3))
	require.NoError(t, b.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState, a.h.net.Now))
	assert.Equal(t, []verbs.WC{{ID: 3, Status: verbs.StatusFlushed, Opcode: verbs.WCSend, VendorError: 1, QPN: b.num}}, b.send.take())
	assert.Len(t, b.recv.take(), 4)
	a.post(send(ah, b, 4))
	assert.Equal(t, verbs.StatusRemoteInvalidRDRequest, a.completed(1)[0].Status, "a queue pair in error is none to its peers")
}

// Memory that is closed while it is in use ends the request, at either end.
func TestMemoryCloses(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		for _, where := range []string{"local", "remote"} {
			w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 8})
			local, remote := a.h.arena(1<<20, everyAccess), b.h.arena(1<<20, everyAccess)
			a.post(address(verbs.SendWR{Op: op, SGL: []verbs.SGE{local.sge(0, 1<<20)}, RemoteAddr: remote.Base, RKey: remote.Key}, a.to(b.h), b))
			w.Pass(50 * time.Microsecond)
			want := verbs.StatusLocalProtectionError
			if where == "local" {
				a.h.memory.Remove(local.Region)
			} else {
				b.h.memory.Remove(remote.Region)
				want = verbs.StatusRemoteAccessError
			}
			assert.Equal(t, want, a.completed(1)[0].Status, "%v, %s", op, where)
			w.Pass(time.Second)
			assert.Empty(t, a.send.take())
			assert.Zero(t, a.taken)
		}
	}
}

package srd

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// A peer that sends requests but never answers fails like a silent one, whether its token or
// its acknowledgements are missing.
func TestPeerNeverAnswers(t *testing.T) {
	for _, withheld := range []wire.Opcode{wire.SRDHelloReply, wire.SRDAcknowledge} {
		for _, stale := range []bool{false, true} {
			w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 512, recvDepth: 4})
			b.postRecv(make([]verbs.RecvWR, 2)...)
			ah, back := a.to(b.h), b.to(a.h)
			mem := a.h.arena(8, everyAccess)
			w.tap = func(from, _ netip.AddrPort, p []byte) []byte {
				if from == b.h.addr && opcodeOf(p) == withheld {
					return nil
				}
				return p
			}
			begin := w.Now
			a.post(send(ah, b, 1), send(ah, b, 2))
			w.Pass(time.Millisecond)
			ended := false
			var chatter func()
			chatter = func() {
				if ended {
					return
				}
				b.post(address(verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: mem.Base, RKey: mem.Key}, back, a))
				if c := a.t.contexts[Address{0, b.h.addr}]; stale && c.peer != 0 {
					p := wire.Packet{Opcode: wire.SRDSend, DestQP: a.num, SRDETH: wire.SRDETH{Source: c.peer + 1, Target: c.own, MTU: 3}}
					a.t.Receive(c, c.addr, w.portOf(c.addr.Peer), &p, w.Now)
					a.h.pump()
				}
				w.After(3*time.Millisecond, chatter)
			}
			b.h.wake = func() { b.send.take() }
			chatter()
			for _, wc := range a.completed(2) {
				assert.Equal(t, []any{verbs.StatusResponseTimeout, uint32(codeUnresponsive)}, []any{wc.Status, wc.VendorError}, "without %v", withheld)
			}
			assert.GreaterOrEqual(t, w.Now-begin, peerDeadTimeout)
			assert.Less(t, w.Now-begin, peerDeadTimeout+4*maxBackoff, "without %v, stale %v", withheld, stale)
			ended = true
			w.tap = nil
			b.postRecv(verbs.RecvWR{})
			a.post(send(ah, b, 3))
			assert.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
		}
	}
}

// The data of a read is not sent from a queue pair that has been closed or has failed.
func TestReadsEndWithQueuePair(t *testing.T) {
	for _, end := range []func(q *QP, now time.Duration){
		func(q *QP, _ time.Duration) { q.Close() },
		func(q *QP, now time.Duration) {
			require.NoError(t, q.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState, now))
		},
	} {
		w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 8})
		local, remote := a.h.arena(1<<20, everyAccess), b.h.arena(1<<20, everyAccess)
		a.post(address(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{local.sge(0, 1<<20)}, RemoteAddr: remote.Base, RKey: remote.Key}, a.to(b.h), b))
		w.run(time.Second, func() bool {
			c := b.t.contexts[Address{0, a.h.addr}]
			return c != nil && c.reads.Len() >= 2
		})
		end(b.QP, w.Now)
		responses := 0
		w.tap = func(from, _ netip.AddrPort, p []byte) []byte {
			if from == b.h.addr && opcodeOf(p) == wire.SRDReadResponse {
				responses++
			}
			return p
		}
		wc := a.completed(1)[0]
		assert.Equal(t, []any{verbs.StatusRemoteInvalidRDRequest, uint32(codeBadQPN)}, []any{wc.Status, wc.VendorError})
		w.Pass(time.Second)
		assert.Zero(t, responses)
		assert.Zero(t, b.t.contexts[Address{0, a.h.addr}].reads.Len())
		assert.NotZero(t, b.t.Counters().Refused)
	}
}

// A peer cannot move the window arbitrarily far. One that really is that far ahead starts
// again after the tokens have changed, though this end sends to it all the time.
func TestBaseJump(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 64, recvDepth: 512, rnrRetry: 7})
	ah, back := a.to(b.h), b.to(a.h)
	b.postRecv(make([]verbs.RecvWR, 64)...)
	a.post(send(ah, b, 1))
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	from := Address{0, a.h.addr}
	c := b.t.contexts[from]
	base := c.base
	give := func(ahead int) {
		p := wire.Packet{Opcode: wire.SRDSend, DestQP: b.num, PSN: wire.PSNAdd(c.base, ahead), DETH: wire.DETH{QKey: testKey, SrcQP: a.num}}
		p.SRDETH = wire.SRDETH{Source: c.peer, Target: c.own, MTU: 3}
		b.t.Receive(c, from, w.portOf(from.Peer), &p, w.Now)
	}
	for _, ahead := range []int{maxBaseJump + 1, 1 << 22, 1<<23 - 1} {
		before := b.t.Counters().OutOfWindow
		give(ahead)
		assert.Equal(t, base, c.base)
		assert.Equal(t, before+1, b.t.Counters().OutOfWindow)
	}
	require.Len(t, b.recv.take(), 1)
	give(maxBaseJump)
	assert.Equal(t, wire.PSNAdd(base, maxBaseJump+1), c.base)
	require.Len(t, b.recv.take(), 1)

	// The requester has given up so many.
	there := a.t.contexts[Address{0, b.h.addr}]
	far := wire.PSNAdd(there.una, 3<<20)
	require.Equal(t, there.una, there.next)
	there.una, there.next, there.recoverAt = far, far, far
	a.post(send(ah, b, 2))
	assert.Equal(t, verbs.StatusResponseTimeout, a.completed(1)[0].Status)
	for range 2 * idleTime / time.Second {
		a.postRecv(verbs.RecvWR{})
		b.post(send(back, a, 3))
		w.Pass(time.Second)
		b.send.take()
		a.recv.take()
	}
	a.post(send(ah, b, 4))
	a.completed(1)
	a.post(send(ah, b, 5))
	assert.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	b.post(send(back, a, 6))
	a.postRecv(verbs.RecvWR{})
	assert.Equal(t, verbs.StatusSuccess, b.completed(1)[0].Status)
}

// A sender that does not know a queue pair and its Q_Key gets a NAK and no context, for any
// number of source addresses.
func TestUnknownPeersWithoutAQueuePair(t *testing.T) {
	w := newNetwork(t, 1, faults{})
	b := w.boot(at(1), 1, 1024).newEnd(endOptions{recvDepth: 8})
	b.postRecv(verbs.RecvWR{})
	wrong := func(wr verbs.SendWR, i int) verbs.SendWR {
		if i%2 == 0 {
			wr.RemoteQKey++
		} else {
			wr.RemoteQPN++
		}
		return wr
	}
	for i := range 100 {
		a := w.boot(at(2+i), 1, 1024).newEnd(endOptions{depth: 4})
		read := address(verbs.SendWR{Op: verbs.OpRead, RemoteAddr: 1, RKey: 1}, a.to(b.h), b)
		a.post(wrong(send(a.to(b.h), b, 1), i), wrong(read, i))
		for _, wc := range a.completed(2) {
			assert.Equal(t, []any{verbs.StatusRemoteInvalidRDRequest, uint32(codeBadQPN)}, []any{wc.Status, wc.VendorError})
		}
		if i == 99 {
			c := b.t.Counters()
			assert.Zero(t, c.Contexts)
			assert.Equal(t, uint64(200), c.UnknownQP)
			assert.Equal(t, uint64(200), c.Refused)
			assert.Equal(t, uint64(100), c.QKey)
			a.post(send(a.to(b.h), b, 3))
			assert.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
			assert.Equal(t, uint64(1), b.t.Counters().Contexts)
		}
	}
}

// The requests of a peer that guesses keys are dropped, unless they have keys that it was
// granted, until it may try again.
func TestKeysAreHeldUp(t *testing.T) {
	w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, recvDepth: 4})
	local, mem := a.h.arena(64, everyAccess), b.h.arena(64, everyAccess)
	admits, refused := true, 0
	b.t.cfg.Admits = func(from Address) bool {
		require.Equal(t, a.h.addr, from.Peer)
		return admits
	}
	b.t.cfg.Refused = func(Address) { refused++ }
	ah := a.to(b.h)
	request := func(op verbs.Opcode, key uint32) verbs.SendWR {
		return address(verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{local.sge(0, 8)}, RemoteAddr: mem.Base, RKey: key}, ah, b)
	}
	for i, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		a.post(request(op, mem.Key+77))
		require.Equal(t, verbs.StatusRemoteAccessError, a.completed(1)[0].Status)
		require.Equal(t, i+1, refused)
	}
	other := b.h.arena(64, everyAccess)
	first := request(verbs.OpWrite, other.Key)
	first.RemoteAddr = other.Base
	a.post(first)
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	admits = false
	again := request(verbs.OpWrite, other.Key)
	again.RemoteAddr = other.Base
	a.post(again)
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status, "of a key that was granted before")
	require.Zero(t, b.t.Counters().AccessesLimited)
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		for _, key := range []uint32{mem.Key, mem.Key + 77} {
			before, limited := refused, b.t.Counters().AccessesLimited
			admits = false
			a.post(request(op, key))
			w.Pass(100 * time.Millisecond)
			require.Empty(t, a.send.list)
			require.Greater(t, b.t.Counters().AccessesLimited, limited)
			require.Equal(t, before, refused)
			admits = true
			want := verbs.StatusSuccess
			if key != mem.Key {
				want, before = verbs.StatusRemoteAccessError, before+1
			}
			require.Equal(t, want, a.completed(1)[0].Status)
			require.Equal(t, before, refused)
			b.t.contexts[Address{0, a.h.addr}].granted = transport.GrantedKeys{}
		}
	}
}

// A write longer than the maximum is refused, however large the memory is.
func TestLongestWrite(t *testing.T) {
	_, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 4, recvDepth: 4})
	b.postRecv(verbs.RecvWR{})
	a.post(send(a.to(b.h), b, 1))
	require.Equal(t, verbs.StatusSuccess, a.completed(1)[0].Status)
	c := b.t.contexts[Address{0, a.h.addr}]
	memory := &transport.Region{Key: 0x99, Base: 1 << 40, Mem: make([]byte, MaxRDMA+1), Domain: b.domain, Access: everyAccess}
	require.True(t, b.h.memory.Add(memory))
	p := wire.Packet{Opcode: wire.SRDWrite, DestQP: b.num, DETH: wire.DETH{QKey: b.attr.QKey, SrcQP: a.num}, Payload: []byte("data")}
	for total, want := range map[uint32]code{MaxRDMA: codeOK, MaxRDMA + 1: codeBadLength} {
		p.RETH = wire.RETH{VA: memory.Base, RKey: memory.Key, Length: total}
		require.Equal(t, want, c.execute(&p), "%d bytes", total)
	}
}

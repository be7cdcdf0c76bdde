package transport

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

func ackOf(psn uint32) wire.Packet {
	return wire.Packet{Opcode: wire.RCAcknowledge, PSN: psn, AETH: wire.AETH{Syndrome: wire.Ack(wire.AckUnlimited)}}
}

func nakOf(psn uint32, code wire.NakCode) wire.Packet {
	return wire.Packet{Opcode: wire.RCAcknowledge, PSN: psn, AETH: wire.AETH{Syndrome: wire.Nak(code)}}
}

func TestOpcodesAndNumbersOfRequests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		op   verbs.Opcode
		n    int
		want []wire.Opcode
	}{
		{verbs.OpSend, 0, []wire.Opcode{wire.RCSendOnly}},
		{verbs.OpSend, 1, []wire.Opcode{wire.RCSendOnly}},
		{verbs.OpSend, 256, []wire.Opcode{wire.RCSendOnly}},
		{verbs.OpSend, 257, []wire.Opcode{wire.RCSendFirst, wire.RCSendLast}},
		{verbs.OpSendImm, 0, []wire.Opcode{wire.RCSendOnlyImm}},
		{verbs.OpSendImm, 512, []wire.Opcode{wire.RCSendFirst, wire.RCSendLastImm}},
		{verbs.OpSendImm, 513, []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastImm}},
		{verbs.OpWrite, 0, []wire.Opcode{wire.RCWriteOnly}},
		{verbs.OpWrite, 600, []wire.Opcode{wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast}},
		{verbs.OpWriteImm, 1, []wire.Opcode{wire.RCWriteOnlyImm}},
		{verbs.OpWriteImm, 600, []wire.Opcode{wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLastImm}},
		{verbs.OpRead, 600, []wire.Opcode{wire.RCReadRequest}},
		{verbs.OpCompareSwap, 8, []wire.Opcode{wire.RCCompareSwap}},
		{verbs.OpFetchAdd, 8, []wire.Opcode{wire.RCFetchAdd}},
		{verbs.OpAtomicWrite, 8, []wire.Opcode{wire.RCAtomicWrite}},
	} {
		t.Run(fmt.Sprintf("%v of %d", c.op, c.n), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{psn: 0xffffff})
			r.server.postRecv(verbs.RecvWR{SGL: []verbs.SGE{r.remote.sge(0, 1000)}})
			wr := r.wr(1, c.op, c.n)
			wr.Flags |= verbs.FlagSolicited
			r.client.post(wr)
			sent := r.client.transmit(r.now)
			require.Equal(t, c.want, opcodes(sent))
			total := 0
			for i, p := range sent {
				last := i == len(sent)-1
				require.Equal(t, wire.PSNAdd(0xffffff, i), p.PSN)
				require.Equal(t, uint16(0xffff), p.PKey)
				require.Equal(t, uint32(serverQPN), p.DestQP)
				require.Equal(t, last, p.AckReq)
				require.Equal(t, last && c.op <= verbs.OpWriteImm && c.op != verbs.OpWrite, p.Solicited, "only what consumes a receive")
				if p.Opcode.HasRETH() {
					require.Equal(t, wire.RETH{VA: remoteBase, RKey: remoteKey, Length: uint32(c.n)}, p.RETH)
				}
				if p.Opcode.HasImm() {
					require.Equal(t, wr.Imm, p.Imm)
				}
				total += len(p.Payload)
			}
			r.server.take(r.now, sent...)
			r.client.take(r.now, r.server.transmit(r.now)...)
			r.requireSent(1, verbs.StatusSuccess)
		})
	}
}

func TestOpcodesOfReadResponses(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][]wire.Opcode{
		0:   {wire.RCReadResponseOnly},
		1:   {wire.RCReadResponseOnly},
		256: {wire.RCReadResponseOnly},
		257: {wire.RCReadResponseFirst, wire.RCReadResponseLast},
		768: {wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast},
	} {
		r := newRig(t, options{psn: 0xfffffe})
		r.client.post(r.wr(1, verbs.OpRead, n))
		r.server.take(r.now, r.client.transmit(r.now)...)
		responses := r.server.transmit(r.now)
		require.Equal(t, want, opcodes(responses))
		for i, p := range responses {
			require.Equal(t, wire.PSNAdd(0xfffffe, i), p.PSN)
		}
		r.client.take(r.now, responses...)
		r.requireSent(1, verbs.StatusSuccess)
		require.Equal(t, r.remote.Mem[:n], r.local.Mem[:n])
	}
}

// Acknowledgements of packets that were never sent, or were acknowledged long ago, are
// ignored.
func TestStaleAcknowledgements(t *testing.T) {
	t.Parallel()
	const psn = 0xfffffe
	stale := func(at uint32) []wire.Packet {
		atomic := ackOf(at)
		atomic.Opcode = wire.RCAtomicAcknowledge
		read := ackOf(at)
		read.Opcode, read.Payload = wire.RCReadResponseOnly, make([]byte, 8)
		return []wire.Packet{ackOf(at), nakOf(at, wire.NakSequence), nakOf(at, wire.NakRemoteAccess),
			nakOf(at, wire.NakInvalidRequest), nakOf(at, wire.NakRemoteOperation), rnrNak(at, 31), atomic, read}
	}
	r := newRig(t, options{psn: psn})
	r.client.take(r.now, stale(psn)...) // nothing was sent at all
	r.client.take(r.now, stale(psn-1)...)
	r.client.post(r.wr(1, verbs.OpWrite, 1000), r.wr(2, verbs.OpWrite, 8))
	r.client.take(r.now, stale(psn)...) // posted, not sent
	sent := r.client.transmit(r.now)
	require.Len(t, sent, 5)
	for _, off := range []int{-1, -100, -1 << 22, -1 << 23, 5, 6, 100, 1 << 22, 1<<23 - 1} {
		r.client.take(r.now, stale(wire.PSNAdd(psn, off))...)
	}
	require.Empty(t, r.client.send.take())
	require.Equal(t, verbs.QPReadyToSend, r.client.qp.State())
	require.Empty(t, r.client.transmit(r.now))

	r.server.take(r.now, sent...)
	acks := r.server.transmit(r.now)
	r.client.take(r.now, acks...)
	require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))
	r.client.take(r.now, acks...) // stale
	require.Empty(t, r.client.send.take())
	require.Zero(t, r.client.qp.Deadline())

	// Stale ones do not complete, or fail, what is posted now.
	r.client.post(r.wr(3, verbs.OpWrite, 8))
	require.Len(t, r.client.transmit(r.now), 1)
	r.client.take(r.now, acks...)
	for i := range 5 {
		r.client.take(r.now, stale(wire.PSNAdd(psn, i))...)
	}
	require.Empty(t, r.client.send.take())
	require.Equal(t, verbs.QPReadyToSend, r.client.qp.State())
}

func TestReservedSyndromesAreIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	require.Len(t, r.client.transmit(r.now), 1)
	for s := range 256 {
		switch k := wire.Syndrome(s).Kind(); {
		case k == wire.KindReserved, k == wire.KindNak && wire.Syndrome(s).Code() > wire.NakRemoteOperation:
			r.client.take(r.now, wire.Packet{Opcode: wire.RCAcknowledge, PSN: 0, AETH: wire.AETH{Syndrome: wire.Syndrome(s)}})
		}
	}
	require.Empty(t, r.client.send.take())
	r.client.take(r.now, ackOf(0))
	r.requireSent(1, verbs.StatusSuccess)
}

// One acknowledgement completes all earlier requests in order; unsignaled requests give no
// completion.
func TestAcknowledgementsAccumulate(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{psn: 0xfffffd})
	for i := range 10 {
		wr := r.wr(uint64(i), verbs.OpWrite, 8)
		if i%3 == 1 {
			wr.Flags = 0
		}
		r.client.post(wr)
	}
	sent := r.client.transmit(r.now)
	r.client.take(r.now, ackOf(sent[6].PSN))
	require.Equal(t, []uint64{0, 2, 3, 5, 6}, ids(r.client.send.take()))
	r.client.take(r.now, ackOf(sent[9].PSN))
	require.Equal(t, []uint64{8, 9}, ids(r.client.send.take()))

	r.server.take(r.now, sent...)
	require.Len(t, r.server.transmit(r.now), 1, "acknowledgements that wait become one")
}

func TestSignalAll(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{signalAll: true})
	wr := r.wr(1, verbs.OpWrite, 8)
	wr.Flags = 0
	r.client.post(wr)
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
}

// The responder answers the packets after a lost one with a single NAK, and the requester
// sends again from the lost one on.
func TestOneNakForOneGap(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{psn: 0xfffffe})
	r.client.post(r.wr(1, verbs.OpWrite, 256*8))
	sent := r.client.transmit(r.now)
	require.Len(t, sent, 8)
	r.server.take(r.now, sent[:2]...)
	r.server.take(r.now, sent[4], sent[3], sent[5], sent[7], sent[6])
	responses := r.server.transmit(r.now)
	require.Len(t, responses, 1)
	require.Equal(t, wire.Nak(wire.NakSequence), responses[0].AETH.Syndrome)
	require.Equal(t, sent[2].PSN, responses[0].PSN)
	r.client.take(r.now, responses...)
	again := r.client.transmit(r.now)
	require.Equal(t, psns(sent[2:]), psns(again))
	r.server.take(r.now, again...)
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(1, verbs.StatusSuccess)
	require.Equal(t, r.local.Mem[:2048], r.remote.Mem[:2048])
}

func TestEveryGapHasItsNak(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.post(r.wr(1, verbs.OpWrite, 256*8))
	sent := r.client.transmit(r.now)
	for gap := 1; gap < 7; gap += 2 {
		r.server.take(r.now, sent[gap-1], sent[gap+1])
		responses := r.server.transmit(r.now)
		require.Len(t, responses, 1)
		require.Equal(t, wire.Nak(wire.NakSequence), responses[0].AETH.Syndrome)
		require.Equal(t, sent[gap].PSN, responses[0].PSN)
		r.server.take(r.now, sent[gap])
	}
}

// An acknowledgement does not replace a NAK that waits to be sent.
func TestNakAndAcknowledgement(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{psn: 7})
	r.client.post(r.wr(1, verbs.OpWrite, 8), r.wr(2, verbs.OpWrite, 8), r.wr(3, verbs.OpWrite, 8))
	sent := r.client.transmit(r.now)
	r.server.take(r.now, sent[0], sent[2], sent[0])
	responses := r.server.transmit(r.now)
	require.Equal(t, []uint32{7, 8, 7}, psns(responses))
	require.Equal(t, wire.Nak(wire.NakSequence), responses[1].AETH.Syndrome)
	require.Equal(t, wire.KindAck, responses[2].AETH.Syndrome.Kind())
}

// If later responses arrive, a missing response is requested again at once, from the first
// missing packet on (IBTA 9.7.5.1.2, implied NAK).
func TestLostResponses(t *testing.T) {
	t.Parallel()
	write := func(r *rig) verbs.SendWR {
		wr := r.wr(2, verbs.OpWrite, 8)
		wr.RemoteAddr += 8192
		return wr
	}
	for _, c := range []struct {
		name string
		lose int // of the responses to a read of 4 packets; then an acknowledgement
		n    uint32
	}{{"first", 0, 1000}, {"middle", 2, 1000 - 512}, {"last", 3, 1000 - 768}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{psn: 0xfffffe})
			r.client.post(r.wr(1, verbs.OpRead, 1000), write(r))
			r.server.take(r.now, r.client.transmit(r.now)...)
			responses := r.server.transmit(r.now)
			require.Len(t, responses, 5)
			r.client.take(r.now, responses[:c.lose]...)
			r.client.take(r.now, responses[c.lose+1:]...)
			require.Empty(t, r.client.send.take(), "an acknowledgement does not stand for a response")
			again := r.client.transmit(r.now)
			require.Equal(t, []wire.Opcode{wire.RCReadRequest, wire.RCWriteOnly}, opcodes(again))
			require.Equal(t, wire.RETH{VA: remoteBase + uint64(c.lose)*256, RKey: remoteKey, Length: c.n}, again[0].RETH)
			require.Equal(t, wire.PSNAdd(0xfffffe, c.lose), again[0].PSN)
			r.server.take(r.now, again...)
			r.exchange()
			require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))
			require.Equal(t, r.remote.Mem[:1000], r.local.Mem[:1000])
		})
	}
	t.Run("atomic", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		add := r.wr(1, verbs.OpFetchAdd, 8)
		add.CompareAdd = 5
		*word(r.remote.Mem) = 100
		r.client.post(add, write(r))
		r.server.take(r.now, r.client.transmit(r.now)...)
		responses := r.server.transmit(r.now)
		require.Len(t, responses, 2)
		r.client.take(r.now, responses[1])
		require.Empty(t, r.client.send.take())
		r.exchange()
		require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))
		require.Equal(t, uint64(105), *word(r.remote.Mem), "executed once")
		require.Equal(t, uint64(100), *word(r.local.Mem))
	})
	t.Run("a gap is reported once a round", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpRead, 1000))
		r.server.take(r.now, r.client.transmit(r.now)...)
		responses := r.server.transmit(r.now)
		r.client.take(r.now, responses[1])
		require.Len(t, r.client.transmit(r.now), 1)
		r.client.take(r.now, responses[2], responses[3])
		require.Empty(t, r.client.transmit(r.now))
	})
}

// postBeyondWindow posts a request for a packet more than the window, on a path that has been
// steady to that level, and returns its length.
func postBeyondWindow(t *testing.T, op verbs.Opcode, mtu verbs.MTU, window int, level uint) (r *rig, length int) {
	length = (window + 1) * int(mtu)
	r = newRig(t, options{mtu: mtu, initReads: 16, arena: length})
	r.client.qp.congestionWindow, r.client.qp.steady.level = window, level
	r.client.post(r.wr(1, op, length))
	return r, length
}

// A long message requests acknowledgements often enough that one arrives before the window is
// full, and less often on a steady path.
func TestHowOftenAcknowledgementsAreAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mtu    verbs.MTU
		window int // packets
		level  uint
		want   []uint32
	}{
		{4096, 100, 0, []uint32{31, 63, 95, 99}},
		{4096, 256, maxLevel, []uint32{63, 127, 191, 255}},
		{1024, 256, 1, []uint32{63, 127, 191, 255}},
		{1024, 1024, maxLevel, []uint32{255, 511, 767, 1023}},
		{1024, 104, maxLevel, []uint32{51, 103}},
		{4096, 26, maxLevel, []uint32{12, 25}},
	} {
		r, _ := postBeyondWindow(t, verbs.OpWrite, c.mtu, c.window, c.level)
		var got []uint32
		for _, p := range r.client.transmit(r.now) {
			if p.AckReq {
				got = append(got, p.PSN)
			}
		}
		require.Equal(t, c.want, got, "%+v", c)
	}
}

// On a steady path a read requests longer pieces, but no more than the window.
func TestHowMuchAReadAsksFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mtu    verbs.MTU
		window int // packets
		level  uint
		want   []uint32
	}{
		{1024, 256, 0, []uint32{0, 64, 128, 192}},
		{4096, 64, 0, []uint32{0, 32}},
		{256, 2048, maxLevel, []uint32{0, 512, 1024, 1536}},
		{1024, 1024, maxLevel, []uint32{0, 512}},
		{1024, 1024, 1, []uint32{0, 128, 256, 384, 512, 640, 768, 896}},
		{4096, 256, maxLevel, []uint32{0, 128}},
		{1024, 300, maxLevel, []uint32{0, 150}},
		{1024, 104, maxLevel, []uint32{0, 64}},
		{1024, 4, maxLevel, []uint32{0}},
	} {
		r, length := postBeyondWindow(t, verbs.OpRead, c.mtu, c.window, c.level)
		sent := r.client.transmit(r.now)
		require.Equal(t, c.want, psns(sent), "%+v", c)
		for len(sent) > 0 {
			r.server.take(r.now, sent...)
			r.client.take(r.now, r.server.transmit(r.now)...)
			sent = r.client.transmit(r.now)
		}
		r.requireSent(1, verbs.StatusSuccess)
		require.Equal(t, r.remote.Mem[:length], r.local.Mem[:length])
	}
}

// After a loss in a long piece the rest of it is requested again once, and the next pieces are
// short.
func TestLossInALongPiece(t *testing.T) {
	t.Parallel()
	const length = 2048 * 256
	r := newRig(t, options{initReads: 16, arena: length, adaptive: true})
	r.client.qp.congestionWindow, r.client.qp.steady.level = 512, maxLevel
	r.client.post(r.wr(1, verbs.OpRead, length))
	sent := r.client.transmit(r.now)
	require.Equal(t, []uint32{0, 256}, psns(sent))
	r.server.take(r.now, sent...)
	back := r.server.transmit(r.now)
	require.Len(t, back, 512)
	r.client.take(r.now, append(back[:100:100], back[101:]...)...)
	sent = r.client.transmit(r.now)
	require.Equal(t, []uint32{100}, psns(sent), "the window has shrunk")
	require.Equal(t, uint32(156*256), sent[0].RETH.Length, "all that was asked for")
	for len(sent) > 0 {
		r.server.take(r.now, sent...)
		r.client.take(r.now, r.server.transmit(r.now)...)
		sent = r.client.transmit(r.now)
		for _, p := range sent {
			require.True(t, p.PSN < 512 || p.RETH.Length <= maxFirstRead*256, "asked for the first time")
		}
	}
	r.requireSent(1, verbs.StatusSuccess)
	require.Equal(t, r.remote.Mem[:length], r.local.Mem[:length])
}

// Only one probe requests a long piece from a stopped peer.
func TestALongReadIsProbedOnce(t *testing.T) {
	t.Parallel()
	for level, want := range map[uint]int{0: 4, maxLevel: 1} {
		r := newRig(t, options{adaptive: true, arena: 512 * 256})
		r.roundTripOf(100 * time.Microsecond)
		r.client.qp.congestionWindow, r.client.qp.steady.level = 512, level
		r.client.post(r.wr(2, verbs.OpRead, 512*256))
		r.client.transmit(r.now)
		start, probes := r.now, 0
		for r.now-start < minTimeout/2 {
			r.expire()
			probes += len(r.client.transmit(r.now))
		}
		require.Equal(t, want, probes, "level %d", level)
		require.Equal(t, probes, r.client.qp.repeated)
	}
}

// The same behind a write: the write is probed meanwhile.
func TestALongReadBehindAWriteIsProbedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, arena: 512 * 256})
	r.roundTripOf(100 * time.Microsecond)
	r.client.qp.congestionWindow, r.client.qp.steady.level = 512, maxLevel
	r.client.post(r.wr(2, verbs.OpWrite, 8), r.wr(3, verbs.OpRead, 256*256))
	r.client.transmit(r.now)
	probes := map[wire.Opcode]int{}
	for start := r.now; r.now-start < minTimeout; {
		r.expire()
		for _, p := range r.client.transmit(r.now) {
			probes[p.Opcode]++
		}
	}
	require.Equal(t, 1, probes[wire.RCReadRequest])
	require.Greater(t, probes[wire.RCWriteOnly], 1)
}

// The oldest packet is retransmitted soon, however much is requested behind it.
func TestProbeOfAWriteBeforeALongRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{adaptive: true, arena: 512 * 256})
	r.roundTripOf(100 * time.Microsecond)
	r.client.post(r.wr(2, verbs.OpWrite, 8), r.wr(3, verbs.OpRead, maxFirstRead*256))
	start := r.now
	r.client.transmit(r.now) // lost, as are all probes but that of the write
	for len(r.client.send.list) == 0 {
		r.expire()
		for _, p := range r.client.transmit(r.now) {
			if p.Opcode == wire.RCWriteOnly {
				r.server.take(r.now, p)
				r.client.take(r.now, r.server.transmit(r.now)...)
			}
		}
	}
	require.Less(t, r.now-start, minTimeout)
}

func TestSteadiness(t *testing.T) {
	t.Parallel()
	var s steadiness
	s.arrived(steadyPackets - 1)
	require.Zero(t, s.level)
	s.arrived(1)
	require.EqualValues(t, 1, s.level)
	s.arrived(steadyPackets - 1)
	s.late()
	require.Zero(t, s.level)
	s.arrived(1)
	require.Zero(t, s.level, "counted anew")
	s.late()
	require.Zero(t, s.level)
	for range 2 * maxLevel {
		s.arrived(steadyPackets)
	}
	require.EqualValues(t, maxLevel, s.level)
	s.late()
	require.EqualValues(t, maxLevel-1, s.level)
	s.lost()
	require.Zero(t, s)
}

// A long read is asked for in pieces, never more at a time than the peer
// responses. After a loss they are smaller.
func TestLongReadsGoInPieces(t *testing.T) {
	t.Parallel()
	const length, piece = 200*256 + 1, maxFirstRead
	r := newRig(t, options{initReads: 2, psn: 0xffffff})
	r.client.post(r.wr(1, verbs.OpRead, length))
	sent := r.client.transmit(r.now)
	require.Equal(t, []uint32{0xffffff}, psns(sent), "the window is as large")
	r.server.take(r.now, sent...)
	back := r.server.transmit(r.now)
	require.Len(t, back, piece)
	const few = shortRead / 2 // each makes the window larger by one
	r.client.take(r.now, back[:few]...)
	require.Empty(t, r.client.transmit(r.now), "it would exceed the window by shortRead")
	r.client.take(r.now, back[few])
	sent = r.client.transmit(r.now)
	require.Equal(t, []uint32{piece - 1}, psns(sent))
	r.server.take(r.now, sent...)
	r.client.take(r.now, back[few+2:]...) // one is lost
	require.Less(t, r.client.qp.congestionWindow, piece)
	sent = r.client.transmit(r.now)
	require.Equal(t, []uint32{few}, psns(sent))
	require.Equal(t, uint32(piece-few-1)*256, sent[0].RETH.Length, "all that was asked for")
	r.server.take(r.now, sent...)
	r.client.take(r.now, r.server.transmit(r.now)...)
	sent = r.client.transmit(r.now)
	require.NotEmpty(t, sent)
	r.server.take(r.now, sent...)
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
	require.Equal(t, r.remote.Mem[:length], r.local.Mem[:length])
}

func TestReadsOutstandingAreLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{initReads: 3})
	for i := range 7 {
		op := [...]verbs.Opcode{verbs.OpRead, verbs.OpFetchAdd, verbs.OpAtomicWrite}[i%3]
		r.client.post(r.wr(uint64(i), op, 8))
	}
	require.Len(t, r.client.transmit(r.now), 3)
	require.Empty(t, r.client.transmit(r.now))
	r.expire()
	again := r.client.transmit(r.now)
	require.Len(t, again, 3, "repetitions count too")
	r.server.take(r.now, again[0])
	r.client.take(r.now, r.server.transmit(r.now)...)
	require.Len(t, r.client.transmit(r.now), 1)
}

func TestFence(t *testing.T) {
	t.Parallel()
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpFetchAdd, verbs.OpAtomicWrite} {
		r := newRig(t, options{})
		fenced := r.wr(3, verbs.OpWrite, 8)
		fenced.Flags |= verbs.FlagFence
		r.client.post(r.wr(1, op, 8), r.wr(2, verbs.OpWrite, 8), fenced, r.wr(4, verbs.OpWrite, 8))
		sent := r.client.transmit(r.now)
		require.Len(t, sent, 2, "the fenced request and what follows wait")
		r.server.take(r.now, sent...)
		responses := r.server.transmit(r.now)
		require.Len(t, responses, 2)
		r.client.take(r.now, responses[0])
		require.Len(t, r.client.transmit(r.now), 2)
	}
}

func TestBadResponses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 255, 257, 512} {
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpRead, 256), r.wr(2, verbs.OpWrite, 8))
		require.Len(t, r.client.transmit(r.now), 2)
		r.client.take(r.now, wire.Packet{Opcode: wire.RCReadResponseOnly, PSN: 0, AETH: wire.AETH{Syndrome: wire.Ack(31)},
			Payload: make([]byte, n)})
		list := r.client.send.take()
		require.Equal(t, []uint64{1, 2}, ids(list))
		require.Equal(t, verbs.StatusBadResponse, list[0].Status, "%d bytes", n)
		require.Equal(t, pattern(make([]byte, arenaLen), 1), r.local.Mem)
	}
	t.Run("atomic with a NAK's syndrome", func(t *testing.T) {
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpFetchAdd, 8))
		require.Len(t, r.client.transmit(r.now), 1)
		p := nakOf(0, wire.NakSequence)
		p.Opcode = wire.RCAtomicAcknowledge
		r.client.take(r.now, p)
		r.requireSent(1, verbs.StatusBadResponse)
		require.Equal(t, pattern(make([]byte, arenaLen), 1), r.local.Mem)
	})
	for name, change := range map[string]func(p *wire.Packet){
		"atomic write, with data":         func(p *wire.Packet) { p.Payload = make([]byte, 8) },
		"atomic write, of several":        func(p *wire.Packet) { p.Opcode = wire.RCReadResponseFirst },
		"atomic write, a NAK's syndrome":  func(p *wire.Packet) { p.AETH.Syndrome = wire.Nak(wire.NakSequence) },
		"atomic write, without syndromes": func(p *wire.Packet) { p.Opcode = wire.RCReadResponseMiddle },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, options{})
			r.client.post(r.wr(1, verbs.OpAtomicWrite, 8))
			require.Len(t, r.client.transmit(r.now), 1)
			p := ackOf(0)
			p.Opcode = wire.RCReadResponseOnly
			change(&p)
			r.client.take(r.now, p)
			r.requireSent(1, verbs.StatusBadResponse)
			require.Equal(t, pattern(make([]byte, arenaLen), 1), r.local.Mem)
		})
	}
	for _, op := range []wire.Opcode{wire.RCAtomicAcknowledge, wire.RCAcknowledge} {
		t.Run(fmt.Sprintf("atomic write, %v", op), func(t *testing.T) {
			r := newRig(t, options{})
			r.client.post(r.wr(1, verbs.OpAtomicWrite, 8))
			require.Len(t, r.client.transmit(r.now), 1)
			p := ackOf(0)
			p.Opcode, p.AtomicAck = op, 5
			r.client.take(r.now, p)
			require.Empty(t, r.client.send.take())
			require.Equal(t, pattern(make([]byte, arenaLen), 1), r.local.Mem)
			r.exchange()
			if r.client.qp.Deadline() != 0 {
				r.expire()
				r.exchange()
			}
			r.requireSent(1, verbs.StatusSuccess)
		})
	}
	t.Run("of the wrong kind", func(t *testing.T) {
		r := newRig(t, options{})
		r.client.post(r.wr(1, verbs.OpFetchAdd, 8), r.wr(2, verbs.OpRead, 8))
		require.Len(t, r.client.transmit(r.now), 2)
		read := ackOf(0)
		read.Opcode, read.Payload = wire.RCReadResponseOnly, make([]byte, 8)
		r.client.take(r.now, read)
		require.Empty(t, r.client.send.take())
		require.Equal(t, pattern(make([]byte, arenaLen), 1), r.local.Mem)
		r.exchange()
		r.expire()
		r.exchange()
		require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))
	})
}

func TestAtomicsReplay(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{initReads: 2, psn: 0xffffff})
	value := word(r.remote.Mem)
	*value = 10
	add := r.wr(1, verbs.OpFetchAdd, 8)
	add.CompareAdd = 7
	swap := r.wr(2, verbs.OpCompareSwap, 8)
	swap.CompareAdd, swap.Swap = 17, 1000
	swap.SGL = []verbs.SGE{r.local.sge(16, 3), r.local.sge(32, 5)}
	r.client.post(add, swap)
	sent := r.client.transmit(r.now)
	for range 3 {
		r.server.take(r.now, sent...)
		require.Equal(t, uint64(1000), *value, "executed once")
		responses := r.server.transmit(r.now)
		require.Len(t, responses, 2)
		require.Equal(t, []uint64{10, 17}, []uint64{responses[0].AtomicAck, responses[1].AtomicAck})
	}
	// Neither another operation nor another address gets the saved result.
	other := sent[0]
	other.Opcode = wire.RCCompareSwap
	elsewhere := sent[0]
	elsewhere.Atomic.VA += 8
	r.server.take(r.now, other, elsewhere)
	require.Empty(t, r.server.transmit(r.now))
	require.Equal(t, uint64(1000), *value)

	r.expire()
	r.exchange()
	require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))
	require.Equal(t, uint64(10), *word(r.local.Mem))
	got := append(append([]byte{}, r.local.Mem[16:19]...), r.local.Mem[32:37]...)
	require.Equal(t, uint64(17), binary.NativeEndian.Uint64(got))

	failed := r.wr(3, verbs.OpCompareSwap, 8)
	failed.CompareAdd, failed.Swap = 5, 6
	r.client.post(failed)
	r.exchange()
	r.requireSent(3, verbs.StatusSuccess)
	require.Equal(t, uint64(1000), *value, "the comparison fails")
	require.Equal(t, uint64(1000), *word(r.local.Mem))

	// No more results are kept than the peer may have outstanding.
	r.server.take(r.now, sent...)
	require.Len(t, r.server.transmit(r.now), 1)
	require.Equal(t, uint64(1000), *value)
}

// Repeated reads and atomics are bounded by the room for responses, and the connection
// continues.
func TestRepetitionsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{initReads: 2})
	r.client.post(r.wr(1, verbs.OpRead, 600), r.wr(2, verbs.OpFetchAdd, 8))
	sent := r.client.transmit(r.now)
	for range 1000 {
		r.server.take(r.now, sent...)
	}
	require.Less(t, r.server.qp.responses.Len(), 16)
	// There is still room to refuse.
	r.server.take(r.now, r.forged(wire.RCWriteLast, 4, 8, 8))
	responses := r.server.transmit(r.now)
	require.Equal(t, wire.Nak(wire.NakInvalidRequest), responses[len(responses)-1].AETH.Syndrome)
}

// A forged duplicate whose length spans all sequence numbers is not answered: it was never
// executed.
func TestRepeatedReadWithForgedLength(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	huge := &Region{Key: 0x99, Domain: testDomain, Access: everyAccess, Base: 1 << 40, Mem: make([]byte, 4096)}
	require.True(t, r.server.memory.Add(huge))
	r.client.post(r.wr(1, verbs.OpRead, 600))
	sent := r.client.transmit(r.now)
	r.server.take(r.now, sent...)
	require.Len(t, r.server.transmit(r.now), 3)
	for _, n := range []uint32{601, 768, 769, 1 << 31, ^uint32(0), ^uint32(0) - 255} {
		again := sent[0]
		again.RETH.Length = n
		r.server.take(r.now, again)
		responses := r.server.transmit(r.now)
		require.Empty(t, responses, "%d bytes", n)
	}
	require.EqualValues(t, 6, r.server.counters.DuplicatesRefused)
}

// The ends of a message of 2^23 packets are as far apart as sequence numbers
// can be.
func TestLongestMessage(t *testing.T) {
	t.Parallel()
	const pieces = MaxMessage / arenaLen
	r := newRig(t, options{maxSGE: pieces, psn: 0x123456, depth: 4})
	wr := r.wr(1, verbs.OpWrite, 0)
	wr.SGL = nil
	for range pieces {
		wr.SGL = append(wr.SGL, r.local.sge(0, arenaLen))
	}
	r.client.post(wr, r.wr(2, verbs.OpWrite, 8))
	q := r.client.qp
	last := q.sq.at(0).last
	require.Equal(t, wire.PSNAdd(0x123456, 1<<23-1), last)
	q.unaPSN, q.sendPSN, q.maxPSN = last, last, last // as if the others were acknowledged
	sent := r.client.transmit(r.now)
	require.Equal(t, []wire.Opcode{wire.RCWriteLast, wire.RCWriteOnly}, opcodes(sent))
	r.client.take(r.now, ackOf(sent[1].PSN))
	require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))

	wr.SGL = append(wr.SGL[:pieces-1:pieces-1], r.local.sge(0, arenaLen), r.local.sge(0, 1))
	_, err := q.PostSend([]verbs.SendWR{wr})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

// In SQD a request that was begun continues and is retransmitted; the rest waits.
func TestDrainedSendQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{window: 1}) // a few packets at a time
	r.client.post(r.wr(1, verbs.OpWrite, 256*20), r.wr(2, verbs.OpWrite, 8))
	require.Less(t, len(r.client.transmit(r.now)), 20)
	r.client.modify(verbs.QPSendQueueDrained)
	r.client.post(r.wr(3, verbs.OpWrite, 8))
	r.expire() // all of it was lost
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
	require.Zero(t, r.client.qp.Deadline())
	require.Equal(t, r.local.Mem[:5120], r.remote.Mem[:5120])
	r.client.modify(verbs.QPReadyToSend)
	r.exchange()
	require.Equal(t, []uint64{2, 3}, ids(r.client.send.take()))
}

// The window adapts to a path with a larger or a smaller buffer while packets are in flight.
func TestWindowChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{window: 1}) // a few packets at a time
	r.client.post(r.wr(1, verbs.OpWrite, 256*40), r.wr(2, verbs.OpWrite, 256*40))
	few := len(r.client.transmit(r.now))
	require.Less(t, few, 40)
	r.client.qp.SetWindow(256 * 50)
	require.Len(t, r.client.transmit(r.now), 50-few)
	r.client.qp.SetWindow(1)
	require.Empty(t, r.client.transmit(r.now))
	r.expire() // all of it was lost
	require.LessOrEqual(t, len(r.client.transmit(r.now)), few)
	r.expire()
	r.exchange()
	require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))
}

// A reply leaves before the acknowledgement of the request that it
// replies to, once.
func TestHoldAckForOneRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	reply := verbs.SendWR{
		ID: 2, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{r.remote.sge(0, 8)}, RemoteAddr: localBase, RKey: localKey,
	}
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	require.False(t, r.server.qp.OnlyAcknowledges())
	for range 2 {
		for _, p := range r.client.transmit(r.now) {
			r.server.take(r.now, p)
		}
		require.True(t, r.server.qp.OnlyAcknowledges())
		r.server.post(reply)
		require.False(t, r.server.qp.OnlyAcknowledges())
		r.server.qp.HoldAck(1, 0)
		sent := r.server.transmit(r.now)
		require.Equal(t, []wire.Opcode{wire.RCWriteOnly, wire.RCAcknowledge}, opcodes(sent))
		for _, p := range sent {
			r.client.take(r.now, p)
		}
		require.Equal(t, []uint64{1}, ids(r.client.send.take()))
		for _, p := range r.client.transmit(r.now) {
			r.server.take(r.now, p)
		}
		require.Equal(t, []uint64{2}, ids(r.server.send.take()))
		r.client.post(r.wr(1, verbs.OpWrite, 8))
	}
	for _, p := range r.client.transmit(r.now) {
		r.server.take(r.now, p)
	}
	r.server.post(reply)
	require.Equal(t, []wire.Opcode{wire.RCAcknowledge, wire.RCWriteOnly}, opcodes(r.server.transmit(r.now)))
}

// An empty message is smaller than an acknowledgement, and would not be in one train with it.
// A fenced one may end the connection.
func TestHoldAckForOneRequestUnlessEmptyOrFenced(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.server.qp.HoldAck(1, 0) // there is none
	fenced := verbs.SendWR{ID: 3, Op: verbs.OpWrite, Flags: verbs.FlagFence, SGL: []verbs.SGE{r.remote.sge(0, 8)}, RemoteAddr: localBase, RKey: localKey}
	for opcode, wr := range map[wire.Opcode]verbs.SendWR{wire.RCSendOnly: {ID: 2, Op: verbs.OpSend}, wire.RCWriteOnly: fenced} {
		r.client.post(r.wr(1, verbs.OpWrite, 8))
		for _, p := range r.client.transmit(r.now) {
			r.server.take(r.now, p)
		}
		r.server.post(wr)
		r.server.qp.HoldAck(1, 0)
		require.Equal(t, []wire.Opcode{wire.RCAcknowledge, opcode}, opcodes(r.server.transmit(r.now)))
	}
}

// A held acknowledgement leaves right before the last packet of the reply, also where the reply is
// longer than the window. It leaves at once before fenced requests, and when its time is up.
func TestHoldAck(t *testing.T) {
	t.Parallel()
	first, middle, last, ack := wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCAcknowledge
	for name, c := range map[string]struct {
		length, window uint32
		flags          verbs.SendFlags
		late           time.Duration
		want           []wire.Opcode
	}{
		"one packet":             {length: 8, want: []wire.Opcode{ack, wire.RCWriteOnly}},
		"two packets":            {length: 512, want: []wire.Opcode{first, ack, last}},
		"several":                {length: 1000, want: []wire.Opcode{first, middle, middle, ack, last}},
		"longer than the window": {length: 3000, window: 2048, want: slices.Concat([]wire.Opcode{first}, slices.Repeat([]wire.Opcode{middle}, 10), []wire.Opcode{ack, last})},
		"fenced":                 {length: 512, flags: verbs.FlagFence, want: []wire.Opcode{ack, first, last}},
		"late":                   {length: 512, late: time.Millisecond, want: []wire.Opcode{ack, first, last}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{mtu: 256, window: int(c.window)})
			for range 2 {
				r.client.post(r.wr(1, verbs.OpWrite, 8))
				r.server.take(r.now, r.client.transmit(r.now)...)
				require.True(t, r.server.qp.OnlyAcknowledges())
				r.server.post(verbs.SendWR{
					ID: 2, Op: verbs.OpWrite, Flags: verbs.FlagSignaled | c.flags,
					SGL: []verbs.SGE{r.remote.sge(0, int(c.length))}, RemoteAddr: localBase, RKey: localKey,
				})
				r.server.qp.HoldAck(AllButLast, r.now+time.Millisecond)
				r.now += c.late
				var got []wire.Opcode
				for sent := r.server.transmit(r.now); len(sent) > 0; sent = r.server.transmit(r.now) {
					got = append(got, opcodes(sent)...)
					r.client.take(r.now, sent...)
					r.server.take(r.now, r.client.transmit(r.now)...)
				}
				require.Equal(t, c.want, got)
				require.Equal(t, []uint64{1}, ids(r.client.send.take()))
				require.Equal(t, []uint64{2}, ids(r.server.send.take()))
			}
		})
	}
}

// A held acknowledgement can be sent before a change of state discards it.
func TestReleaseAck(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{mtu: 256, window: 2048})
	require.False(t, r.server.qp.ReleaseAck())
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	r.server.take(r.now, r.client.transmit(r.now)...)
	r.server.post(verbs.SendWR{ID: 2, Op: verbs.OpWrite, SGL: []verbs.SGE{r.remote.sge(0, 3000)}, RemoteAddr: localBase, RKey: localKey})
	r.server.qp.HoldAck(AllButLast, r.now+time.Millisecond)
	require.NotContains(t, opcodes(r.server.transmit(r.now)), wire.RCAcknowledge, "the window is full")
	require.True(t, r.server.qp.ReleaseAck())
	require.Equal(t, []wire.Opcode{wire.RCAcknowledge}, opcodes(r.server.transmit(r.now)))
}

func TestInlineDataIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{maxInline: 32})
	data := pattern(make([]byte, 32), 9)
	wr := r.wr(1, verbs.OpWrite, 0)
	wr.Flags |= verbs.FlagInline
	wr.SGL = []verbs.SGE{inlineEntry(data[:20]), {}, inlineEntry(data[20:])}
	r.client.post(wr)
	want := append([]byte{}, data...)
	clear(data)
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
	require.Equal(t, want, r.remote.Mem[:32])
}

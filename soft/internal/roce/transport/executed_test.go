package transport

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// A read with an old sequence number is answered if it repeats one that was executed, whole
// or from a later packet on. Otherwise nobody learns from it whether a key exists.
func TestOldReadsThatWereNotExecuted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		change   func(p *wire.Packet)
		answered int
	}{
		{"the same", func(*wire.Packet) {}, 3},
		{"a shorter one", func(p *wire.Packet) { p.RETH.Length = 300 }, 2},
		{"from its second packet on", func(p *wire.Packet) { p.PSN, p.RETH.VA, p.RETH.Length = p.PSN+1, p.RETH.VA+256, 344 }, 2},
		{"its second packet", func(p *wire.Packet) { p.PSN, p.RETH.VA, p.RETH.Length = p.PSN+1, p.RETH.VA+256, 256 }, 1},
		{"another key, which exists", func(p *wire.Packet) { p.RETH.RKey = 0x99 }, 0},
		{"another key, which does not exist", func(p *wire.Packet) { p.RETH.RKey++ }, 0},
		{"another address", func(p *wire.Packet) { p.RETH.VA++ }, 0},
		{"another address, from its second packet on", func(p *wire.Packet) { p.PSN, p.RETH.Length = p.PSN+1, 344 }, 0},
		{"longer", func(p *wire.Packet) { p.RETH.Length++ }, 0},
		{"longer, from its second packet on", func(p *wire.Packet) { p.PSN, p.RETH.VA, p.RETH.Length = p.PSN+1, p.RETH.VA+256, 345 }, 0},
		{"the number of the write behind it", func(p *wire.Packet) { p.PSN += 3 }, 0},
		{"a number before it", func(p *wire.Packet) { p.PSN-- }, 0},
		{"a number long ago", func(p *wire.Packet) { p.PSN = wire.PSNAdd(p.PSN, -1<<22) }, 0},
		{"a number of an older one than are remembered", func(p *wire.Packet) { p.PSN -= 3 * 4; p.RETH.VA += 4096 }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{psn: 0xfffff8})
			other := &Region{Key: 0x99, Domain: testDomain, Access: everyAccess, Base: remoteBase, Mem: make([]byte, 4096)}
			require.True(t, r.server.memory.Add(other))
			var read wire.Packet
			for i := range 5 { // one more than may be outstanding
				wr := r.wr(1, verbs.OpRead, 600)
				wr.RemoteAddr += uint64(1024 * (4 - i))
				r.client.post(wr)
				read = r.client.transmit(r.now)[0]
				r.server.take(r.now, read)
				r.client.take(r.now, r.server.transmit(r.now)...)
			}
			r.client.post(r.wr(2, verbs.OpWrite, 600))
			r.exchange()
			again := read
			c.change(&again)
			again.PSN &= wire.PSNMask
			r.server.take(r.now, again)
			require.Len(t, r.server.transmit(r.now), c.answered)
			refused := 0
			if c.answered == 0 {
				refused = 1
			}
			require.EqualValues(t, refused, r.server.counters.DuplicatesRefused)
			require.Zero(t, r.server.counters.RemoteAccessErrors)
			require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
		})
	}
}

// An atomic write that comes again is answered, and is not executed again: others may have
// written to the word since. One that was not executed is not answered.
func TestRepeatedAtomicWrites(t *testing.T) {
	t.Parallel()
	const later uint64 = 0x0807060504030201
	for _, c := range []struct {
		name     string
		change   func(p *wire.Packet)
		answered int
	}{
		{"the same", func(*wire.Packet) {}, 1},
		{"with another value", func(p *wire.Packet) { p.Payload = make([]byte, 8) }, 1},
		{"without its request for an acknowledgement", func(p *wire.Packet) { p.AckReq = false }, 1},
		{"another key", func(p *wire.Packet) { p.RETH.RKey++ }, 0},
		{"another address", func(p *wire.Packet) { p.RETH.VA += 8 }, 0},
		{"a number long ago", func(p *wire.Packet) { p.PSN = wire.PSNAdd(p.PSN, -1<<22) }, 0},
		{"the number of the write before it", func(p *wire.Packet) { p.PSN = wire.PSNAdd(p.PSN, -1) }, 0},
		{"as a write", func(p *wire.Packet) { p.Opcode = wire.RCWriteOnly }, 1}, // an acknowledgement
		{"as a fetch-and-add", func(p *wire.Packet) { p.Opcode, p.Payload = wire.RCFetchAdd, nil }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{psn: 0xffffff})
			r.client.post(r.wr(1, verbs.OpWrite, 16), r.wr(2, verbs.OpAtomicWrite, 8))
			sent := r.client.transmit(r.now)
			require.Equal(t, []wire.Opcode{wire.RCWriteOnly, wire.RCAtomicWrite}, opcodes(sent))
			r.server.take(r.now, sent...)
			require.Equal(t, r.local.Mem[:16], r.remote.Mem[:16])
			responses := r.server.transmit(r.now)
			require.Equal(t, wire.RCReadResponseOnly, responses[len(responses)-1].Opcode)
			require.EqualValues(t, 2, responses[len(responses)-1].AETH.MSN)

			*word(r.remote.Mem) = later
			again := sent[1]
			c.change(&again)
			r.server.take(r.now, again)
			back := r.server.transmit(r.now)
			require.Len(t, back, c.answered)
			require.EqualValues(t, later, *word(r.remote.Mem), "executed once")
			require.EqualValues(t, 1-c.answered, r.server.counters.DuplicatesRefused)
			require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
			if c.answered > 0 && again.Opcode == wire.RCAtomicWrite {
				require.Equal(t, wire.RCReadResponseOnly, back[0].Opcode)
				require.Equal(t, again.PSN, back[0].PSN)
				r.client.take(r.now, back...)
				require.Equal(t, []uint64{1, 2}, ids(r.client.send.take()))
			}
		})
	}
}

// The payload of an atomic write that changes while it is copied, or cannot be read, never
// reaches memory. The packet counts as lost.
func TestAtomicWritesOfChangingPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.post(r.wr(1, verbs.OpAtomicWrite, 8))
	sent := r.client.transmit(r.now)
	require.Len(t, sent, 1)
	payload := sent[0].Payload
	deliver := func(intact bool, parts ...[]byte) {
		p := sent[0]
		p.Payload = nil
		require.True(t, r.server.qp.ReceivePieces(&p, r.client.qp.PathMTU(), parts, func() bool { return intact }, r.now))
	}
	deliver(false, payload)
	deliver(false, payload[:3], payload[3:])
	require.Empty(t, r.server.transmit(r.now))
	r.requireIntact()
	deliver(true, payload[:3], payload[3:4], payload[4:])
	require.Equal(t, r.local.Mem[:8], r.remote.Mem[:8])
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(1, verbs.StatusSuccess)
}

// Inline data needs no memory of the caller's after the post, and the response carries none.
func TestInlineAtomicWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	data := []byte("8 bytes!")
	wr := r.wr(1, verbs.OpAtomicWrite, 8)
	wr.Flags |= verbs.FlagInline
	wr.SGL = []verbs.SGE{inlineEntry(data[:5]), inlineEntry(data[5:])}
	r.client.post(wr)
	clear(data)
	r.exchange()
	require.Equal(t, []verbs.WC{{ID: 1, Opcode: verbs.WCAtomicWrite, Bytes: 8, QPN: clientQPN}}, r.client.send.take())
	require.Equal(t, "8 bytes!", string(r.remote.Mem[:8]))
}

// A region under another address than its own may have no word at an address that is a multiple
// of 8.
func TestAtomicsOnAnUnalignedRegion(t *testing.T) {
	t.Parallel()
	for _, op := range []verbs.Opcode{verbs.OpFetchAdd, verbs.OpCompareSwap, verbs.OpAtomicWrite} {
		r := newRig(t, options{})
		region := &Region{Key: 0x99, Domain: testDomain, Access: everyAccess, Base: 1 << 40, Mem: r.remote.Mem[4 : 4+64]}
		require.True(t, r.server.memory.Add(region))
		wr := r.wr(1, op, 8)
		wr.RKey, wr.RemoteAddr = region.Key, region.Base+8
		r.requireFailed(wr, verbs.StatusRemoteInvalidRequest)
		r.requireIntact()
	}
}

// A peer that asks for gigabytes and is silent is sent no more than maxUnconfirmed bytes, and a
// peer that asks again for the rest gets it.
func TestReadsOfASilentPeer(t *testing.T) {
	t.Parallel()
	const length, reads = 48 << 20, 4
	r := newRig(t, options{mtu: 4096, destReads: reads})
	huge := &Region{Key: 0x99, Domain: testDomain, Access: everyAccess, Base: 1 << 40, Mem: make([]byte, length)}
	require.True(t, r.server.memory.Add(huge))
	const packets = length / 4096
	ask := func(i, from int) {
		p := r.forged(wire.RCReadRequest, i*packets+from, 0, uint32(length-from*4096))
		p.Payload, p.RETH.RKey, p.RETH.VA = nil, huge.Key, huge.Base+uint64(from)*4096
		r.server.take(r.now, p)
	}
	for i := range reads {
		ask(i, 0)
	}
	var out byteCounter
	for r.server.qp.Transmit(&out, r.now, 1000) {
	}
	require.EqualValues(t, maxUnconfirmed, out.bytes)
	require.EqualValues(t, reads-1, r.server.counters.ReadsAbandoned)
	require.Zero(t, r.server.qp.responses.Len())

	out = byteCounter{}
	ask(1, (maxUnconfirmed-length)/4096)
	for r.server.qp.Transmit(&out, r.now, 1000) {
	}
	require.EqualValues(t, 2*length-maxUnconfirmed, out.bytes, "the rest of the second read")
}

// byteCounter counts the bytes of packets and drops them.
type byteCounter struct{ bytes uint64 }

func (c *byteCounter) Send(_ *wire.Packet, _ [][]byte, n int) bool {
	c.bytes += uint64(n)
	return true
}

// Every ignored packet is counted under its reason.
func TestIgnoredPacketsAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	c := &r.server.counters
	for _, op := range []wire.Opcode{wire.RCAcknowledge, wire.RCReadResponseOnly, wire.RCAtomicAcknowledge} {
		r.server.take(r.now, r.forged(op, 0, 0, 0))
	}
	require.EqualValues(t, 3, c.UnexpectedResponses)
	r.server.take(r.now, r.forged(wire.UCSendOnly, 0, 8, 8))
	require.EqualValues(t, 1, c.WrongService)
	r.server.take(r.now, r.forged(wire.RCFetchAdd, -1, 0, 0))
	require.EqualValues(t, 1, c.DuplicatesRefused)
	r.client.post(r.wr(1, verbs.OpRead, 8))
	read := r.client.transmit(r.now)
	for range 100 {
		r.server.take(r.now, read...)
	}
	require.NotZero(t, c.RequestsDropped)
	r.client.take(r.now, r.server.transmit(r.now)...)
	require.NotZero(t, r.client.counters.UnexpectedResponses, "the same response again")
	r.server.modify(verbs.QPError)
	r.server.take(r.now, r.forged(wire.RCSendOnly, 0, 8, 8))
	require.EqualValues(t, 1, c.WrongState)
}

package transport

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// requireFailed posts one request, which is to end with a status and to put the
// client in error.
func (r *rig) requireFailed(wr verbs.SendWR, status verbs.Status) {
	r.t.Helper()
	r.client.post(wr)
	r.exchange()
	r.requireSent(wr.ID, status)
	require.Equal(r.t, verbs.QPError, r.client.qp.State())
}

// below is the address n bytes before 2^64.
func below(n uint64) uint64 { return -n }

// Requests that the responder refuses (IBTA 9.7.4.1.3 … 9.7.4.1.5).
func TestRemoteViolations(t *testing.T) {
	t.Parallel()
	const key = 0x3003
	type tweak struct {
		o      options
		region Region // Key 0: the whole, with every access
		addr   uint64 // zero: the region's base
		rkey   uint32 // zero: the region's
	}
	top := Region{Base: below(4096)} // ends at 2^64
	for _, c := range []struct {
		name   string
		op     verbs.Opcode
		n      int
		tweak  tweak
		status verbs.Status
	}{
		{"write, wrong rkey", verbs.OpWrite, 8, tweak{rkey: 0xbad}, verbs.StatusRemoteAccessError},
		{"write, rkey zero", verbs.OpWrite, 8, tweak{rkey: ^uint32(0)}, verbs.StatusRemoteAccessError},
		{"long write, wrong rkey", verbs.OpWrite, 1000, tweak{rkey: 0xbad}, verbs.StatusRemoteAccessError},
		{"read, wrong rkey", verbs.OpRead, 8, tweak{rkey: 0xbad}, verbs.StatusRemoteAccessError},
		{"compare-and-swap, wrong rkey", verbs.OpCompareSwap, 8, tweak{rkey: 0xbad}, verbs.StatusRemoteAccessError},
		{"fetch-and-add, wrong rkey", verbs.OpFetchAdd, 8, tweak{rkey: 0xbad}, verbs.StatusRemoteAccessError},
		{"empty write, wrong rkey", verbs.OpWrite, 0, tweak{rkey: 0xbad}, verbs.StatusSuccess},
		{"empty read, wrong rkey", verbs.OpRead, 0, tweak{rkey: 0xbad}, verbs.StatusSuccess},

		{"write at the start", verbs.OpWrite, 8, tweak{addr: remoteBase}, verbs.StatusSuccess},
		{"write before the start", verbs.OpWrite, 8, tweak{addr: remoteBase - 1}, verbs.StatusRemoteAccessError},
		{"write of a whole packet before the start", verbs.OpWrite, 256, tweak{addr: remoteBase - 256}, verbs.StatusRemoteAccessError},
		{"write up to the end", verbs.OpWrite, 8, tweak{addr: remoteBase + 4096 - 8}, verbs.StatusSuccess},
		{"write over the end", verbs.OpWrite, 8, tweak{addr: remoteBase + 4096 - 7}, verbs.StatusRemoteAccessError},
		{"write behind the end", verbs.OpWrite, 1, tweak{addr: remoteBase + 4096}, verbs.StatusRemoteAccessError},
		{"long write over the end", verbs.OpWrite, 4097, tweak{}, verbs.StatusRemoteAccessError},
		{"read over the end", verbs.OpRead, 4097, tweak{}, verbs.StatusRemoteAccessError},
		{"read before the start", verbs.OpRead, 8, tweak{addr: remoteBase - 1}, verbs.StatusRemoteAccessError},
		{"fetch-and-add over the end", verbs.OpFetchAdd, 8, tweak{addr: remoteBase + 4096}, verbs.StatusRemoteAccessError},
		{"fetch-and-add before the start", verbs.OpFetchAdd, 8, tweak{addr: remoteBase - 8}, verbs.StatusRemoteAccessError},

		{"write up to 2^64", verbs.OpWrite, 16, tweak{region: top, addr: below(16)}, verbs.StatusSuccess},
		{"write over 2^64", verbs.OpWrite, 17, tweak{region: top, addr: below(16)}, verbs.StatusRemoteAccessError},
		{"write from 2^64-1", verbs.OpWrite, 2, tweak{region: top, addr: below(1)}, verbs.StatusRemoteAccessError},
		{"write at 0, region at the top", verbs.OpWrite, 8, tweak{region: top, addr: 1 << 3}, verbs.StatusRemoteAccessError},
		{"read over 2^64", verbs.OpRead, 4096, tweak{region: top, addr: below(4095)}, verbs.StatusRemoteAccessError},
		{"address near 2^64, region below", verbs.OpWrite, 16, tweak{addr: below(8)}, verbs.StatusRemoteAccessError},
		{"read near 2^64, region below", verbs.OpRead, 4096, tweak{addr: below(8)}, verbs.StatusRemoteAccessError},

		{"region without remote write", verbs.OpWrite, 8, tweak{region: Region{Access: everyAccess &^ verbs.AccessRemoteWrite}}, verbs.StatusRemoteAccessError},
		{"region without remote read", verbs.OpRead, 8, tweak{region: Region{Access: everyAccess &^ verbs.AccessRemoteRead}}, verbs.StatusRemoteAccessError},
		{"region without remote atomic", verbs.OpFetchAdd, 8, tweak{region: Region{Access: everyAccess &^ verbs.AccessRemoteAtomic}}, verbs.StatusRemoteAccessError},
		{"region without remote atomic, swap", verbs.OpCompareSwap, 8, tweak{region: Region{Access: everyAccess &^ verbs.AccessRemoteAtomic}}, verbs.StatusRemoteAccessError},
		{"queue pair without remote write", verbs.OpWrite, 8, tweak{o: options{access: verbs.AccessRemoteRead}}, verbs.StatusRemoteInvalidRequest},
		{"queue pair without remote write, empty", verbs.OpWrite, 0, tweak{o: options{access: verbs.AccessRemoteRead}}, verbs.StatusRemoteInvalidRequest},
		{"queue pair without remote read", verbs.OpRead, 8, tweak{o: options{access: verbs.AccessRemoteWrite}}, verbs.StatusRemoteInvalidRequest},
		{"queue pair without remote atomic", verbs.OpFetchAdd, 8, tweak{o: options{access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite}}, verbs.StatusRemoteInvalidRequest},
		{"another protection domain, write", verbs.OpWrite, 8, tweak{region: Region{Domain: testDomain + 1}}, verbs.StatusRemoteAccessError},
		{"another protection domain, read", verbs.OpRead, 8, tweak{region: Region{Domain: testDomain + 1}}, verbs.StatusRemoteAccessError},
		{"another protection domain, atomic", verbs.OpFetchAdd, 8, tweak{region: Region{Domain: testDomain + 1}}, verbs.StatusRemoteAccessError},

		{"atomic at an odd address", verbs.OpFetchAdd, 8, tweak{addr: remoteBase + 4}, verbs.StatusRemoteInvalidRequest},
		{"swap at an odd address", verbs.OpCompareSwap, 8, tweak{addr: remoteBase + 1}, verbs.StatusRemoteInvalidRequest},
		{"atomic write, wrong rkey", verbs.OpAtomicWrite, 8, tweak{rkey: 0xbad}, verbs.StatusRemoteAccessError},
		{"atomic write up to the end", verbs.OpAtomicWrite, 8, tweak{addr: remoteBase + 4096 - 8}, verbs.StatusSuccess},
		{"atomic write over the end", verbs.OpAtomicWrite, 8, tweak{addr: remoteBase + 4096}, verbs.StatusRemoteAccessError},
		{"atomic write before the start", verbs.OpAtomicWrite, 8, tweak{addr: remoteBase - 8}, verbs.StatusRemoteAccessError},
		{"atomic write up to 2^64", verbs.OpAtomicWrite, 8, tweak{region: top, addr: below(8)}, verbs.StatusSuccess},
		{"region without remote write, atomic write", verbs.OpAtomicWrite, 8, tweak{region: Region{Access: everyAccess &^ verbs.AccessRemoteWrite}}, verbs.StatusRemoteAccessError},
		{"region without remote atomic, atomic write", verbs.OpAtomicWrite, 8, tweak{region: Region{Access: everyAccess &^ verbs.AccessRemoteAtomic}}, verbs.StatusSuccess},
		{"queue pair without remote write, atomic write", verbs.OpAtomicWrite, 8, tweak{o: options{access: verbs.AccessRemoteRead | verbs.AccessRemoteAtomic}}, verbs.StatusRemoteInvalidRequest},
		{"another protection domain, atomic write", verbs.OpAtomicWrite, 8, tweak{region: Region{Domain: testDomain + 1}}, verbs.StatusRemoteAccessError},
		{"atomic write at an odd address", verbs.OpAtomicWrite, 8, tweak{addr: remoteBase + 4}, verbs.StatusRemoteInvalidRequest},
		{"atomic write where none is accepted", verbs.OpAtomicWrite, 8, tweak{o: options{destReads: -1}}, verbs.StatusRemoteInvalidRequest},
		{"read where none is accepted", verbs.OpRead, 8, tweak{o: options{destReads: -1}}, verbs.StatusRemoteInvalidRequest},
		{"atomic where none is accepted", verbs.OpFetchAdd, 8, tweak{o: options{destReads: -1}}, verbs.StatusRemoteInvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.tweak.o)
			base := c.tweak.region.Base
			if base == 0 {
				base = remoteBase
			}
			region := newArena(t, r.server.memory, key, base, 4096, everyAccess)
			if c.tweak.region.Access != 0 {
				region.Access = c.tweak.region.Access
			}
			if c.tweak.region.Domain != 0 {
				region.Domain = c.tweak.region.Domain
			}
			pattern(region.Mem, 5)
			wr := r.wr(9, c.op, c.n)
			wr.RemoteAddr, wr.RKey = base, key
			if c.tweak.addr != 0 {
				wr.RemoteAddr = c.tweak.addr
			}
			switch c.tweak.rkey {
			case 0:
			case ^uint32(0):
				wr.RKey = 0
			default:
				wr.RKey = c.tweak.rkey
			}
			if c.status == verbs.StatusSuccess {
				r.client.post(wr)
				r.exchange()
				r.requireSent(9, verbs.StatusSuccess)
				region.requireGuards(t)
				require.Empty(t, r.server.events)
				return
			}
			r.requireFailed(wr, c.status)
			require.Equal(t, pattern(make([]byte, 4096), 5), region.Mem, "the server's memory")
			region.requireGuards(t)
			r.requireIntact()
			require.Equal(t, verbs.QPError, r.server.qp.State())
			event := verbs.EventQPAccessError
			if c.status == verbs.StatusRemoteInvalidRequest {
				event = verbs.EventQPRequestError
			}
			require.Equal(t, []verbs.EventType{event}, r.server.events)
			require.Empty(t, r.server.recv.take())
			require.Equal(t, pattern(make([]byte, arenaLen), 1), r.local.Mem, "the client's memory")
		})
	}
}

// Requests that fail locally, without a packet.
func TestLocalViolations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		op     verbs.Opcode
		sgl    func(a *arena) []verbs.SGE
		status verbs.Status
	}{
		{"unknown lkey", verbs.OpSend, func(a *arena) []verbs.SGE { return []verbs.SGE{{Addr: a.Base, Length: 8, LKey: 0xbad}} }, verbs.StatusLocalProtectionError},
		{"second entry wrong", verbs.OpWrite, func(a *arena) []verbs.SGE { return []verbs.SGE{a.sge(0, 8), {Addr: a.Base, Length: 8}} }, verbs.StatusLocalProtectionError},
		{"before the start", verbs.OpWrite, func(a *arena) []verbs.SGE { return []verbs.SGE{{Addr: a.Base - 1, Length: 8, LKey: a.Key}} }, verbs.StatusLocalProtectionError},
		{"over the end", verbs.OpWrite, func(a *arena) []verbs.SGE { return []verbs.SGE{a.sge(arenaLen-7, 8)} }, verbs.StatusLocalProtectionError},
		{"over 2^64", verbs.OpWrite, func(a *arena) []verbs.SGE {
			return []verbs.SGE{{Addr: ^uint64(0), Length: ^uint32(0), LKey: a.Key}}
		}, verbs.StatusLocalProtectionError},
		{"result in memory without local write", verbs.OpRead, func(a *arena) []verbs.SGE { a.Access = verbs.AccessRemoteRead; return []verbs.SGE{a.sge(0, 8)} }, verbs.StatusLocalProtectionError},
		{"atomic result in memory without local write", verbs.OpFetchAdd, func(a *arena) []verbs.SGE { a.Access = 0; return []verbs.SGE{a.sge(0, 8)} }, verbs.StatusLocalProtectionError},
		{"another domain", verbs.OpSend, func(a *arena) []verbs.SGE { a.Domain++; return []verbs.SGE{a.sge(0, 8)} }, verbs.StatusLocalProtectionError},
		{"atomic result of 4 bytes", verbs.OpFetchAdd, func(a *arena) []verbs.SGE { return []verbs.SGE{a.sge(0, 4)} }, verbs.StatusLocalLengthError},
		{"atomic result of 16 bytes", verbs.OpCompareSwap, func(a *arena) []verbs.SGE { return []verbs.SGE{a.sge(0, 8), a.sge(16, 8)} }, verbs.StatusLocalLengthError},
		{"atomic without a result", verbs.OpCompareSwap, func(*arena) []verbs.SGE { return nil }, verbs.StatusLocalLengthError},
		{"atomic write of 4 bytes", verbs.OpAtomicWrite, func(a *arena) []verbs.SGE { return []verbs.SGE{a.sge(0, 4)} }, verbs.StatusLocalLengthError},
		{"atomic write of 9 bytes", verbs.OpAtomicWrite, func(a *arena) []verbs.SGE { return []verbs.SGE{a.sge(0, 8), a.sge(16, 1)} }, verbs.StatusLocalLengthError},
		{"atomic write of nothing", verbs.OpAtomicWrite, func(*arena) []verbs.SGE { return nil }, verbs.StatusLocalLengthError},
		{"atomic write of memory of another domain", verbs.OpAtomicWrite, func(a *arena) []verbs.SGE { a.Domain++; return []verbs.SGE{a.sge(0, 8)} }, verbs.StatusLocalProtectionError},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{timeout: 255}) // what comes before is acknowledged all the same
			before := r.wr(1, verbs.OpWrite, 16)
			before.Flags = 0
			wr := r.wr(2, c.op, 0)
			after := r.wr(3, verbs.OpWrite, 16)
			wr.SGL = c.sgl(newArena(t, r.client.memory, 0x5005, 0x5000_0000, arenaLen, everyAccess))
			r.client.post(before, wr, after)
			r.exchange()
			list := r.client.send.take()
			require.Equal(t, []uint64{2, 3}, ids(list))
			require.Equal(t, c.status, list[0].Status)
			require.Equal(t, verbs.StatusFlushed, list[1].Status)
			require.Equal(t, verbs.QPError, r.client.qp.State())
			require.Equal(t, r.local.Mem[:16], r.remote.Mem[:16], "the request before")
			require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
		})
	}
}

func TestReceiveTooSmall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		posted, sent  int
		packetsBefore int // of the message, in place when it fails
	}{
		{"by one byte", 99, 100, 0},
		{"nothing", 0, 1, 0},
		{"in the second packet", 256, 257, 1},
		{"in the last of many", 1000, 1025, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{})
			box := newArena(t, r.server.memory, 0x77, 0x9000, c.posted+64, verbs.AccessLocalWrite)
			r.server.postRecv(
				verbs.RecvWR{ID: 1, SGL: []verbs.SGE{box.sge(0, c.posted)}},
				verbs.RecvWR{ID: 2, SGL: []verbs.SGE{box.sge(0, 1)}},
			)
			r.requireFailed(r.wr(5, verbs.OpSend, c.sent), verbs.StatusRemoteInvalidRequest)
			list := r.server.recv.take()
			require.Equal(t, []uint64{1, 2}, ids(list))
			require.Equal(t, verbs.StatusLocalLengthError, list[0].Status)
			require.Equal(t, verbs.StatusFlushed, list[1].Status)
			require.Equal(t, verbs.QPError, r.server.qp.State())
			require.Equal(t, make([]byte, len(box.Mem)-c.packetsBefore*256), box.Mem[c.packetsBefore*256:])
			box.requireGuards(t)
		})
	}
}

func TestReceiveIntoWrongMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{{Addr: 0x1234, Length: 100, LKey: 0xbad}}})
	r.requireFailed(r.wr(5, verbs.OpSend, 10), verbs.StatusRemoteOperationError)
	list := r.server.recv.take()
	require.Len(t, list, 1)
	require.Equal(t, verbs.StatusLocalProtectionError, list[0].Status)
	require.Empty(t, r.server.events, "the completion tells it")
}

// forged makes a request packet, on the start of the server's region.
func (r *rig) forged(op wire.Opcode, index, n int, total uint32) wire.Packet {
	return wire.Packet{
		Opcode: op, PKey: wire.DefaultPKey, DestQP: serverQPN, PSN: wire.PSNAdd(r.o.psn, index), AckReq: true,
		Pad: uint8(-n & 3), Payload: pattern(make([]byte, n), 99),
		RETH:   wire.RETH{VA: remoteBase, RKey: remoteKey, Length: total},
		Atomic: wire.AtomicETH{VA: remoteBase, RKey: remoteKey, SwapAdd: 1, Compare: 1},
	}
}

// Packets in an order, or of a length, that no requester sends
// (IBTA 9.7.4.1.2, 9.7.4.1.6).
func TestMalformedMessages(t *testing.T) {
	t.Parallel()
	const mtu = 256
	type packet struct {
		op    wire.Opcode
		n     int
		total uint32
	}
	for _, c := range []struct {
		name    string
		packets []packet // the last of which is refused
		written int      // bytes in place before that
	}{
		{"send middle first", []packet{{wire.RCSendMiddle, mtu, 0}}, 0},
		{"send last first", []packet{{wire.RCSendLast, 1, 0}}, 0},
		{"send last with immediate first", []packet{{wire.RCSendLastImm, 1, 0}}, 0},
		{"write middle first", []packet{{wire.RCWriteMiddle, mtu, 0}}, 0},
		{"write last first", []packet{{wire.RCWriteLast, 1, 0}}, 0},
		{"write last with immediate first", []packet{{wire.RCWriteLastImm, 1, 0}}, 0},
		{"send first twice", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCSendFirst, mtu, 0}}, 0},
		{"send only in a send", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCSendOnly, 1, 0}}, 0},
		{"write middle in a send", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCWriteMiddle, mtu, 0}}, 0},
		{"write last in a send", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCSendMiddle, mtu, 0}, {wire.RCWriteLast, 1, 0}}, 0},
		{"write only in a send", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCWriteOnly, 1, 1}}, 0},
		{"read in a send", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCReadRequest, 0, 8}}, 0},
		{"atomic in a send", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCFetchAdd, 0, 0}}, 0},
		{"send middle after the end", []packet{{wire.RCSendOnly, 1, 0}, {wire.RCSendMiddle, mtu, 0}}, 0},
		{"send middle in a write", []packet{{wire.RCWriteFirst, mtu, 600}, {wire.RCSendMiddle, mtu, 0}}, mtu},
		{"write first in a write", []packet{{wire.RCWriteFirst, mtu, 600}, {wire.RCWriteFirst, mtu, 600}}, mtu},
		{"read in a write", []packet{{wire.RCWriteFirst, mtu, 600}, {wire.RCReadRequest, 0, 8}}, mtu},
		{"atomic write in a send", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCAtomicWrite, 8, 8}}, 0},
		{"atomic write in a write", []packet{{wire.RCWriteFirst, mtu, 600}, {wire.RCAtomicWrite, 8, 8}}, mtu},
		{"atomic write of 4 bytes", []packet{{wire.RCAtomicWrite, 4, 4}}, 0},
		{"atomic write of 16 bytes", []packet{{wire.RCAtomicWrite, 16, 16}}, 0},
		{"atomic write of nothing", []packet{{wire.RCAtomicWrite, 0, 0}}, 0},
		{"atomic write shorter than announced", []packet{{wire.RCAtomicWrite, 7, 8}}, 0},
		{"atomic write announces less", []packet{{wire.RCAtomicWrite, 8, 7}}, 0},
		{"atomic in a write", []packet{{wire.RCWriteFirst, mtu, 600}, {wire.RCCompareSwap, 0, 0}}, mtu},

		{"send first short", []packet{{wire.RCSendFirst, mtu - 1, 0}}, 0},
		{"send first long", []packet{{wire.RCSendFirst, mtu + 1, 0}}, 0},
		{"send first empty", []packet{{wire.RCSendFirst, 0, 0}}, 0},
		{"send middle short", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCSendMiddle, mtu - 4, 0}}, 0},
		{"send middle long", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCSendMiddle, mtu + 4, 0}}, 0},
		{"send last empty", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCSendLast, 0, 0}}, 0},
		{"send last long", []packet{{wire.RCSendFirst, mtu, 0}, {wire.RCSendLast, mtu + 1, 0}}, 0},
		{"send only long", []packet{{wire.RCSendOnly, mtu + 1, 0}}, 0},
		{"write middle short", []packet{{wire.RCWriteFirst, mtu, 600}, {wire.RCWriteMiddle, mtu - 4, 0}}, mtu},
		{"write middle long", []packet{{wire.RCWriteFirst, mtu, 900}, {wire.RCWriteMiddle, 2 * mtu, 0}}, mtu},
		{"write last empty", []packet{{wire.RCWriteFirst, mtu, 257}, {wire.RCWriteLast, 0, 0}}, mtu},

		{"write longer than announced", []packet{{wire.RCWriteFirst, mtu, 300}, {wire.RCWriteLast, 45, 0}}, mtu},
		{"write middle longer than announced", []packet{{wire.RCWriteFirst, mtu, 300}, {wire.RCWriteMiddle, mtu, 0}}, mtu},
		{"write goes on after what was announced", []packet{{wire.RCWriteFirst, mtu, 512}, {wire.RCWriteMiddle, mtu, 0}}, mtu},
		{"write shorter than announced", []packet{{wire.RCWriteFirst, mtu, 300}, {wire.RCWriteLast, 43, 0}}, mtu},
		{"write first of one packet", []packet{{wire.RCWriteFirst, mtu, mtu}}, 0},
		{"write first announces nothing", []packet{{wire.RCWriteFirst, mtu, 0}}, 0},
		{"write only longer than announced", []packet{{wire.RCWriteOnly, 10, 9}}, 0},
		{"write only shorter than announced", []packet{{wire.RCWriteOnly, 9, 10}}, 0},
		{"write only with immediate, shorter", []packet{{wire.RCWriteOnlyImm, 0, 10}}, 0},
		{"write only empty, announces a message", []packet{{wire.RCWriteOnly, 0, 1000}}, 0},
		{"read of more than 2 GiB", []packet{{wire.RCReadRequest, 0, 1<<31 + 1}}, 0},
		{"write of more than 2 GiB", []packet{{wire.RCWriteFirst, mtu, 1<<31 + 1}}, 0},
		{"write of more than 2 GiB in one packet", []packet{{wire.RCWriteOnlyImm, mtu, 1<<32 - 1}}, 0},
		{"unknown opcode", []packet{{0x15, 0, 0}}, 0},
		{"unknown opcode in a send", []packet{{wire.RCSendFirst, mtu, 0}, {0x1f, 0, 0}}, 0},
		{"send last with invalidate first", []packet{{wire.RCSendLastInvalidate, 1, 0}}, 0},
		{"send only with invalidate in a write", []packet{{wire.RCWriteFirst, mtu, 600}, {wire.RCSendOnlyInvalidate, 1, 0}}, mtu},
		{"send only with invalidate long", []packet{{wire.RCSendOnlyInvalidate, mtu + 1, 0}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{psn: 0xfffffe})
			box := newArena(t, r.server.memory, 0x77, 0x9000, 4096, verbs.AccessLocalWrite)
			for i := range 3 {
				r.server.postRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{box.sge(i*1000, 1000)}})
			}
			var refused wire.Packet
			for i, p := range c.packets {
				require.NotEqual(t, verbs.QPError, r.server.qp.State(), "packet %d came too late", i)
				refused = r.forged(p.op, i, p.n, p.total)
				r.server.take(r.now, refused)
			}
			responses := r.server.transmit(r.now)
			require.NotEmpty(t, responses)
			nak := responses[len(responses)-1]
			require.Equal(t, wire.RCAcknowledge, nak.Opcode)
			require.Equal(t, wire.Nak(wire.NakInvalidRequest), nak.AETH.Syndrome)
			require.Equal(t, refused.PSN, nak.PSN)
			require.Equal(t, verbs.QPError, r.server.qp.State())
			require.Equal(t, []verbs.EventType{verbs.EventQPRequestError}, r.server.events)
			require.Equal(t, pattern(make([]byte, arenaLen), 2)[c.written:], r.remote.Mem[c.written:], "memory behind what had been accepted")
			require.Len(t, r.server.recv.take(), 3, "every receive completes once")
			r.remote.requireGuards(t)
			box.requireGuards(t)

			r.server.take(r.now, refused, r.forged(wire.RCWriteOnly, len(c.packets), 8, 8))
			require.Empty(t, r.server.transmit(r.now), "in the error state nothing is sent")
		})
	}
}

// rxe (kernel 6.1) loses track of its sequence numbers when an acknowledgement arrives while
// it retransmits a message: from then on packets have numbers that others had before. The
// captured packets were an empty write after the end of the message that was just
// acknowledged, which takes the number of the next message's first packet, and that next
// message, sent again one number late. Requests that were executed are acknowledged as
// duplicates, and what follows is off by one packet; that is detected at the end of the
// message, which must not be delivered.
func TestShiftedRepetition(t *testing.T) {
	t.Parallel()
	const size = 4 * 256
	for _, c := range []struct {
		name                      string
		first, middle, last, only wire.Opcode
	}{
		{"write", wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteOnly},
		{"send", wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendOnly},
	} {
		for _, empty := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, empty message %v", c.name, empty), func(t *testing.T) {
				r := newRig(t, options{})
				box := newArena(t, r.server.memory, 0x77, 0x9000, 2*size, verbs.AccessLocalWrite)
				for i := range 2 {
					r.server.postRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{box.sge(i*size, size)}})
				}
				for i, op := range []wire.Opcode{c.first, c.middle, c.middle, c.last, c.first, c.middle} {
					r.server.take(r.now, r.forged(op, i, 256, size))
				}
				r.server.transmit(r.now)
				if empty {
					again := r.forged(c.only, 4, 0, 0)
					again.AckReq = true
					r.server.take(r.now, again)
					acks := r.server.transmit(r.now)
					require.Len(t, acks, 1)
					require.Equal(t, wire.Ack(wire.AckUnlimited), acks[0].AETH.Syndrome)
					require.EqualValues(t, 5, acks[0].PSN, "of the last that has been executed")
				}
				for i, op := range []wire.Opcode{c.first, c.middle, c.middle} {
					require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
					r.server.take(r.now, r.forged(op, 5+i, 256, size))
				}
				if c.name == "send" { // whose length only its last packet shows
					r.server.take(r.now, r.forged(c.last, 8, 256, size))
				}
				responses := r.server.transmit(r.now)
				require.NotEmpty(t, responses)
				nak := responses[len(responses)-1]
				require.Equal(t, wire.Nak(wire.NakInvalidRequest), nak.AETH.Syndrome)
				require.EqualValues(t, 1, nak.AETH.MSN, "one message has been executed")
				require.Equal(t, verbs.QPError, r.server.qp.State())
				require.Equal(t, []verbs.EventType{verbs.EventQPRequestError}, r.server.events)
				require.Equal(t, pattern(make([]byte, arenaLen), 2)[size:], r.remote.Mem[size:])
				for i, wc := range r.server.recv.take() {
					require.Equal(t, c.name == "send" && i == 0, wc.Status == verbs.StatusSuccess)
				}
				box.requireGuards(t)
			})
		}
	}
}

func TestOtherServicesAreDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	for _, op := range []wire.Opcode{wire.UCSendFirst, wire.UCSendOnly, wire.UCWriteOnly, wire.UDSendOnly, 0xff} {
		for _, ahead := range []int{-1, 0, 1} {
			r.server.take(r.now, r.forged(op, ahead, 8, 8))
		}
	}
	require.Empty(t, r.server.transmit(r.now))
	r.requireIntact()
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	r.exchange()
	r.requireSent(1, verbs.StatusSuccess)
}

// Replayed old packets change nothing.
func TestReplays(t *testing.T) {
	t.Parallel()
	for _, psn := range []uint32{0x1000, 0xfffff0} {
		r := newRig(t, options{psn: psn, peerPSN: psn + 3})
		box := newArena(t, r.server.memory, 0x77, 0x9000, 8192, verbs.AccessLocalWrite)
		for i := range 4 {
			r.server.postRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{box.sge(i*2000, 1000)}})
		}
		var there, back []wire.Packet
		carry := func() {
			for {
				a := r.client.transmit(r.now)
				r.server.take(r.now, a...)
				b := r.server.transmit(r.now)
				r.client.take(r.now, b...)
				there, back = append(there, a...), append(back, b...)
				if len(a)+len(b) == 0 {
					return
				}
			}
		}
		write := r.wr(1, verbs.OpWrite, 1000)
		write.RemoteAddr += 8
		r.client.post(write, r.wr(2, verbs.OpFetchAdd, 8), r.wr(3, verbs.OpSendImm, 700), r.wr(4, verbs.OpRead, 600),
			r.wr(5, verbs.OpCompareSwap, 8), r.wr(6, verbs.OpWriteImm, 300), r.wr(7, verbs.OpSend, 0))
		carry()
		require.Equal(t, []uint64{1, 2, 3, 4, 5, 6, 7}, ids(r.client.send.take()))
		require.Len(t, r.server.recv.take(), 3)

		pattern(r.remote.Mem, 50)
		pattern(r.local.Mem, 51)
		pattern(box.Mem, 52)
		for i := range there {
			r.server.take(r.now, there[i])
			stale := r.server.transmit(r.now)
			r.client.take(r.now, stale...)
		}
		r.client.take(r.now, back...)
		for range 3 {
			r.server.take(r.now, there...)
		}
		r.client.take(r.now, r.server.transmit(r.now)...)
		assert.Equal(t, pattern(make([]byte, arenaLen), 50), r.remote.Mem)
		assert.Equal(t, pattern(make([]byte, arenaLen), 51), r.local.Mem)
		assert.Equal(t, pattern(make([]byte, 8192), 52), box.Mem)
		assert.Empty(t, r.client.send.take())
		assert.Empty(t, r.server.recv.take())
		assert.Empty(t, r.server.events)

		r.client.post(r.wr(8, verbs.OpWrite, 1000))
		carry()
		r.requireSent(8, verbs.StatusSuccess)
		require.Equal(t, r.local.Mem[:1000], r.remote.Mem[:1000])
	}
}

// An unknown opcode is refused only at the expected sequence number: a late one was never
// executed, and an early one causes a NAK for the gap.
func TestUnknownOpcodeOutOfTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	r.client.post(r.wr(1, verbs.OpWrite, 8))
	r.exchange()
	r.server.take(r.now, r.forged(0x15, 0, 0, 0))
	require.Empty(t, r.server.transmit(r.now))
	r.server.take(r.now, r.forged(0x15, 2, 0, 0))
	naks := r.server.transmit(r.now)
	require.Len(t, naks, 1)
	require.Equal(t, wire.Nak(wire.NakSequence), naks[0].AETH.Syndrome)
	require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
}

// A write longer than 2^31 bytes is refused before its memory is checked, even if a region
// were long enough; an unreliable connection drops it.
func TestLongestWrite(t *testing.T) {
	length := uint64(1<<31 + 1)
	mem := make([]byte, length) // of which only the beginning is touched
	for _, kind := range []verbs.QPType{verbs.RC, verbs.UC} {
		for total, taken := range map[uint32]bool{1 << 31: true, 1<<31 + 1: false} {
			r := newRig(t, options{kind: kind})
			clear(mem[:256])
			require.True(t, r.server.memory.Add(&Region{Key: 0x99, Base: remoteBase, Mem: mem, Domain: testDomain, Access: everyAccess}))
			p := r.forged(wire.RCWriteFirst.On(r.server.qp.service), 0, 256, total)
			p.RETH.RKey = 0x99
			r.server.take(r.now, p)
			require.Equal(t, taken, bytes.Equal(p.Payload, mem[:256]), "%v, %d bytes", kind, total)
			if kind == verbs.RC {
				require.Equal(t, taken, r.server.qp.State() == verbs.QPReadyToSend)
			}
		}
	}
}

package transport

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// A fuzzing input is a row of steps: a control byte, a length, and that many
// bytes of a datagram, without its ICRC.
const (
	stepToClient = 1 << iota // else to the server
	stepNearPSN              // the number counts from what is expected
	stepGrantedKey
	stepExchange // carry what both sides have to say, before
	stepExpire   // let a deadline pass, before
	stepPost     // post another request, before
	stepHint     // report the server's socket gone, before
	stepWindowKey
)

// fuzzed is a connection under load that a fuzzer talks into. Beside the region
// that is granted lie some that are not.
type fuzzed struct {
	*rig
	readOnly, noRemote, otherDomain *arena
	others                          *Window // of another queue pair, over noRemote
	own                             *Window // the client's
	box                             *arena
	posted, received                uint64
	completed, arrived              []uint64
}

func newFuzzed(t testing.TB, adaptive bool) *fuzzed {
	f := &fuzzed{rig: newRig(t, options{psn: 0xfffff8, peerPSN: 0xfffffc, initReads: 2, arena: 4096, rnrRetry: 7, adaptive: adaptive, controlled: adaptive})}
	m := f.server.memory
	f.readOnly = newArena(t, m, 0xa1, remoteBase+4096, 256, verbs.AccessRemoteRead)
	f.noRemote = newArena(t, m, 0xa2, remoteBase-256, 256, verbs.AccessLocalWrite|verbs.AccessMWBind)
	f.otherDomain = newArena(t, m, 0xa3, remoteBase, 256, everyAccess)
	f.otherDomain.Domain++
	window := f.newWindow(verbs.MWType2, windowKey)
	f.others, f.own = f.newWindow(verbs.MWType2, windowKey+1<<8), NewWindow(verbs.MWType2, testDomain, windowKey)
	require.True(t, f.client.memory.AddWindow(f.own))
	other := newEnd(t, 0x33, m, f.o)
	other.ready(f.o.attr(0x44, 0, 0))
	for _, b := range []struct {
		e *end
		b *verbs.MWBind
	}{
		{f.server, bindOf(window, f.remote.Region, windowKey, 1000, 2000, peerAccess)},
		{other, bindOf(f.others, f.noRemote.Region, windowKey+1<<8, 0, 256, peerAccess)},
	} {
		b.e.post(localWR(0, b.b))
		b.e.transmit(f.now)
		require.Equal(t, verbs.StatusSuccess, b.e.send.take()[0].Status)
	}
	f.box = newArena(t, m, 0xa4, 0x100, 2048, verbs.AccessLocalWrite)
	for i := range 2 {
		f.receive(i)
	}
	for range 9 {
		f.request()
	}
	return f
}

func (f *fuzzed) receive(slot int) {
	if _, err := f.server.qp.PostRecv([]verbs.RecvWR{{ID: f.received, SGL: []verbs.SGE{f.box.sge(slot*1024+8, 500), f.box.sge(slot*1024+600, 200)}}}); err == nil {
		f.received++
	}
}

// request posts one of every operation in turn; reads and atomics land in the
// first half of the client's memory.
func (f *fuzzed) request() {
	const kinds = 9
	op := verbs.Opcode(f.posted % kinds)
	n := 600
	switch f.posted % kinds {
	case 7, 8:
		key := windowKey | uint32(f.posted/kinds)&0xff
		wr := localWR(f.posted, bindOf(f.own, f.local.Region, key, 0, 600, peerAccess))
		if f.posted%kinds == 8 {
			wr = invalidation(f.posted, key)
		}
		if _, err := f.client.qp.PostSend([]verbs.SendWR{wr}); err == nil {
			f.posted++
		}
		return
	}
	if op == verbs.OpCompareSwap || op == verbs.OpFetchAdd {
		n = 8
	}
	if _, err := f.client.qp.PostSend([]verbs.SendWR{f.wr(f.posted, op, n)}); err == nil {
		f.posted++
	}
}

func (f *fuzzed) carry() {
	for range 4 {
		f.server.take(f.now, f.client.transmit(f.now)...)
		f.client.take(f.now, f.server.transmit(f.now)...)
	}
}

func (f *fuzzed) step(control byte, datagram []byte) {
	if control&stepPost != 0 {
		f.request()
		f.receive(int(f.received % 2))
	}
	if control&stepExpire != 0 {
		if at := f.client.qp.Deadline(); at != 0 {
			f.now = at
			f.client.qp.Timeout(at)
		}
	}
	if control&stepHint != 0 {
		f.client.qp.PeerUnreachable(f.now)
	}
	if control&stepExchange != 0 {
		f.carry()
	}
	var p wire.Packet
	if p.Parse(append(bytes.Clone(datagram), 0, 0, 0, 0)) != nil {
		return
	}
	to := f.server
	if control&stepToClient != 0 {
		to = f.client
	}
	if control&stepNearPSN != 0 {
		from := to.qp.expected
		if p.Opcode.HasAETH() || p.Opcode == wire.RCReadResponseMiddle {
			from = to.qp.unaPSN
		}
		p.PSN = wire.PSNAdd(from, int(int8(p.PSN)))
	}
	if control&stepGrantedKey != 0 {
		p.RETH.RKey, p.Atomic.RKey = remoteKey, remoteKey
	}
	if control&stepWindowKey != 0 {
		p.RETH.RKey, p.Atomic.RKey, p.InvalidateRKey = windowKey, windowKey, windowKey
	}
	to.qp.Receive(&p, f.now)
}

func (f *fuzzed) requireSane() {
	t := f.t
	for _, e := range []*end{f.client, f.server} {
		require.LessOrEqual(t, e.qp.responses.Len(), e.qp.responses.Depth())
		require.LessOrEqual(t, e.qp.sq.Len(), e.qp.sq.Depth())
		require.GreaterOrEqual(t, wire.PSNDiff(e.qp.maxPSN, e.qp.unaPSN), int32(0))
		require.GreaterOrEqual(t, wire.PSNDiff(e.qp.sendPSN, e.qp.unaPSN), int32(0))
		require.LessOrEqual(t, wire.PSNDiff(e.qp.sendPSN, e.qp.maxPSN), int32(0))
	}
	f.completed = append(f.completed, ids(f.client.send.take())...)
	f.arrived = append(f.arrived, ids(f.server.recv.take())...)
}

// requireSafe asserts that what nobody granted is as it was.
func (f *fuzzed) requireSafe() {
	t := f.t
	for _, a := range []*arena{f.local, f.remote, f.readOnly, f.noRemote, f.otherDomain, f.box} {
		a.requireGuards(t)
	}
	for _, a := range []*arena{f.readOnly, f.noRemote, f.otherDomain} {
		require.Equal(t, make([]byte, 256), a.Mem)
	}
	for slot := range 2 {
		b := f.box.Mem[slot*1024:]
		require.Equal(t, make([]byte, 8), b[:8])
		require.Equal(t, make([]byte, 92), b[508:600])
		require.Equal(t, make([]byte, 224), b[800:1024])
	}
	require.Equal(t, pattern(make([]byte, 4096), 1)[600:], f.local.Mem[600:], "where no result lands")
	require.NotNil(t, f.others.region, "a window of another queue pair is taken away")
	for i, id := range f.completed {
		require.Equal(t, uint64(i), id, "requests complete once and in order")
	}
	for i, id := range f.arrived {
		require.Equal(t, uint64(i), id, "receives complete once and in order")
	}
}

func FuzzReceive(f *testing.F) {
	step := func(control byte, p wire.Packet) []byte {
		n := p.Opcode.HeaderLen()
		b := make([]byte, 3+n, 3+n+len(p.Payload)+3)
		p.PutHeaders(b[3:])
		b = append(b, p.Payload...)
		for range p.Pad {
			b = append(b, 0)
		}
		b[0] = control
		binary.LittleEndian.PutUint16(b[1:], uint16(len(b)-3))
		return b
	}
	r := &rig{o: options{psn: 0xfffff8}}
	var all []byte
	for op := range wire.Opcode(0x20) {
		if !op.Known() {
			continue
		}
		n, total := 0, uint32(8)
		if op.HasPayload() {
			n, total = 256, 600
		}
		p := r.forged(op, 0, n, total)
		for _, control := range []byte{0, stepGrantedKey | stepNearPSN, stepToClient | stepNearPSN | stepHint | stepExpire, stepGrantedKey | stepNearPSN | stepExchange, stepWindowKey | stepNearPSN, stepWindowKey | stepNearPSN | stepExchange, stepToClient | stepNearPSN, stepToClient | stepExpire} {
			p.PSN = 0
			f.Add(step(control, p))
			p.PSN = 0xff // one back
			f.Add(step(control, p))
		}
		p.PSN = 0
		all = append(all, step(stepGrantedKey|stepNearPSN|stepPost, p)...)
	}
	f.Add(all)
	for _, s := range []wire.Syndrome{wire.Ack(31), wire.RNRNak(1), wire.Nak(wire.NakSequence), wire.Nak(wire.NakRemoteAccess)} {
		ack := wire.Packet{Opcode: wire.RCAcknowledge, PKey: defaultPKey, DestQP: clientQPN, AETH: wire.AETH{Syndrome: s}}
		f.Add(append(step(stepToClient|stepNearPSN|stepExchange, ack), step(stepToClient|stepNearPSN|stepExpire|stepPost, ack)...))
	}
	cnp := wire.Packet{Opcode: wire.CNP, PKey: defaultPKey, BECN: true}
	f.Add(append(step(stepToClient|stepPost, cnp), step(stepToClient|stepExpire|stepExchange|stepPost, cnp)...))
	f.Fuzz(func(t *testing.T, input []byte) {
		for _, adaptive := range []bool{false, true} {
			c, rest := newFuzzed(t, adaptive), input
			for range 64 {
				if len(rest) < 3 {
					break
				}
				control, n := rest[0], int(binary.LittleEndian.Uint16(rest[1:]))
				rest = rest[3:]
				n = min(n, len(rest))
				c.step(control, rest[:n])
				rest = rest[n:]
				c.requireSane()
			}
			c.carry()
			c.requireSane()
			c.requireSafe()
		}
	})
}

package srd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// FuzzReceive gives a device packets of any form, from an unknown sender and from a peer whose
// tokens it accepts, while requests are in flight. Nothing panics, a queue pair completes only
// requests that were posted to it, and memory stays bounded.
func FuzzReceive(f *testing.F) {
	for _, op := range []wire.Opcode{
		wire.SRDSend, wire.SRDSendImm, wire.SRDWrite, wire.SRDWriteImm, wire.SRDReadRequest, wire.SRDReadResponse,
		wire.SRDAcknowledge, wire.SRDNak, wire.SRDHello, wire.SRDHelloReply,
	} {
		p := wire.Packet{Opcode: op, PSN: 3, DestQP: 101, DETH: wire.DETH{QKey: testKey, SrcQP: 101}}
		p.SRDETH = wire.SRDETH{Source: 1, Target: 1, Floor: 1, MTU: 3}
		p.RETH = wire.RETH{VA: 1002 << 32, RKey: 1002, Length: 4096}
		p.Segments = wire.Segments{Size: 1024, Count: 4}
		b := make([]byte, op.HeaderLen())
		p.PutHeaders(b)
		if op.HasPayload() {
			b = append(b, 1, 2, 3, 4, 5, 6, 7, 8)
		}
		f.Add(append(append([]byte{uint8(len(b) + 4)}, b...), 0, 0, 0, 0))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		w, a, b := twoHosts(t, 1, faults{}, endOptions{depth: 16, recvDepth: 8, rnrRetry: 7})
		mem := a.h.arena(8192, everyAccess)
		b.h.arena(8192, everyAccess)
		ah := a.to(b.h)
		for range 4 {
			a.postRecv(verbs.RecvWR{ID: 9, SGL: []verbs.SGE{mem.sge(0, 100)}})
		}
		for op := verbs.OpSend; op <= verbs.OpRead; op++ {
			a.post(address(verbs.SendWR{ID: 7, Op: op, SGL: []verbs.SGE{mem.sge(0, 1000)}, RemoteAddr: 1001 << 32, RKey: 1001}, ah, b))
		}
		w.Pass(100 * time.Microsecond)
		from := Address{0, b.h.addr}
		var p wire.Packet
		sends, receives := 5-len(a.send.take()), 4
		for peer := true; len(stream) > 0; peer = !peer {
			n := min(int(stream[0]), len(stream)-1)
			datagram := stream[1 : 1+n]
			stream = stream[1+n:]
			if p.Parse(datagram) != nil || p.Opcode.Service() != wire.ServiceSRD {
				continue
			}
			c := a.t.contexts[from]
			if peer && c != nil {
				p.SRDETH.Source, p.SRDETH.Target = max(c.peer, 1), c.own
				p.PSN = wire.PSNAdd(c.una, int(p.PSN&0xff)-20)
				switch p.Opcode {
				case wire.SRDSend, wire.SRDSendImm, wire.SRDWrite, wire.SRDWriteImm, wire.SRDReadRequest:
					p.PSN = wire.PSNAdd(c.base, int(p.PSN&0xfff)-20)
				}
			}
			a.t.Receive(c, from, w.portOf(from.Peer), &p, w.Now)
			w.Pass(10 * time.Microsecond)
		}
		w.Pass(10 * time.Second)
		for _, wc := range a.send.take() {
			require.Equal(t, uint64(7), wc.ID)
			sends--
		}
		for _, wc := range a.recv.take() {
			if wc.ID == 9 {
				receives--
			}
		}
		require.GreaterOrEqual(t, sends, 0)
		require.GreaterOrEqual(t, receives, 0)
		require.LessOrEqual(t, a.t.Counters().Contexts, uint64(1))
		if c := a.t.contexts[from]; c != nil {
			require.LessOrEqual(t, len(c.slots), windowBits)
			require.LessOrEqual(t, c.naks.Len(), maxNaks)
		}
	})
}

package transport

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Control bytes of FuzzReceiveUnreliable: each precedes the length of a datagram
// without its ICRC, one byte in units of 4, and the datagram.
const (
	fuzzNextPSN = 1 << iota // the number is the one expected
	fuzzKey                 // the keys are the right ones
	fuzzReceive             // post a receive, before
)

// FuzzReceiveUnreliable feeds datagrams to an unreliable connection or to a
// datagram queue pair, by the first byte. Nothing but what was granted may be
// written, and receives complete in order.
func FuzzReceiveUnreliable(f *testing.F) {
	for _, kind := range []verbs.QPType{verbs.UC, verbs.UD} {
		r := newRig(f, options{kind: kind, arena: 4096})
		for i, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm} {
			for _, n := range []int{0, 5, 256, 600} {
				if kind == verbs.UD && (n > 256 || op > verbs.OpSendImm) {
					continue
				}
				r.client.post(r.datagramOr(uint64(i), op, n))
				input := []byte{byte(kind)}
				for _, p := range r.client.transmit(r.now) {
					b := make([]byte, p.Opcode.HeaderLen(), 512)
					p.PutHeaders(b)
					b = append(append(b, p.Payload...), make([]byte, p.Pad)...)
					input = append(append(input, fuzzNextPSN|fuzzKey|fuzzReceive, byte(len(b)/4)), b...)
				}
				f.Add(input)
				f.Add(append(bytes.Clone(input[:len(input)/2/4*4]), input...))
			}
		}
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) == 0 {
			return
		}
		kind := verbs.UC
		if input[0]&1 == 0 {
			kind = verbs.UD
		}
		r := newRig(t, options{kind: kind, recvDepth: 8, arena: 4096})
		denied := newArena(t, r.server.memory, remoteKey+1, remoteBase+4096, 256, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
		box := newArena(t, r.server.memory, remoteKey+2, 0x100, 1024, verbs.AccessLocalWrite)
		var posted, completed uint64
		for input = input[1:]; len(input) > 2; {
			control, n := input[0], min(4*int(input[1]), len(input)-2)
			datagram := append(bytes.Clone(input[2:2+n]), 0, 0, 0, 0)
			input = input[2+n:]
			if control&fuzzReceive != 0 {
				wr := verbs.RecvWR{ID: posted, SGL: []verbs.SGE{box.sge(8, 300), box.sge(400, 400)}}
				if k, _ := r.server.qp.PostRecv([]verbs.RecvWR{wr}); k == 1 {
					posted++
				}
			}
			var p wire.Packet
			if p.Parse(datagram) != nil {
				continue
			}
			if control&fuzzNextPSN != 0 {
				p.PSN = r.server.qp.expected
			}
			if control&fuzzKey != 0 {
				p.RETH.RKey, p.DETH.QKey = remoteKey, testKey
			}
			r.server.take(r.now, p)
			for _, wc := range r.server.recv.take() {
				require.Equal(t, completed, wc.ID)
				require.Equal(t, verbs.StatusSuccess, wc.Status)
				if wc.Opcode == verbs.WCRecv {
					require.LessOrEqual(t, wc.Bytes, uint32(700))
				}
				completed++
			}
		}
		require.LessOrEqual(t, completed, posted)
		require.Equal(t, verbs.QPReadyToSend, r.server.qp.State())
		require.Empty(t, r.server.transmit(r.now), "a response")
		require.Equal(t, make([]byte, 256), denied.Mem)
		for _, a := range []*arena{r.remote, denied, box} {
			a.requireGuards(t)
		}
		require.Equal(t, make([]byte, 8), box.Mem[:8])
		require.Equal(t, make([]byte, 92), box.Mem[308:400])
		require.Equal(t, make([]byte, 224), box.Mem[800:])
	})
}

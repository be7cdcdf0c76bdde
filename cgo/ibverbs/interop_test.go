//go:build linux && cgo && verbs

package ibverbs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

var sizes = []int{0, 1, 255, 256, 1023, 4096, 65537, 1 << 20}

var families = []string{"IPv4", "IPv6"}

// TestGuestOperations runs every operation of every transport service that both
// ends have, in both directions, over both families.
func TestGuestOperations(t *testing.T) {
	adapter, software := openAdapter(t), openSoft(t, soft.Faults{})
	for _, c := range []struct {
		name string
		a, b verbs.Device
	}{
		{"rxe to rxe", adapter, adapter},
		{"rxe to soft", adapter, software},
		{"soft to rxe", software, adapter},
	} {
		for _, family := range families {
			for _, srq := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, SRQ %v", c.name, family, srq), func(t *testing.T) {
					a, b := pair(t, c.a, c.b, config{family: family, srq: srq})
					for _, size := range sizes {
						testOperations(t, a, b, size)
					}
					testAtomics(t, a, b)
				})
			}
		}
	}
}

// half is where the second half of an end's memory begins.
const half = 2 << 20

func testOperations(t *testing.T, a, b *end, size int) {
	t.Helper()
	const imm = 0xdeadbeef
	source, target := a.mem.bytes[:size], b.mem.bytes[half:half+size]
	fresh := func(seed int) {
		fill(source, seed)
		clear(b.mem.bytes[half : half+size+8])
	}
	same := func(what string) {
		t.Helper()
		require.True(t, bytes.Equal(source, target), "%s of %d bytes: the data differs", what, size)
		require.Equal(t, make([]byte, 8), b.mem.bytes[half+size:half+size+8], "%s of %d bytes: written past the end", what, size)
	}

	for i, withImm := range []bool{false, true} {
		fresh(size + i)
		b.receive(verbs.RecvWR{ID: 7, SGL: b.mem.sgl(half, size)})
		wr := verbs.SendWR{ID: 8, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: a.mem.sgl(0, size)}
		want := verbs.WC{ID: 7, Opcode: verbs.WCRecv, Bytes: uint32(size), QPN: b.qp.Num()}
		if withImm {
			wr.Op, wr.Imm, want.HasImm, want.Imm = verbs.OpSendImm, imm, true, imm
		}
		a.send(wr)
		got := b.await(a)
		got.SrcQPN = 0 // for datagrams only; rxe has it always
		got.HasGRH = false
		require.Equal(t, want, got, "%v of %d bytes", wr.Op, size)
		wc := a.await(b)
		wc.Bytes = 0
		require.Equal(t, verbs.WC{ID: 8, Opcode: verbs.WCSend, QPN: a.qp.Num()}, wc)
		same(wr.Op.String())
	}

	for i, withImm := range []bool{false, true} {
		fresh(size + 2 + i)
		wr := verbs.SendWR{ID: 9, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: a.mem.sgl(0, size),
			RemoteAddr: b.mem.mr.Addr() + half, RKey: b.mem.mr.RKey()}
		if withImm {
			wr.Op, wr.Imm = verbs.OpWriteImm, imm
			b.receive(verbs.RecvWR{ID: 10})
		}
		a.send(wr)
		wc := a.await(b)
		wc.Bytes = 0
		require.Equal(t, verbs.WC{ID: 9, Opcode: verbs.WCWrite, QPN: a.qp.Num()}, wc, "%v of %d bytes", wr.Op, size)
		if withImm {
			got := b.await(a)
			got.SrcQPN, got.HasGRH = 0, false
			require.Equal(t, verbs.WC{ID: 10, Opcode: verbs.WCRecvWriteImm, Bytes: uint32(size), HasImm: true, Imm: imm, QPN: b.qp.Num()}, got)
		}
		same(wr.Op.String())
	}

	fill(target, size+4)
	clear(a.mem.bytes[:size+8])
	a.send(verbs.SendWR{ID: 11, Op: verbs.OpRead, Flags: verbs.FlagSignaled, SGL: a.mem.sgl(0, size),
		RemoteAddr: b.mem.mr.Addr() + half, RKey: b.mem.mr.RKey()})
	require.Equal(t, verbs.WC{ID: 11, Opcode: verbs.WCRead, Bytes: uint32(size), QPN: a.qp.Num()}, a.await(b), "read of %d bytes", size)
	require.True(t, bytes.Equal(source, target), "read of %d bytes: the data differs", size)
	require.Equal(t, make([]byte, 8), a.mem.bytes[size:size+8])
}

func testAtomics(t *testing.T, a, b *end) {
	t.Helper()
	word := func(e *end, offset int) uint64 { return binary.NativeEndian.Uint64(e.mem.bytes[offset:]) }
	binary.NativeEndian.PutUint64(b.mem.bytes[half:], 40)
	for i, c := range []struct {
		op               verbs.Opcode
		opcode           verbs.WCOpcode
		compareAdd, swap uint64
		old, left        uint64
	}{
		{verbs.OpFetchAdd, verbs.WCFetchAdd, 2, 0, 40, 42},
		{verbs.OpCompareSwap, verbs.WCCompareSwap, 42, 1 << 63, 42, 1 << 63},
		{verbs.OpCompareSwap, verbs.WCCompareSwap, 42, 99, 1 << 63, 1 << 63},
		{verbs.OpFetchAdd, verbs.WCFetchAdd, 1 << 63, 0, 1 << 63, 0},
	} {
		a.send(verbs.SendWR{ID: uint64(i), Op: c.op, Flags: verbs.FlagSignaled, SGL: a.mem.sgl(16, 8),
			RemoteAddr: b.mem.mr.Addr() + half, RKey: b.mem.mr.RKey(), CompareAdd: c.compareAdd, Swap: c.swap})
		wc := a.await(b)
		wc.Bytes = 0
		require.Equal(t, verbs.WC{ID: uint64(i), Opcode: c.opcode, QPN: a.qp.Num()}, wc)
		require.Equal(t, c.old, word(a, 16), "%v: what was there", c.op)
		require.Equal(t, c.left, word(b, half), "%v: what is there now", c.op)
	}
}

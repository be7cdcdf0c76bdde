package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

func allOpcodes() (known []Opcode) {
	for i := range 256 {
		if Opcode(i).Known() {
			known = append(known, Opcode(i))
		}
	}
	return known
}

// hasPart returns a function that reports whether an opcode has a header.
func hasPart(part uint16) func(Opcode) bool {
	return func(o Opcode) bool { return opcodeInfos[o].parts&part != 0 }
}

// trim leaves in p only what its opcode has, so that packets can be compared.
func trim(p Packet) Packet {
	if !p.Opcode.HasRETH() {
		p.RETH = RETH{}
	}
	if !p.Opcode.HasAETH() {
		p.AETH = AETH{}
	}
	if !p.Opcode.HasImm() {
		p.Imm = 0
	}
	if !p.Opcode.HasAtomicETH() {
		p.Atomic = AtomicETH{}
	}
	if !hasPart(hasAtomicAck)(p.Opcode) {
		p.AtomicAck = 0
	}
	if !hasPart(hasDETH)(p.Opcode) {
		p.DETH = DETH{}
	}
	if !hasPart(hasXRCETH)(p.Opcode) {
		p.SRQN = 0
	}
	if !p.Opcode.HasIETH() {
		p.InvalidateRKey = 0
	}
	if !hasPart(hasSRDETH)(p.Opcode) {
		p.SRDETH = SRDETH{}
	}
	if !hasPart(hasOffset)(p.Opcode) {
		p.Offset = 0
	}
	if !hasPart(hasSegments)(p.Opcode) {
		p.Segments = Segments{}
	}
	if !p.Opcode.HasPayload() {
		p.Payload, p.Pad = nil, 0
	} else {
		p.Pad = uint8(-len(p.Payload)) & 3
	}
	return p
}

func drawPacket(t *rapid.T, op Opcode) Packet {
	u24 := rapid.Uint32Range(0, PSNMask)
	u32, u64, flag := rapid.Uint32(), rapid.Uint64(), rapid.Bool()
	segments := Segments{Size: rapid.SampledFrom([]uint16{256, 512, 1024, 2048, 4096}).Draw(t, "size"), Count: rapid.Uint16Range(1, MaxSegments).Draw(t, "count")}
	length := rapid.Uint32Range(uint32(segments.Size)*MaxSegments, 1<<32-1).Draw(t, "length")
	return trim(Packet{
		Opcode: op,
		SRDETH: SRDETH{
			Source: rapid.Uint32Range(1, 1<<32-1).Draw(t, "source"), Target: u32.Draw(t, "target"),
			Floor: rapid.Uint16().Draw(t, "floor"), Unsolicited: flag.Draw(t, "unsolicited"), MTU: rapid.Uint8Range(1, 5).Draw(t, "mtu"),
		},
		Offset: rapid.Uint32Range(0, length-uint32(segments.Size)*MaxSegments).Draw(t, "offset"), Segments: segments,
		Solicited: flag.Draw(t, "solicited"), MigReq: flag.Draw(t, "migreq"), AckReq: flag.Draw(t, "ackreq"),
		FECN: flag.Draw(t, "fecn"), BECN: flag.Draw(t, "becn"),
		PKey: rapid.Uint16().Draw(t, "pkey"), DestQP: u24.Draw(t, "destqp"), PSN: u24.Draw(t, "psn"),
		RETH:           RETH{VA: u64.Draw(t, "va"), RKey: u32.Draw(t, "rkey"), Length: length},
		AETH:           AETH{Syndrome: Syndrome(rapid.Byte().Draw(t, "syndrome")), MSN: u24.Draw(t, "msn")},
		Imm:            u32.Draw(t, "imm"),
		Atomic:         AtomicETH{u64.Draw(t, "ava"), u32.Draw(t, "arkey"), u64.Draw(t, "swap"), u64.Draw(t, "compare")},
		AtomicAck:      u64.Draw(t, "original"),
		DETH:           DETH{QKey: u32.Draw(t, "qkey"), SrcQP: u24.Draw(t, "srcqp")},
		InvalidateRKey: u32.Draw(t, "invalidate"),
		SRQN:           u24.Draw(t, "srqn"),
		Payload:        append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "payload")...),
	})
}

// samplePacket has a different value in every byte of every field.
func samplePacket(op Opcode) Packet {
	return trim(Packet{
		Opcode: op, Solicited: true, AckReq: true, PKey: 0xffff, DestQP: 0x123456, PSN: 0xabcdef,
		RETH:           RETH{VA: 0x0102030405060708, RKey: 0x11223344, Length: 0x000a0b0c},
		AETH:           AETH{Syndrome: Ack(AckUnlimited), MSN: 0x556677},
		Imm:            0xdeadbeef,
		Atomic:         AtomicETH{VA: 0x1112131415161718, RKey: 0x21222324, SwapAdd: 0x3132333435363738, Compare: 0x4142434445464748},
		AtomicAck:      0x5152535455565758,
		DETH:           DETH{QKey: 0x80010203, SrcQP: 0x654321},
		InvalidateRKey: 0x99aabbcc,
		SRQN:           0x616263,
		SRDETH:         SRDETH{Source: 0xa1a2a3a4, Target: 0xb1b2b3b4, Floor: 0xc1c2, Unsolicited: true, MTU: 5},
		Offset:         0x00010e0f,
		Segments:       Segments{Size: 4096, Count: 9},
		Payload:        []byte("thirteen byte"),
	})
}

// encode makes the datagram of p, by the functions under test.
func encode(t require.TestingT, p Packet, flow Flow, ident uint16) []byte {
	b := make([]byte, p.Opcode.HeaderLen(), MaxDatagramLen)
	require.Equal(t, len(b), p.PutHeaders(b))
	tail := append(append([]byte{}, p.Payload...), make([]byte, p.Pad)...)
	crc := flow.ICRCStart(ident, len(b)+len(tail)+ICRCLen, b)
	crc = ICRCUpdate(crc, p.Payload)
	crc = ICRCUpdate(crc, make([]byte, p.Pad))
	b = append(append(b, tail...), 0, 0, 0, 0)
	PutICRC(b[len(b)-ICRCLen:], ICRCFinish(crc))
	return b
}

// ipPacket wraps a UDP payload in IP and UDP headers as a host would send them,
// independently of Flow.
func ipPacket(src, dst netip.AddrPort, ident uint16, payload []byte) []byte {
	be := binary.BigEndian
	from, to := src.Addr().Unmap(), dst.Addr().Unmap()
	udp := be.AppendUint16(nil, src.Port())
	udp = be.AppendUint16(udp, dst.Port())
	udp = be.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(udp, 0, 0)
	udp = append(udp, payload...)
	pseudo := append(append([]byte{0, 17}, from.AsSlice()...), to.AsSlice()...)
	pseudo = be.AppendUint16(pseudo, uint16(len(udp)))
	be.PutUint16(udp[6:], internetChecksum(append(pseudo, udp...)))

	var ip []byte
	if from.Is4() {
		ip = append(ip, 0x45, 0x02)
		ip = be.AppendUint16(ip, uint16(20+len(udp)))
		ip = be.AppendUint16(ip, ident)
		ip = append(ip, 0x40, 0, 64, 17, 0, 0)
		ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
		be.PutUint16(ip[10:], internetChecksum(ip))
	} else {
		ip = append(ip, 0x60, 0x2a, 0xbc, 0xde)
		ip = be.AppendUint16(ip, uint16(len(udp)))
		ip = append(ip, 17, 64)
		ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
	}
	return append(ip, udp...)
}

// internetChecksum is that of RFC 1071.
func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i, x := range b {
		sum += uint32(x) << (8 * uint(1-i%2))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// referenceICRC is the ICRC of a whole IP packet, by the letter of the standard:
// every byte masked in place, then long division bit by bit, in the normal bit
// order (polynomial 0x04c11db7).
func referenceICRC(packet []byte) uint32 {
	b := append(bytes.Repeat([]byte{0xff}, 8), packet[:len(packet)-4]...)
	udp := 8 + 20
	if b[8]>>4 == 4 {
		b[8+1], b[8+8], b[8+10], b[8+11] = 0xff, 0xff, 0xff, 0xff
	} else {
		udp = 8 + 40
		b[8] |= 0x0f
		b[8+1], b[8+2], b[8+3], b[8+7] = 0xff, 0xff, 0xff, 0xff
	}
	b[udp+6], b[udp+7], b[udp+8+4] = 0xff, 0xff, 0xff
	r := uint32(0xffffffff)
	for _, x := range b {
		for i := range 8 {
			top := r>>31 ^ uint32(x>>i&1)
			r <<= 1
			if top != 0 {
				r ^= 0x04c11db7
			}
		}
	}
	return ^bits.Reverse32(r)
}

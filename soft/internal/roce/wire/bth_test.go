package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBTHBytes(t *testing.T) {
	// IBTA 9.2: opcode | SE M pad TVer | P_Key | F B reserved |
	// destination QP | A reserved | PSN.
	for _, tt := range []struct {
		packet Packet
		want   string
	}{
		{Packet{Opcode: RCSendOnly}, "04 00 0000 00 000000 00 000000"},
		{Packet{Opcode: RCSendOnly, Solicited: true}, "04 80 0000 00 000000 00 000000"},
		{Packet{Opcode: RCSendOnly, MigReq: true}, "04 40 0000 00 000000 00 000000"},
		{Packet{Opcode: RCSendOnly, Pad: 3}, "04 30 0000 00 000000 00 000000"},
		{Packet{Opcode: RCSendOnly, Version: 5}, "04 05 0000 00 000000 00 000000"},
		{Packet{Opcode: RCSendOnly, PKey: 0xfedc}, "04 00 fedc 00 000000 00 000000"},
		{Packet{Opcode: RCSendOnly, FECN: true}, "04 00 0000 80 000000 00 000000"},
		{Packet{Opcode: RCSendOnly, BECN: true}, "04 00 0000 40 000000 00 000000"},
		{Packet{Opcode: RCSendOnly, DestQP: 0x123456}, "04 00 0000 00 123456 00 000000"},
		{Packet{Opcode: RCSendOnly, AckReq: true}, "04 00 0000 00 000000 80 000000"},
		{Packet{Opcode: RCSendOnly, PSN: 0x789abc}, "04 00 0000 00 000000 00 789abc"},
	} {
		var b [BTHLen]byte
		tt.packet.putBTH(&b)
		assert.Equal(t, unhex(t, tt.want), b[:])
		var back Packet
		back.getBTH(&b)
		assert.Equal(t, tt.packet, back)
	}
}

func TestBTHIgnoresReservedBits(t *testing.T) {
	var p Packet
	p.getBTH((*[BTHLen]byte)(unhex(t, "04 00 0000 3f 000001 7f 000002")))
	assert.Equal(t, Packet{Opcode: RCSendOnly, DestQP: 1, PSN: 2}, p)
}

func TestBTHMasksWideValues(t *testing.T) {
	p := Packet{Opcode: RCSendOnly, Pad: 0xff, Version: 0xf0, DestQP: 0xff000001, PSN: 0x7f000002}
	var b [BTHLen]byte
	p.putBTH(&b)
	assert.Equal(t, unhex(t, "04 30 0000 00 000001 00 000002"), b[:])
}

// Nothing of an earlier packet is in the headers of the next one that has no more than those.
func TestBegin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used := drawPacket(t, rapid.SampledFrom(allOpcodes()).Draw(t, "opcode"))
		used.Begin(0xffff, 5, 9)
		fresh := Packet{MigReq: true, PKey: 0xffff, DestQP: 5, PSN: 9}
		used.Opcode, fresh.Opcode = RCSendOnly, RCSendOnly
		var a, b [BTHLen]byte
		used.PutHeaders(a[:])
		fresh.PutHeaders(b[:])
		require.Equal(t, b, a)
	})
}

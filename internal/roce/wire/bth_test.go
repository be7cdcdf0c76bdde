package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
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

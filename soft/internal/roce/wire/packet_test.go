package wire

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	src4 = netip.MustParseAddrPort("192.0.2.1:49152")
	dst4 = netip.MustParseAddrPort("198.51.100.7:4791")
	src6 = netip.MustParseAddrPort("[2001:db8::1]:49153")
	dst6 = netip.MustParseAddrPort("[2001:db8:1::2]:4791")
)

func TestPacketRoundTrip(t *testing.T) {
	flow := NewFlow(src4, dst4)
	for _, op := range allOpcodes() {
		t.Run(op.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := drawPacket(t, op)
				datagram := encode(t, p, flow, 0)
				var back Packet
				require.NoError(t, back.Parse(datagram))
				require.Equal(t, p, back)

				dirty := drawPacket(t, RCCompareSwap)
				require.NoError(t, dirty.Parse(datagram))
				require.Equal(t, p, trim(dirty), "a used Packet")
			})
		})
	}
}

func TestPacketHeaderOrder(t *testing.T) {
	// Where two extension headers follow, their order is that of IBTA 9.2,
	// table 38.
	for op, want := range map[Opcode]string{
		RCWriteOnlyImm:      "0b b0 ffff 00 123456 80 abcdef  0102030405060708 11223344 000a0b0c  deadbeef",
		RCAtomicAcknowledge: "12 80 ffff 00 123456 80 abcdef  1f 556677  5152535455565758",
		UDSendOnlyImm:       "65 b0 ffff 00 123456 80 abcdef  80010203 00 654321  deadbeef",
		// Ours.
		SRDWriteImm:    "eb b0 ffff 00 123456 80 abcdef  a1a2a3a4 b1b2b3b4 c1c2 01 05  80010203 00 654321  0102030405060708 11223344 000a0b0c  00010e0f  deadbeef",
		SRDReadRequest: "ec 80 ffff 00 123456 80 abcdef  a1a2a3a4 b1b2b3b4 c1c2 01 05  80010203 00 654321  0102030405060708 11223344 000a0b0c  00010e0f  1000 0009",

		RCSendOnlyInvalidate: "17 b0 ffff 00 123456 80 abcdef  99aabbcc",
	} {
		p := samplePacket(op)
		b := make([]byte, MaxHeaderLen)
		assert.Equal(t, unhex(t, want), b[:p.PutHeaders(b)])
	}
}

func TestPutHeadersRefuses(t *testing.T) {
	for _, op := range allOpcodes() {
		p := samplePacket(op)
		b := make([]byte, op.HeaderLen()-1)
		assert.Zero(t, p.PutHeaders(b), "%v", op)
		assert.Equal(t, make([]byte, len(b)), b, "%v", op)
	}
	p := Packet{Opcode: 0x15}
	assert.Zero(t, p.PutHeaders(make([]byte, MaxHeaderLen)))
	assert.Zero(t, p.PutHeaders(nil))
}

func TestPayloadAliasesDatagram(t *testing.T) {
	datagram := encode(t, samplePacket(RCSendOnly), NewFlow(src4, dst4), 0)
	var p Packet
	require.NoError(t, p.Parse(datagram))
	assert.Same(t, &datagram[BTHLen], &p.Payload[0])
	assert.Equal(t, len(p.Payload), cap(p.Payload), "an append must not reach the padding")
}

func TestParseErrors(t *testing.T) {
	flow := NewFlow(src4, dst4)
	valid := func(op Opcode) []byte { return encode(t, samplePacket(op), flow, 0) }
	change := func(op Opcode, at int, b byte) []byte {
		d := valid(op)
		d[at] = b
		return d
	}
	zero := func(op Opcode, at, n int) []byte {
		d := valid(op)
		clear(d[at : at+n])
		return d
	}
	long := samplePacket(RCSendOnly)
	long.Payload, long.Pad = make([]byte, MaxPayloadLen+1), 3
	for _, tt := range []struct {
		name     string
		datagram []byte
		want     error
	}{
		{"nothing", nil, ErrTruncated},
		{"no room for an ICRC", valid(RCSendOnly)[:12], ErrTruncated},
		{"no room for the extension header", valid(RCWriteOnly)[:28], ErrTruncated},
		{"odd length", valid(RCSendOnly)[:17], ErrUnaligned},
		{"unknown opcode", change(RCSendOnly, 0, 0x15), ErrOpcode},
		{"version", change(RCSendOnly, 1, 0x31), ErrVersion},
		{"padding without payload", []byte{0x04, 0x10, 15: 0}, ErrPad},
		{"payload of an acknowledgement", append(valid(RCAcknowledge), 0, 0, 0, 0), ErrPayload},
		{"payload of a read request", append(valid(RCReadRequest), 0, 0, 0, 0), ErrPayload},
		{"padding of an acknowledgement", change(RCAcknowledge, 1, 0x10), ErrPayload},
		{"no token", zero(SRDHello, 12, 4), ErrSRD},
		{"reserved flags", change(SRDSend, 22, 0x02), ErrSRD},
		{"MTU code 0", change(SRDSend, 23, 0), ErrSRD},
		{"MTU code 6", change(SRDSend, 23, 6), ErrSRD},
		{"no segments", change(SRDReadRequest, 55, 0), ErrSRD},
		{"too many segments", change(SRDReadRequest, 55, 17), ErrSRD},
		{"segments of no MTU", change(SRDReadRequest, 52, 0x11), ErrSRD},
		{"segments behind the end", change(SRDReadRequest, 49, 0x0a), ErrSRD},
		{"offset behind the end", change(SRDWrite, 48, 1), ErrSRD},
		{"payload too long", encode(t, long, flow, 0), ErrTooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p Packet
			err := p.Parse(tt.datagram)
			assert.ErrorIs(t, err, tt.want)
			assert.ErrorIs(t, err, ErrMalformed)
			assert.Zero(t, testing.AllocsPerRun(10, func() { _ = p.Parse(tt.datagram) }))
		})
	}
}

func TestParseEveryTruncation(t *testing.T) {
	for _, op := range allOpcodes() {
		datagram := encode(t, samplePacket(op), NewFlow(src4, dst4), 0)
		for n := range op.HeaderLen() + ICRCLen {
			var p Packet
			assert.ErrorIs(t, p.Parse(datagram[:n]), ErrMalformed, "%v, %d bytes", op, n)
		}
	}
}

func TestParseLongestPayload(t *testing.T) {
	p := Packet{Opcode: RCWriteOnlyImm, Payload: make([]byte, MaxPayloadLen)}
	flow := NewFlow(src4, dst4)
	datagram := encode(t, p, flow, 0)
	var back Packet
	require.NoError(t, back.Parse(datagram))
	assert.Len(t, back.Payload, MaxPayloadLen)
	assert.True(t, flow.CheckICRC(datagram, 0))
}

func TestIsRequestThenAck(t *testing.T) {
	t.Parallel()
	packet := func(o Opcode, qpn uint32) []byte {
		p := Packet{Opcode: o, PKey: 0xffff, DestQP: qpn, AETH: AETH{Syndrome: Ack(AckUnlimited)}}
		b := make([]byte, o.HeaderLen()+ICRCLen)
		p.PutHeaders(b)
		return b
	}
	requests := []Opcode{
		RCSendFirst, RCSendMiddle, RCSendLast, RCSendLastImm, RCSendOnly, RCSendOnlyImm,
		RCWriteFirst, RCWriteMiddle, RCWriteLast, RCWriteLastImm, RCWriteOnly, RCWriteOnlyImm,
		RCReadRequest, RCCompareSwap, RCFetchAdd, RCSendLastInvalidate, RCSendOnlyInvalidate, RCAtomicWrite,
	}
	ack := packet(RCAcknowledge, 0x123456)
	for i := range 256 {
		if o := Opcode(i); o.Known() {
			require.Equal(t, slices.Contains(requests, o), IsRequestThenAck(packet(o, 0x123456), ack), "%v", o)
			require.Equal(t, o == RCAcknowledge, IsRequestThenAck(packet(RCWriteOnly, 0x123456), packet(o, 0x123456)), "%v", o)
		}
	}
	write := packet(RCWriteOnly, 0x123456)
	for _, other := range []uint32{0x123457, 0x123556, 0x133456, 0} {
		require.False(t, IsRequestThenAck(write, packet(RCAcknowledge, other)))
	}
	write[4], ack[4] = 0x40, 0 // BECN is not of the number
	require.True(t, IsRequestThenAck(write, ack))
	for n := range BTHLen {
		require.False(t, IsRequestThenAck(write[:n], ack))
		require.False(t, IsRequestThenAck(write, ack[:n+1]))
	}
	for _, s := range []Syndrome{Nak(NakRemoteAccess), Nak(NakSequence), RNRNak(3), 0xff} {
		ack[BTHLen] = byte(s)
		require.False(t, IsRequestThenAck(write, ack), "%v", s)
	}
}

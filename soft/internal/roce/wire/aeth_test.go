package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAETHBytes(t *testing.T) {
	h := AETH{Syndrome: RNRNak(12), MSN: 0xff010203}
	var b [AETHLen]byte
	h.put(&b)
	assert.Equal(t, unhex(t, "2c 010203"), b[:])
	var back AETH
	back.get(&b)
	assert.Equal(t, AETH{Syndrome: 0x2c, MSN: 0x010203}, back)
}

func TestSyndrome(t *testing.T) {
	for _, tt := range []struct {
		syndrome Syndrome
		value    uint8
		kind     SyndromeKind
		text     string
	}{
		{Ack(0), 0x00, KindAck, "ACK (credit code 0)"},
		{Ack(AckUnlimited), 0x1f, KindAck, "ACK (credit code 31)"},
		{RNRNak(0), 0x20, KindRNRNak, "RNR NAK (655.36ms)"},
		{RNRNak(31), 0x3f, KindRNRNak, "RNR NAK (491.52ms)"},
		{Nak(NakSequence), 0x60, KindNak, "NAK (PSN sequence error)"},
		{Nak(NakInvalidRequest), 0x61, KindNak, "NAK (invalid request)"},
		{Nak(NakRemoteAccess), 0x62, KindNak, "NAK (remote access error)"},
		{Nak(NakRemoteOperation), 0x63, KindNak, "NAK (remote operational error)"},
		{Nak(NakInvalidRD), 0x64, KindNak, "NAK (invalid RD request)"},
		{Nak(9), 0x69, KindNak, "NAK (NAK code 9)"},
		{0x45, 0x45, KindReserved, "syndrome 0x45"},
		{0x80, 0x80, KindReserved, "syndrome 0x80"},
		{0xff, 0xff, KindReserved, "syndrome 0xff"},
	} {
		assert.Equal(t, tt.value, uint8(tt.syndrome))
		assert.Equal(t, tt.kind, tt.syndrome.Kind(), "%#x", tt.value)
		assert.Equal(t, tt.text, tt.syndrome.String())
	}
	for v := range uint8(32) {
		assert.Equal(t, v, Ack(v).Credits())
		assert.Equal(t, v, RNRNak(v).Timer())
		assert.Equal(t, NakCode(v), Nak(NakCode(v)).Code())
	}
	assert.Equal(t, KindAck, Ack(0xff).Kind(), "a wide value stays in its field")
	assert.Equal(t, "RNR NAK", KindRNRNak.String())
	assert.Equal(t, "NAK", KindNak.String())
	assert.Equal(t, "ACK", KindAck.String())
	assert.Equal(t, "reserved", KindReserved.String())
}

func TestRNRTimer(t *testing.T) {
	// IBTA table 46, in milliseconds.
	for code, ms := range []float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	} {
		assert.Equal(t, time.Duration(ms*1000+0.5)*time.Microsecond, RNRTimer(uint8(code)), "code %d", code)
	}
	assert.Equal(t, RNRTimer(3), RNRTimer(35))
}

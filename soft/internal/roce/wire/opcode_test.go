package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOpcodeHeaderLengths(t *testing.T) {
	// IBTA table 38: the base header's 12 bytes and the extensions, added by hand.
	want := map[Opcode]int{
		0x00: 12, 0x01: 12, 0x02: 12, 0x03: 16, 0x04: 12, 0x05: 16,
		0x06: 28, 0x07: 12, 0x08: 12, 0x09: 16, 0x0a: 28, 0x0b: 32,
		0x0c: 28, 0x0d: 16, 0x0e: 12, 0x0f: 16, 0x10: 16,
		0x11: 16, 0x12: 24, 0x13: 40, 0x14: 40, 0x16: 16, 0x17: 16,
		0x1d: 28, // annex A19
		0x20: 12, 0x21: 12, 0x22: 12, 0x23: 16, 0x24: 12, 0x25: 16,
		0x26: 28, 0x27: 12, 0x28: 12, 0x29: 16, 0x2a: 28, 0x2b: 32,
		0x64: 20, 0x65: 24,
		0x81: 28, // annex A17.9.3: 16 reserved bytes
		// Annex A14: the same as 0x00 to 0x1d, and 4 bytes more of a request.
		0xa0: 16, 0xa1: 16, 0xa2: 16, 0xa3: 20, 0xa4: 16, 0xa5: 20,
		0xa6: 32, 0xa7: 16, 0xa8: 16, 0xa9: 20, 0xaa: 32, 0xab: 36,
		0xac: 32, 0xad: 16, 0xae: 12, 0xaf: 16, 0xb0: 16,
		0xb1: 16, 0xb2: 24, 0xb3: 44, 0xb4: 44, 0xb6: 20, 0xb7: 20,
		0xbd: 32,
		// Our own opcodes.
		0xe4: 32, 0xe5: 36, 0xea: 52, 0xeb: 56, 0xec: 56, 0xf0: 24, 0xf1: 24, 0xf2: 28, 0xf8: 24, 0xf9: 24,
	}
	longest := 0
	for i := range 256 {
		op := Opcode(i)
		n, known := want[op]
		assert.Equal(t, known, op.Known(), "%v", op)
		assert.Equal(t, n, op.HeaderLen(), "%v", op)
		longest = max(longest, op.HeaderLen())
	}
	assert.Equal(t, MaxHeaderLen, longest)
}

func TestOpcodeParts(t *testing.T) {
	for _, tt := range []struct {
		has  func(Opcode) bool
		want []Opcode
	}{
		{Opcode.HasRETH, []Opcode{RCWriteFirst, RCWriteOnly, RCWriteOnlyImm, RCReadRequest, RCAtomicWrite, UCWriteFirst, UCWriteOnly, UCWriteOnlyImm, SRDWrite, SRDWriteImm, SRDReadRequest}},
		{Opcode.HasAETH, []Opcode{RCReadResponseFirst, RCReadResponseLast, RCReadResponseOnly, RCAcknowledge, RCAtomicAcknowledge, SRDNak}},
		{Opcode.HasImm, []Opcode{RCSendLastImm, RCSendOnlyImm, RCWriteLastImm, RCWriteOnlyImm,
			UCSendLastImm, UCSendOnlyImm, UCWriteLastImm, UCWriteOnlyImm, UDSendOnlyImm, SRDSendImm, SRDWriteImm}},
		{Opcode.HasAtomicETH, []Opcode{RCCompareSwap, RCFetchAdd}},
		{hasPart(hasAtomicAck), []Opcode{RCAtomicAcknowledge}},
		{hasPart(hasDETH), []Opcode{UDSendOnly, UDSendOnlyImm, SRDSend, SRDSendImm, SRDWrite, SRDWriteImm, SRDReadRequest}},
		{hasPart(hasSRDETH), []Opcode{SRDSend, SRDSendImm, SRDWrite, SRDWriteImm, SRDReadRequest, SRDReadResponse, SRDAcknowledge, SRDNak, SRDHello, SRDHelloReply}},
		{hasPart(hasOffset), []Opcode{SRDWrite, SRDWriteImm, SRDReadRequest}},
		{hasPart(hasSegments), []Opcode{SRDReadRequest}},
		{Opcode.IsReadResponse, []Opcode{RCReadResponseFirst, RCReadResponseMiddle, RCReadResponseLast, RCReadResponseOnly, SRDReadResponse}},
		{Opcode.HasIETH, []Opcode{RCSendLastInvalidate, RCSendOnlyInvalidate}},
	} {
		var got []Opcode
		for i := range 256 {
			if Opcode(i).Service() == ServiceXRC {
				assert.Equal(t, tt.has(Opcode(i).Operation()), tt.has(Opcode(i)), Opcode(i))
				continue
			}
			if tt.has(Opcode(i)) {
				got = append(got, Opcode(i))
			}
		}
		assert.Equal(t, tt.want, got)
	}
	var bare []Opcode
	for _, op := range allOpcodes() {
		if !op.HasPayload() && op.Service() != ServiceXRC {
			bare = append(bare, op)
		}
	}
	assert.Equal(t, []Opcode{RCReadRequest, RCAcknowledge, RCAtomicAcknowledge, RCCompareSwap, RCFetchAdd, CNP, SRDReadRequest, SRDNak, SRDHello, SRDHelloReply}, bare)
}

func TestOpcodeString(t *testing.T) {
	seen := map[string]bool{}
	for _, op := range allOpcodes() {
		assert.NotContains(t, op.String(), "opcode", "no name for %#x", uint8(op))
		assert.False(t, seen[op.String()], "%v twice", op)
		seen[op.String()] = true
	}
	assert.Equal(t, "RC RDMA WRITE Only", RCWriteOnly.String())
	assert.Equal(t, "XRC RDMA WRITE Only", RCWriteOnly.On(ServiceXRC).String())
	assert.Equal(t, "opcode 0x15", Opcode(0x15).String())
	assert.Equal(t, "opcode 0x0", Opcode(0).String()[:0]+"opcode 0x0")
}

func TestOpcodeService(t *testing.T) {
	for _, c := range []struct {
		opcode, operation Opcode
		service           Service
	}{
		{RCSendLastImm, RCSendLastImm, ServiceRC}, {RCFetchAdd, RCFetchAdd, ServiceRC},
		{UCSendFirst, RCSendFirst, ServiceUC}, {UCWriteOnlyImm, RCWriteOnlyImm, ServiceUC},
		{0xa4, RCSendOnly, ServiceXRC}, {0xb1, RCAcknowledge, ServiceXRC},
		{UDSendOnly, RCSendOnly, ServiceUD}, {UDSendOnlyImm, RCSendOnlyImm, ServiceUD},
	} {
		assert.Equal(t, c.service, c.opcode.Service(), c.opcode)
		assert.Equal(t, c.operation, c.opcode.Operation(), c.opcode)
		assert.Equal(t, c.opcode, c.operation.On(c.service), c.opcode)
	}
}

// Opcodes of MRC (multipath RC, OCP 1.0) are not known: its packets are none of ours.
func TestOpcodesOfMRC(t *testing.T) {
	for _, op := range []Opcode{0xca, 0xcb, 0xd1, 0xd8, 0xd9} {
		assert.False(t, op.Known(), op)
		assert.NotEqual(t, ServiceSRD, op.Service(), op)
	}
}

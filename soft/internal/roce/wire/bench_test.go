package wire

import (
	"fmt"
	"net/netip"
	"testing"
)

// benchSizes are the UDP payload lengths of an 8-byte write and of a full
// middle packet.
var benchSizes = []struct{ datagram, header int }{
	{BTHLen + RETHLen + 8 + ICRCLen, BTHLen + RETHLen},
	{BTHLen + 4096 + ICRCLen, BTHLen},
}

func benchDatagram(b *testing.B, n, header int, flow Flow) []byte {
	op := RCWriteMiddle
	if header > BTHLen {
		op = RCWriteOnly
	}
	p := Packet{Opcode: op, Payload: make([]byte, n-header-ICRCLen)}
	return encode(b, p, flow, 0)
}

func BenchmarkICRC(b *testing.B) {
	flow := NewFlow(src4, dst4)
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("%dB", size.datagram), func(b *testing.B) {
			datagram := benchDatagram(b, size.datagram, size.header, flow)
			header, payload := datagram[:size.header], datagram[size.header:size.datagram-ICRCLen]
			b.SetBytes(int64(size.datagram))
			b.ReportAllocs()
			for b.Loop() {
				crc := flow.ICRCStart(0, size.datagram, header)
				crc = ICRCUpdate(crc, payload)
				PutICRC(datagram[size.datagram-ICRCLen:], ICRCFinish(crc))
			}
		})
	}
}

func BenchmarkCheckICRC(b *testing.B) {
	for _, flow := range []struct {
		name     string
		src, dst netip.AddrPort
		hint     uint16
	}{{"IPv4/hint", src4, dst4, 0}, {"IPv4/search", src4, dst4, 1}, {"IPv6", src6, dst6, 0}} {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("%s/%dB", flow.name, size.datagram), func(b *testing.B) {
				f := NewFlow(flow.src, flow.dst)
				datagram := benchDatagram(b, size.datagram, size.header, f)
				b.SetBytes(int64(size.datagram))
				b.ReportAllocs()
				for b.Loop() {
					if !f.CheckICRC(datagram, flow.hint) {
						b.Fatal("rejected")
					}
				}
			})
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for _, op := range []Opcode{RCWriteMiddle, RCWriteOnly, RCAcknowledge} {
		b.Run(op.String(), func(b *testing.B) {
			datagram := encode(b, samplePacket(op), NewFlow(src4, dst4), 0)
			var p Packet
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Parse(datagram); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPutHeaders(b *testing.B) {
	for _, op := range []Opcode{RCWriteMiddle, RCWriteOnly, RCAcknowledge} {
		b.Run(op.String(), func(b *testing.B) {
			p := samplePacket(op)
			dst := make([]byte, MaxHeaderLen)
			b.ReportAllocs()
			for b.Loop() {
				if p.PutHeaders(dst) == 0 {
					b.Fatal("refused")
				}
			}
		})
	}
}

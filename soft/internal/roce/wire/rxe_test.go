package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readPcap returns the IP packets of a little-endian capture of Ethernet frames.
func readPcap(t *testing.T, path string) (packets [][]byte) {
	t.Helper()
	const fileHeader, recordHeader, ethernetHeader = 24, 16, 14
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, uint32(0xa1b2c3d4), binary.LittleEndian.Uint32(b))
	for b = b[fileHeader:]; len(b) > 0; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		packets = append(packets, b[recordHeader+ethernetHeader:recordHeader+n])
		b = b[recordHeader+n:]
	}
	return packets
}

// TestKernelPackets checks packets that the kernel's rxe sent (testdata/README.md
// says how they were captured): the ICRC that rxe computed, the form of every
// header, and that all of it can be made again from what was parsed. There is a
// packet of every opcode.
func TestKernelPackets(t *testing.T) {
	packets := append(readPcap(t, "testdata/rxe.pcap"), readPcap(t, "testdata/rxe-more.pcap")...)
	require.Equal(t, 76+36, len(packets))
	type kind struct {
		version byte
		opcode  Opcode
	}
	seen := map[kind]int{}
	for i, ip := range packets {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			var from, to netip.Addr
			var ident uint16
			var udp []byte
			version := ip[0] >> 4
			if version == 4 {
				ident = binary.BigEndian.Uint16(ip[4:])
				from, to = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
				udp = ip[20:binary.BigEndian.Uint16(ip[2:])]
			} else {
				from, to = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
				udp = ip[40:][:binary.BigEndian.Uint16(ip[4:])]
			}
			datagram := udp[8:]
			flow := NewFlow(netip.AddrPortFrom(from, binary.BigEndian.Uint16(udp[0:])),
				netip.AddrPortFrom(to, binary.BigEndian.Uint16(udp[2:])))
			assert.Equal(t, uint16(UDPPort), binary.BigEndian.Uint16(udp[2:]))

			got := binary.LittleEndian.Uint32(datagram[len(datagram)-ICRCLen:])
			assert.Equal(t, got, referenceICRC(ip), "the tests' own reference")
			assert.Equal(t, got, ICRCFinish(ICRCUpdate(flow.ICRCStart(ident, len(datagram), datagram[:BTHLen]),
				datagram[BTHLen:len(datagram)-ICRCLen])))
			assert.True(t, flow.CheckICRC(datagram, ident))
			assert.True(t, flow.CheckICRC(datagram, ident+1))
			if version == 4 {
				found, ok := flow.findIdent(datagram, 0)
				assert.True(t, ok)
				assert.Equal(t, ident, found)
			}

			var p Packet
			require.NoError(t, p.Parse(datagram))
			seen[kind{version, p.Opcode}]++
			header := make([]byte, p.Opcode.HeaderLen())
			p.PutHeaders(header)
			assert.Equal(t, datagram[:len(header)], header)
			assert.Equal(t, uint16(0xffff), p.PKey)
			if p.Opcode.HasAETH() {
				assert.Equal(t, KindAck, p.AETH.Syndrome.Kind())
			}
			assert.Len(t, p.Payload, payloadLen(p.Opcode))
			if p.Opcode.HasImm() {
				assert.Equal(t, uint32(0x01020304), p.Imm)
			}
			if p.Opcode.HasIETH() {
				assert.Equal(t, uint32(0x01020304), p.InvalidateRKey)
			}

			// All of it again, from the fields alone.
			again := make([]byte, p.Opcode.HeaderLen())
			p.PutHeaders(again)
			again = append(append(again, p.Payload...), make([]byte, p.Pad)...)
			again = binary.LittleEndian.AppendUint32(again, ICRCFinish(ICRCUpdate(
				flow.ICRCStart(ident, len(datagram), again[:BTHLen]), again[BTHLen:])))
			assert.Equal(t, datagram, again)

			datagram = append([]byte{}, datagram...)
			datagram[len(datagram)-1] ^= 1
			assert.False(t, flow.CheckICRC(datagram, ident), "off by one bit")
		})
	}
	// Every operation that this package knows, rxe can send, but for our own, notifications of
	// congestion, XRC, and atomic writes, which it has had since Linux 6.2.
	for _, version := range []byte{4, 6} {
		for _, op := range allOpcodes() {
			if hasPart(hasSRDETH)(op) || op == CNP || op == RCAtomicWrite || op.Service() == ServiceXRC {
				continue
			}
			assert.NotZero(t, seen[kind{version, op}], "no packet of IPv%d %v", version, op)
		}
	}
}

// payloadLen is the length of the payload of the packets in testdata: messages of
// 2500 bytes in three packets, of 13 in one.
func payloadLen(op Opcode) int {
	switch _, how, _ := strings.Cut(op.String(), " "); {
	case !op.HasPayload():
		return 0
	case strings.Contains(how, "First"), strings.Contains(how, "Middle"):
		return 1024
	case strings.Contains(how, "Last"):
		return 2500 - 2*1024
	}
	return 13
}

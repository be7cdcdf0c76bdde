package roce

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/verbs"
)

var pathFields = verbs.AddressAttr{TrafficClass: 0xb9, HopLimit: 7, FlowLabel: 0x54321, SL: 3}

// expectedFields is what of the fields packets have in a family.
func expectedFields(a verbs.AddressAttr, is4 bool) verbs.GRH {
	h := verbs.GRH{TrafficClass: a.TrafficClass, HopLimit: a.HopLimit, FlowLabel: a.FlowLabel}
	if is4 {
		h.FlowLabel = 0
	}
	if h.HopLimit == 0 {
		h.HopLimit = 64
	}
	return h
}

func fieldsOf(h verbs.GRH) verbs.GRH {
	return verbs.GRH{TrafficClass: h.TrafficClass, HopLimit: h.HopLimit, FlowLabel: h.FlowLabel}
}

// The header in front of a datagram has the fields of its packet, or the defaults if the
// address handle sets none.
func TestDatagramPathFields(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems have no such control messages")
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			x, y := openSide(t, v.cfg, 4096), openSide(t, v.cfg, 4096)
			x.use(verbs.UD)
			y.use(verbs.UD)
			x.readyUD()
			y.readyUD()
			for _, fields := range []verbs.AddressAttr{pathFields, {}, {TrafficClass: 2}, {HopLimit: 64}} {
				attr := x.address(y)
				is4 := attr.DGID.Addr().Is4()
				attr.TrafficClass, attr.HopLimit, attr.FlowLabel, attr.SL = fields.TrafficClass, fields.HopLimit, fields.FlowLabel, fields.SL
				ah := x.handle(x.dev.DefaultPD(), attr)
				y.postRecv(verbs.RecvWR{SGL: []verbs.SGE{y.sge(0, 100)}})
				x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 10)}, AH: ah, RemoteQPN: y.qp.Num(), RemoteQKey: testKey})
				y.wait(1)
				x.wait(1)
				h, err := verbs.ParseGRH(y.mem)
				require.NoError(t, err)
				assert.Equal(t, expectedFields(fields, is4), fieldsOf(h))
			}
		})
	}
}

// The packets of a connection have the fields of its path, and captures show them at both
// ends.
func TestConnectionPathFields(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems have no such control messages")
	}
	for _, address := range []string{"127.0.0.1", "::1"} {
		t.Run(address, func(t *testing.T) {
			var sent, came bytes.Buffer
			const n = 1 << 18
			x := openSide(t, Config{Addresses: addresses(address), Capture: &sent}, n)
			y := openSide(t, Config{Addresses: addresses(address), Capture: &came}, n)
			x.path, y.path = pathFields, verbs.AddressAttr{TrafficClass: 0x20}
			x.connect(y)
			y.connect(x)
			for range 4 { // packets of one train
				x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
			}
			x.wait(4)
			require.NoError(t, x.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
			is4 := netip.MustParseAddr(address).Is4()
			own := must(x.dev.GIDs(1))[0]
			for _, c := range []struct {
				device  *Device
				packets *bytes.Buffer
			}{{x.dev, &sent}, {y.dev, &came}} {
				c.device.mu.Lock()
				packets := capturedPackets(t, bytes.Clone(c.packets.Bytes()))
				c.device.mu.Unlock()
				require.NotEmpty(t, packets)
				ways := 0
				for _, p := range packets {
					h, source := ipFields(p)
					want := expectedFields(y.path, is4)
					if source == own.SourceUDPPort {
						want = expectedFields(x.path, is4)
					}
					ways |= 1 << min(1, int(source^own.SourceUDPPort))
					require.Equal(t, want, h)
				}
				assert.Equal(t, 3, ways, "packets of both directions")
			}
		})
	}
}

// capturedPackets are the IP packets of a capture.
func capturedPackets(t *testing.T, pcap []byte) (packets [][]byte) {
	t.Helper()
	const fileHeader, packetHeader, cookedHeader = 24, 16, 16
	require.GreaterOrEqual(t, len(pcap), fileHeader)
	for rest := pcap[fileHeader:]; len(rest) > 0; {
		require.GreaterOrEqual(t, len(rest), packetHeader)
		n := int(binary.LittleEndian.Uint32(rest[8:]))
		require.GreaterOrEqual(t, len(rest), packetHeader+n)
		packets = append(packets, rest[packetHeader+cookedHeader:packetHeader+n])
		rest = rest[packetHeader+n:]
	}
	return packets
}

// ipFields reads the fields of a packet, and its UDP source port.
func ipFields(p []byte) (h verbs.GRH, source uint16) {
	var b [verbs.GRHLen]byte
	udp := p[ipheader.IPv6Len:]
	if p[0]>>4 == 4 {
		copy(b[ipheader.IPv4Len:], p)
		udp = p[ipheader.IPv4Len:]
	} else {
		copy(b[:], p)
	}
	h, err := verbs.ParseGRH(b[:])
	if err != nil {
		panic(err)
	}
	return fieldsOf(h), uint16(udp[0])<<8 | uint16(udp[1])
}

func TestPathFieldsOutOfRange(t *testing.T) {
	x := openSide(t, Config{}, 64)
	attr := x.address(x)
	attr.FlowLabel = 1 << 20
	_, err := x.dev.DefaultPD().CreateAH(attr)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	assert.ErrorContains(t, err, "FlowLabel is 0x100000")
}

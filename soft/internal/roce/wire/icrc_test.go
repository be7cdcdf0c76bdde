package wire

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type endpoints struct{ src, dst netip.AddrPort }

func drawEndpoints(t *rapid.T) endpoints {
	port := rapid.Uint16()
	if rapid.Bool().Draw(t, "IPv6") {
		addr := func(name string) netip.Addr {
			b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name)
			b[0] = 0x20 // neither IPv4 mapped into IPv6
			return netip.AddrFrom16([16]byte(b))
		}
		return endpoints{netip.AddrPortFrom(addr("source"), port.Draw(t, "source port")),
			netip.AddrPortFrom(addr("destination"), port.Draw(t, "destination port"))}
	}
	addr := func(name string) netip.Addr {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, name)))
	}
	return endpoints{netip.AddrPortFrom(addr("source"), port.Draw(t, "source port")),
		netip.AddrPortFrom(addr("destination"), port.Draw(t, "destination port"))}
}

func TestICRCAgreesWithReference(t *testing.T) {
	ops := allOpcodes()
	rapid.Check(t, func(t *rapid.T) {
		ends := drawEndpoints(t)
		flow := NewFlow(ends.src, ends.dst)
		require.True(t, flow.Valid())
		p := drawPacket(t, rapid.SampledFrom(ops).Draw(t, "opcode"))
		if p.Opcode.HasPayload() {
			p.Payload = append(p.Payload, make([]byte, rapid.IntRange(0, 4000).Draw(t, "more"))...)
			p = trim(p)
		}
		ident := rapid.Uint16().Draw(t, "identification")
		datagram := encode(t, p, flow, ident)
		want := referenceICRC(ipPacket(ends.src, ends.dst, ident, datagram))
		require.Equal(t, want, binary.LittleEndian.Uint32(datagram[len(datagram)-ICRCLen:]))

		require.True(t, flow.CheckICRC(datagram, ident))
		hint := rapid.Uint16().Draw(t, "hint")
		require.True(t, flow.CheckICRC(datagram, hint))
		if ends.src.Addr().Is4() {
			found, ok := flow.findIdent(datagram, hint)
			require.True(t, ok)
			require.Equal(t, ident, found)
		}
	})
}

func TestICRCStartLeavesHeaders(t *testing.T) {
	p := samplePacket(RCWriteOnly)
	b := make([]byte, MaxHeaderLen)
	n := p.PutHeaders(b)
	before := append([]byte{}, b...)
	flow := NewFlow(src4, dst4)
	flow.ICRCStart(0, 100, b[:n])
	assert.Equal(t, before, b)
}

func TestICRCIgnoresWhatMayChange(t *testing.T) {
	for _, ends := range []endpoints{{src4, dst4}, {src6, dst6}} {
		flow := NewFlow(ends.src, ends.dst)
		datagram := encode(t, samplePacket(RCSendOnly), flow, 0)
		for bit := range 8 {
			datagram[4] ^= 1 << bit
			assert.True(t, flow.CheckICRC(datagram, 0), "all 8 bits beside the destination QP are masked: bit %d", bit)
		}
	}
}

func TestICRCPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes")
		cut := rapid.IntRange(0, len(b)).Draw(t, "cut")
		start := rapid.Uint32().Draw(t, "start")
		assert.Equal(t, ICRCUpdate(start, b), ICRCUpdate(ICRCUpdate(start, b[:cut]), b[cut:]))
	})
}

func TestFlowAddresses(t *testing.T) {
	plain := NewFlow(src4, dst4)
	mapped := NewFlow(netip.AddrPortFrom(netip.AddrFrom16(src4.Addr().As16()), src4.Port()), dst4)
	assert.Equal(t, plain, mapped)
	zoned := NewFlow(netip.MustParseAddrPort("[fe80::1%eth0]:1"), netip.MustParseAddrPort("[fe80::2%eth0]:4791"))
	assert.Equal(t, NewFlow(netip.MustParseAddrPort("[fe80::1]:1"), netip.MustParseAddrPort("[fe80::2]:4791")), zoned)

	// A Flow that is not valid accepts nothing and does not panic.
	datagram := encode(t, samplePacket(RCSendOnly), plain, 0)
	for _, flow := range []Flow{{}, NewFlow(src4, dst6), NewFlow(src6, dst4), NewFlow(netip.AddrPort{}, dst4), NewFlow(netip.AddrPort{}, netip.AddrPort{})} {
		assert.False(t, flow.Valid())
		assert.False(t, flow.CheckICRC(datagram, 0))
		assert.NotPanics(t, func() { flow.ICRCStart(0, len(datagram), datagram[:BTHLen]) })
	}
}

func TestICRCOddInput(t *testing.T) {
	flow := NewFlow(src6, dst6)
	for n := range 40 {
		assert.False(t, flow.CheckICRC(make([]byte, n), 0))
		assert.NotPanics(t, func() { flow.ICRCStart(0, -n, make([]byte, n)) })
	}
	assert.False(t, flow.CheckICRC(make([]byte, 65536), 0))
	assert.False(t, flow.CheckICRC(make([]byte, MaxDatagramLen+4), 0))
	b := []byte{1, 2, 3}
	PutICRC(b, 0xffffffff)
	assert.Equal(t, []byte{1, 2, 3}, b)
	PutICRC(nil, 1)
}

func TestCheckICRCEveryBit(t *testing.T) {
	for _, ends := range []endpoints{{src4, dst4}, {src6, dst6}} {
		flow := NewFlow(ends.src, ends.dst)
		for _, op := range allOpcodes() {
			datagram := encode(t, samplePacket(op), flow, 0x1234)
			for i := range 8 * len(datagram) {
				if i/8 == 4 {
					continue
				}
				datagram[i/8] ^= 1 << (i % 8)
				assert.False(t, flow.CheckICRC(datagram, 0x1234), "%v, bit %d", op, i)
				datagram[i/8] ^= 1 << (i % 8)
			}
			require.True(t, flow.CheckICRC(datagram, 0x1234))
		}
	}
}

func TestCheckICRCWrongFlow(t *testing.T) {
	flow := NewFlow(src6, dst6)
	datagram := encode(t, samplePacket(RCSendOnly), flow, 0)
	back := NewFlow(dst6, src6)
	assert.False(t, back.CheckICRC(datagram, 0))
	port := NewFlow(src6, netip.AddrPortFrom(dst6.Addr(), 4792))
	assert.False(t, port.CheckICRC(datagram, 0))
}

// bruteForce is every identification for which the ICRC of an IPv4 datagram is
// right, by trying them all against the reference.
func bruteForce(ends endpoints, datagram []byte) (idents []uint16) {
	got := binary.LittleEndian.Uint32(datagram[len(datagram)-ICRCLen:])
	for ident := range 1 << 16 {
		if referenceICRC(ipPacket(ends.src, ends.dst, uint16(ident), datagram)) == got {
			idents = append(idents, uint16(ident))
		}
	}
	return idents
}

func TestCheckICRCBruteForce(t *testing.T) {
	ends := endpoints{src4, dst4}
	flow := NewFlow(src4, dst4)
	datagram := encode(t, Packet{Opcode: RCAcknowledge, AETH: AETH{Ack(AckUnlimited), 7}}, flow, 0xbeef)
	assert.Equal(t, []uint16{0xbeef}, bruteForce(ends, datagram))
	ident, ok := flow.findIdent(datagram, 0x5555)
	assert.True(t, ok)
	assert.Equal(t, uint16(0xbeef), ident)

	binary.BigEndian.PutUint32(datagram[8:], 0x00123456) // another PSN
	assert.Empty(t, bruteForce(ends, datagram))
	assert.False(t, flow.CheckICRC(datagram, 0x5555))
}

// image is the space of differences that identifications make in the ICRC of a
// datagram, from the reference, as a basis in echelon form.
type image [32]uint32

func newImage(ends endpoints, datagram []byte) (basis image, rank int) {
	zero := referenceICRC(ipPacket(ends.src, ends.dst, 0, datagram))
	for bit := range 16 {
		if v := basis.reduce(referenceICRC(ipPacket(ends.src, ends.dst, 1<<bit, datagram)) ^ zero); v != 0 {
			for i := range 32 {
				if v<<i>>31 != 0 {
					basis[i] = v
					break
				}
			}
			rank++
		}
	}
	return basis, rank
}

func (basis *image) reduce(v uint32) uint32 {
	for i := range 32 {
		if v<<i>>31 != 0 {
			if basis[i] == 0 {
				return v
			}
			v ^= basis[i]
		}
	}
	return v
}

func TestIdentificationsAreOneToOne(t *testing.T) {
	ends := endpoints{src4, dst4}
	for n := BTHLen + ICRCLen; n <= MaxDatagramLen; n += 256 {
		_, rank := newImage(ends, make([]byte, n))
		assert.Equal(t, 16, rank, "%d bytes", n)
	}
}

// TestCheckICRCAcceptance shows that a random ICRC passes about as often as the
// identification leaves room for, once in 65,536.
func TestCheckICRCAcceptance(t *testing.T) {
	flow := NewFlow(src4, dst4)
	datagram := encode(t, samplePacket(RCWriteOnly), flow, 0)
	random := rand.New(rand.NewPCG(1, 2))
	passed := 0
	for range 1 << 20 {
		PutICRC(datagram[len(datagram)-ICRCLen:], random.Uint32())
		if flow.CheckICRC(datagram, 0) {
			passed++
		}
	}
	assert.InDelta(t, 16, passed, 16)
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	flow := NewFlow(src4, dst4)
	datagram := encode(t, Packet{Opcode: RCWriteOnly, Payload: make([]byte, MaxPayloadLen)}, flow, 0)
	header := make([]byte, MaxHeaderLen)
	var p Packet
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if p.Parse(datagram) != nil || !flow.CheckICRC(datagram, 0) || !flow.CheckICRC(datagram, 1) {
			t.Fail()
		}
		n := p.PutHeaders(header)
		crc := flow.ICRCStart(0, len(datagram), header[:n])
		PutICRC(header, ICRCFinish(ICRCUpdate(crc, p.Payload)))
	}))
}

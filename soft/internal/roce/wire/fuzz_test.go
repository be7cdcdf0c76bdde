package wire

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func FuzzParse(f *testing.F) {
	flow := NewFlow(src4, dst4)
	for _, op := range allOpcodes() {
		p := samplePacket(op)
		f.Add(encode(f, p, flow, 0))
		p.AETH.Syndrome = Nak(NakCode(op % 6))
		f.Add(encode(f, p, flow, 0))
		f.Add(encode(f, p, flow, 0)[:op.HeaderLen()])
	}
	p := samplePacket(RCAcknowledge)
	for _, s := range []Syndrome{RNRNak(14), Nak(NakRemoteAccess), 0x40, 0xff} {
		p.AETH.Syndrome = s
		f.Add(encode(f, p, flow, 0))
	}
	p = samplePacket(SRDHello)
	p.SRDETH.MTU = 6
	f.Add(encode(f, p, flow, 0))
	p = samplePacket(SRDReadRequest)
	p.Segments.Size++
	f.Add(encode(f, p, flow, 0))
	f.Add([]byte{0x04, 0x11, 15: 0})
	f.Add([]byte{0x04, 0x30, 15: 0})
	f.Add([]byte{0x15, 15: 0})
	f.Add([]byte{0x11, 19: 0, 23: 0})
	f.Add(append([]byte{0x04}, make([]byte, BTHLen-1+MaxPayloadLen+4+ICRCLen)...))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		fuzzHeaders(t, datagram)
		var p Packet
		if err := p.Parse(datagram); err != nil {
			requireOneSentinel(t, err)
			return
		}
		n := p.Opcode.HeaderLen()
		require.Equal(t, len(datagram), n+len(p.Payload)+int(p.Pad)+ICRCLen)
		header := make([]byte, MaxHeaderLen)
		require.Equal(t, n, p.PutHeaders(header))
		require.Zero(t, p.PutHeaders(header[:n-1]))
		again := append(header[:n:n], datagram[n:]...)
		var back Packet
		require.NoError(t, back.Parse(again))
		require.Equal(t, p, back)

		var alone Packet
		require.NoError(t, alone.ParseHeaders(header[:n]), "what is a packet has headers that pass")
		alone.Payload = back.Payload
		require.Equal(t, back, alone)
		requireSayable(t, &p)
	})
}

// fuzzHeaders takes input for the headers of a packet, without the rest.
func fuzzHeaders(t *testing.T, b []byte) {
	var p Packet
	if err := p.ParseHeaders(b); err != nil {
		requireOneSentinel(t, err)
		return
	}
	require.Equal(t, p.Opcode.HeaderLen(), len(b))
	require.Nil(t, p.Payload)
	header := make([]byte, MaxHeaderLen)
	require.Equal(t, len(b), p.PutHeaders(header))
	var back Packet
	require.NoError(t, back.ParseHeaders(header[:len(b)]))
	require.Equal(t, p, back)
}

var sentinels = []error{ErrTruncated, ErrTooLong, ErrUnaligned, ErrOpcode, ErrVersion, ErrPad, ErrSRD, ErrPayload}

func requireOneSentinel(t *testing.T, err error) {
	matched := 0
	for _, s := range sentinels {
		if errors.Is(err, s) {
			matched++
		}
	}
	require.Equal(t, 1, matched, "%v", err)
	require.ErrorIs(t, err, ErrMalformed)
}

// requireSayable asserts what logs, captures and the transport derive from a packet.
func requireSayable(t *testing.T, p *Packet) {
	op := p.Opcode
	require.NotEmpty(t, op.String())
	require.Equal(t, op, op.Operation().On(op.Service()))
	if op.IsReadResponse() {
		require.True(t, op.HasPayload())
	}
	require.Equal(t, p.PSN, PSNAdd(PSNAdd(p.PSN, int(p.DestQP)), -int(p.DestQP)))
	require.Zero(t, PSNDiff(p.PSN, p.PSN))
	if hasPart(hasSRDETH)(op) {
		require.Contains(t, []uint32{256, 512, 1024, 2048, 4096}, p.SRDETH.MTUBytes())
	}
	if op.HasAETH() {
		requireSyndrome(t, p.AETH.Syndrome)
	}
}

func requireSyndrome(t *testing.T, s Syndrome) {
	require.NotEmpty(t, s.String())
	require.NotEmpty(t, s.Kind().String())
	var again Syndrome
	switch s.Kind() {
	case KindAck:
		again = Ack(s.Credits())
	case KindRNRNak:
		again = RNRNak(s.Timer())
		require.GreaterOrEqual(t, RNRTimer(s.Timer()), 10*time.Microsecond)
		require.LessOrEqual(t, RNRTimer(s.Timer()), time.Second)
	case KindNak:
		again = Nak(s.Code())
		require.True(t, strings.Contains(s.String(), s.Code().String()))
	default:
		return
	}
	require.Equal(t, s, again)
}

// FuzzCheckICRC compares with the reference. The bits of family choose the addresses.
func FuzzCheckICRC(f *testing.F) {
	for _, op := range allOpcodes() {
		p := samplePacket(op)
		header := make([]byte, op.HeaderLen())
		p.PutHeaders(header)
		f.Add(header, uint16(op), uint16(0), uint32(0), uint8(op%2))
		f.Add(header, uint16(op), uint16(1000), uint32(1<<op%32), uint8(op+1)%2)
	}
	f.Add(make([]byte, 300), uint16(7), uint16(7), uint32(0), uint8(0))
	f.Add(make([]byte, 300), uint16(7), uint16(8), uint32(0), uint8(1))
	f.Add(make([]byte, 5), uint16(7), uint16(8), uint32(0), uint8(2))
	f.Add(make([]byte, 12), uint16(7), uint16(8), uint32(0), uint8(3))
	f.Fuzz(func(t *testing.T, body []byte, ident, hint uint16, corruption uint32, family uint8) {
		ends := [...]endpoints{{src4, dst4}, {src6, dst6}, {src4, dst6}, {src6, netip.AddrPort{}}}[family%4]
		flow := NewFlow(ends.src, ends.dst)
		odd := bytes.Clone(body)
		flow.ICRCStart(ident, len(odd), odd)
		if !flow.Valid() || len(odd)%4 != 0 || len(odd) < BTHLen+ICRCLen || len(odd) > MaxDatagramLen {
			require.False(t, flow.CheckICRC(odd, hint))
			require.Equal(t, body, odd)
		}
		if !flow.Valid() {
			return
		}

		body = append(body, make([]byte, max(0, BTHLen-len(body)))...)
		body = append(body, make([]byte, -len(body)&3)...)
		if len(body) > MaxDatagramLen-ICRCLen {
			body = body[:MaxDatagramLen-ICRCLen]
		}
		datagram := append(body, 0, 0, 0, 0)
		right := referenceICRC(ipPacket(ends.src, ends.dst, ident, datagram))
		icrc := ICRCFinish(ICRCUpdate(flow.ICRCStart(ident, len(datagram), body[:BTHLen]), body[BTHLen:]))
		require.Equal(t, right, icrc)

		PutICRC(datagram[len(datagram)-ICRCLen:], right^corruption)
		want := corruption == 0
		if family%4 == 0 {
			want = want || imageOf(ends, datagram).reduce(corruption) == 0
		}
		require.Equal(t, want, flow.CheckICRC(datagram, hint))
	})
}

// images are by length, on which alone they depend: the ICRC is linear.
var images = map[int]*image{}

func imageOf(ends endpoints, datagram []byte) *image {
	known := images[len(datagram)]
	if known == nil {
		basis, _ := newImage(ends, datagram)
		known = &basis
		images[len(datagram)] = known
	}
	return known
}

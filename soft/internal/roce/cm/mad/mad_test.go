package mad

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/verbs"
)

// message is what all messages can do.
type message interface {
	Encode(b *[Len]byte) error
	Decode(b []byte) error
}

// blank makes an empty message of each kind.
var blank = map[Attribute]func() message{
	AttrREQ: func() message { return new(REQ) }, AttrMRA: func() message { return new(MRA) },
	AttrREJ: func() message { return new(REJ) }, AttrREP: func() message { return new(REP) },
	AttrRTU: func() message { return new(RTU) }, AttrDREQ: func() message { return new(DREQ) },
	AttrDREP: func() message { return new(DREP) }, AttrSIDRREQ: func() message { return new(SIDRREQ) },
	AttrSIDRREP: func() message { return new(SIDRREP) }, AttrLAP: func() message { return new(LAP) },
	AttrAPR: func() message { return new(APR) },
}

// field is a place in a message, in bits, most significant bit first, as the tables
// of IBTA 12.6 draw it.
type field struct {
	at, bit, width int // byte behind the header, bit from the left
	value          uint64
}

// assemble makes a MAD from nothing but the standard's tables.
func assemble(attribute uint16, transactionID uint64, data map[int]string, fields ...field) []byte {
	b := make([]byte, 256)
	set := func(at, width int, value uint64) {
		for i := range width {
			if value>>(width-1-i)&1 != 0 {
				b[(at+i)/8] |= 0x80 >> ((at + i) % 8)
			}
		}
	}
	copy(b, "\x01\x07\x02\x03")
	set(8*8, 64, transactionID)
	set(16*8, 16, uint64(attribute))
	for _, f := range fields {
		set((24+f.at)*8+f.bit, f.width, f.value)
	}
	for at, s := range data {
		copy(b[24+at:], s)
	}
	return b
}

func padded(s string, n int) []byte {
	b := make([]byte, n)
	copy(b, s)
	return b
}

const testTID = 0x0102030405060708

var (
	gidA = verbs.GIDFromAddr(netip.MustParseAddr("10.0.0.1"))
	gidB = verbs.GIDFromAddr(netip.MustParseAddr("fd00::2"))
)

// TestFieldOffsets compares every message with bytes put together by the tables of
// the standard, both ways.
func TestFieldOffsets(t *testing.T) {
	t.Parallel()
	ids := []field{{0, 0, 32, 0xa1a2a3a4}, {4, 0, 32, 0xb1b2b3b4}}
	with := func(more ...field) []field { return append(slices.Clone(ids), more...) }
	for _, c := range []struct {
		m    message
		want []byte
	}{
		{&REQ{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, ServiceID: 0x0000000001061234, CAGUID: 0xc1c2c3c4c5c6c7c8,
			QKey: 0x80010001, QPN: 0xd1d2d3, ResponderResources: 0x21, InitiatorDepth: 0x22, RemoteResponseTimeout: 20,
			Transport: TransportUC, FlowControl: true, StartingPSN: 0xe1e2e3, LocalResponseTimeout: 19, RetryCount: 5,
			PKey: 0xfff1, PathMTU: 3, RDCExists: true, RNRRetry: 6, MaxCMRetries: 15, SRQ: true, ExtendedTransport: 1,
			Primary: Path{
				LocalLID: 0xffff, RemoteLID: 0xfffe, LocalGID: gidA, RemoteGID: gidB, FlowLabel: 0xabcde, PacketRate: 0x2a,
				TrafficClass: 0x31, HopLimit: 0x32, SL: 9, SubnetLocal: true, AckTimeout: 17,
			},
			Alternate: Path{
				LocalLID: 0x1111, RemoteLID: 0x2222, LocalGID: gidB, RemoteGID: gidA, FlowLabel: 0x12345, PacketRate: 0x15,
				TrafficClass: 0x41, HopLimit: 0x42, SL: 6, AckTimeout: 14,
			},
			PrivateData: padded("private", 92),
		}, assemble(0x10, testTID, map[int]string{
			56: string(gidA[:]), 72: string(gidB[:]), 100: string(gidB[:]), 116: string(gidA[:]), 140: "private",
		}, field{0, 0, 32, 0xa1a2a3a4}, field{8, 0, 64, 0x01061234}, field{16, 0, 64, 0xc1c2c3c4c5c6c7c8},
			field{28, 0, 32, 0x80010001}, field{32, 0, 24, 0xd1d2d3}, field{35, 0, 8, 0x21}, field{39, 0, 8, 0x22},
			field{43, 0, 5, 20}, field{43, 5, 2, 1}, field{43, 7, 1, 1}, field{44, 0, 24, 0xe1e2e3},
			field{47, 0, 5, 19}, field{47, 5, 3, 5}, field{48, 0, 16, 0xfff1}, field{50, 0, 4, 3}, field{50, 4, 1, 1},
			field{50, 5, 3, 6}, field{51, 0, 4, 15}, field{51, 4, 1, 1}, field{51, 5, 3, 1},
			field{52, 0, 16, 0xffff}, field{54, 0, 16, 0xfffe}, field{88, 0, 20, 0xabcde}, field{91, 2, 6, 0x2a},
			field{92, 0, 8, 0x31}, field{93, 0, 8, 0x32}, field{94, 0, 4, 9}, field{94, 4, 1, 1}, field{95, 0, 5, 17},
			field{96, 0, 16, 0x1111}, field{98, 0, 16, 0x2222}, field{132, 0, 20, 0x12345}, field{135, 2, 6, 0x15},
			field{136, 0, 8, 0x41}, field{137, 0, 8, 0x42}, field{138, 0, 4, 6}, field{139, 0, 5, 14},
		)},
		{&MRA{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, Message: MessageREP,
			ServiceTimeout: 21, PrivateData: padded("private", 222),
		}, assemble(0x11, testTID, map[int]string{10: "private"}, with(field{8, 0, 2, 1}, field{9, 0, 5, 21})...)},
		{&REJ{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, Message: MessageOther,
			Reason: verbs.CMRejectConsumer, Info: []byte("additional"), PrivateData: padded("private", 148),
		}, assemble(0x12, testTID, map[int]string{12: "additional", 84: "private"},
			with(field{8, 0, 2, 2}, field{9, 0, 7, 10}, field{10, 0, 16, 28})...)},
		{&REP{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, QKey: 0x80010001, QPN: 0xd1d2d3,
			StartingPSN: 0xe1e2e3, ResponderResources: 0x21, InitiatorDepth: 0x22, TargetAckDelay: 15,
			Failover: FailoverNotSupported, FlowControl: true, RNRRetry: 6, SRQ: true, CAGUID: 0xc1c2c3c4c5c6c7c8,
			PrivateData: padded("private", 196),
		}, assemble(0x13, testTID, map[int]string{36: "private"},
			with(field{8, 0, 32, 0x80010001}, field{12, 0, 24, 0xd1d2d3}, field{20, 0, 24, 0xe1e2e3}, field{24, 0, 8, 0x21},
				field{25, 0, 8, 0x22}, field{26, 0, 5, 15}, field{26, 5, 2, 1}, field{26, 7, 1, 1}, field{27, 0, 3, 6},
				field{27, 3, 1, 1}, field{28, 0, 64, 0xc1c2c3c4c5c6c7c8})...)},
		{&RTU{TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, PrivateData: padded("private", 224)},
			assemble(0x14, testTID, map[int]string{8: "private"}, ids...)},
		{&DREQ{TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, RemoteQPN: 0xd1d2d3, PrivateData: padded("private", 220)},
			assemble(0x15, testTID, map[int]string{12: "private"}, with(field{8, 0, 24, 0xd1d2d3})...)},
		{&DREP{TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, PrivateData: padded("private", 224)},
			assemble(0x16, testTID, map[int]string{8: "private"}, ids...)},
		{&SIDRREQ{TransactionID: testTID, RequestID: 0xa1a2a3a4, PKey: 0xffff, ServiceID: 0x0111abcd, PrivateData: padded("private", 216)},
			assemble(0x17, testTID, map[int]string{16: "private"}, field{0, 0, 32, 0xa1a2a3a4}, field{4, 0, 16, 0xffff}, field{8, 0, 64, 0x0111abcd})},
		{&SIDRREP{
			TransactionID: testTID, RequestID: 0xa1a2a3a4, Status: SIDRNoQP, QPN: 0xd1d2d3, ServiceID: 0x0111abcd,
			QKey: 0x01234567, Info: []byte("additional"), PrivateData: padded("private", 136),
		}, assemble(0x18, testTID, map[int]string{24: "additional", 96: "private"},
			field{0, 0, 32, 0xa1a2a3a4}, field{4, 0, 8, 3}, field{5, 0, 8, 10}, field{8, 0, 24, 0xd1d2d3},
			field{12, 0, 64, 0x0111abcd}, field{20, 0, 32, 0x01234567})},
		{&LAP{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, RemoteQPN: 0xd1d2d3,
			RemoteResponseTimeout: 20,
			Alternate: Path{
				LocalLID: 0x1111, RemoteLID: 0x2222, LocalGID: gidA, RemoteGID: gidB, FlowLabel: 0xabcde, PacketRate: 0x2a,
				TrafficClass: 0x31, HopLimit: 0x32, SL: 9, SubnetLocal: true, AckTimeout: 17,
			},
			PrivateData: padded("private", 168),
		}, assemble(0x19, testTID, map[int]string{24: string(gidA[:]), 40: string(gidB[:]), 64: "private"}, with(
			field{12, 0, 24, 0xd1d2d3}, field{15, 0, 5, 20}, field{20, 0, 16, 0x1111}, field{22, 0, 16, 0x2222}, field{56, 0, 20, 0xabcde},
			field{59, 0, 8, 0x31}, field{60, 0, 8, 0x32}, field{61, 2, 6, 0x2a}, field{62, 0, 4, 9}, field{62, 4, 1, 1}, field{63, 0, 5, 17})...)},
		{&APR{
			TransactionID: testTID, LocalCommID: 0xa1a2a3a4, RemoteCommID: 0xb1b2b3b4, Status: APNotSupported,
			Info: []byte("additional"), PrivateData: padded("private", 148),
		}, assemble(0x1a, testTID, map[int]string{12: "additional", 84: "private"}, with(field{8, 0, 8, 10}, field{9, 0, 8, 2})...)},
	} {
		h, err := DecodeHeader(c.want)
		require.NoError(t, err)
		require.Equal(t, Header{testTID, h.Attribute}, h)
		t.Run(h.Attribute.String(), func(t *testing.T) {
			var b [Len]byte
			b[100] = 0xff // is overwritten
			require.NoError(t, c.m.Encode(&b))
			assert.Equal(t, hex.Dump(c.want), hex.Dump(b[:]))
			back := blank[h.Attribute]()
			require.NoError(t, back.Decode(c.want))
			assert.Equal(t, c.m, back)
		})
	}
}

// TestIPHeaderBytes has the header of RDMA CM as annex A11 draws it.
func TestIPHeaderBytes(t *testing.T) {
	t.Parallel()
	for want, h := range map[string]IPHeader{
		"00 40 1f90 000000000000000000000000 0a000001 000000000000000000000000 0a000002": {
			netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 8080,
		},
		"00 60 0001 fd000000000000000000000000000001 fe80000000000000000000000000abcd": {
			netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fe80::abcd"), 1,
		},
	} {
		bytes, err := hex.DecodeString(strings.ReplaceAll(want, " ", ""))
		require.NoError(t, err)
		var b [IPHeaderLen]byte
		h.Encode(&b)
		assert.Equal(t, bytes, b[:])
		var back IPHeader
		require.NoError(t, back.Decode(bytes))
		assert.Equal(t, h, back)
		assert.Equal(t, ErrIPHeader, back.Decode(bytes[:IPHeaderLen-1]))
		bytes[1] = 0x50
		assert.Equal(t, ErrIPHeader, back.Decode(bytes))
		bytes[0], bytes[1] = 1, 0x40
		assert.Equal(t, ErrIPHeader, back.Decode(bytes))
	}
	var b [IPHeaderLen]byte
	(&IPHeader{}).Encode(&b) // no addresses: nothing to write, and no panic
}

// draw fills a message with values that fit.
func draw(t *rapid.T, m message) {
	v := reflect.ValueOf(m).Elem()
	limits := map[string]uint64{
		"QPN": 1<<24 - 1, "RemoteQPN": 1<<24 - 1, "StartingPSN": 1<<24 - 1, "RemoteResponseTimeout": 31,
		"LocalResponseTimeout": 31, "RetryCount": 7, "PathMTU": 15, "RNRRetry": 7, "MaxCMRetries": 15,
		"ExtendedTransport": 7, "Transport": 3, "FlowLabel": 1<<20 - 1, "PacketRate": 63, "SL": 15, "AckTimeout": 31,
		"TargetAckDelay": 31, "Failover": 3, "ServiceTimeout": 31, "Message": 2,
	}
	private := map[reflect.Type]int{
		reflect.TypeFor[REQ](): 92, reflect.TypeFor[MRA](): 222, reflect.TypeFor[REJ](): 148, reflect.TypeFor[REP](): 196,
		reflect.TypeFor[RTU](): 224, reflect.TypeFor[DREQ](): 220, reflect.TypeFor[DREP](): 224,
		reflect.TypeFor[SIDRREQ](): 216, reflect.TypeFor[SIDRREP](): 136, reflect.TypeFor[LAP](): 168, reflect.TypeFor[APR](): 148,
	}[v.Type()]
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().Field(i).Name
			switch {
			case name == "PrivateData":
				f.SetBytes(rapid.SliceOfN(rapid.Byte(), private, private).Draw(t, name))
			case name == "Info":
				f.SetBytes(rapid.SliceOfN(rapid.Byte(), 0, InfoLen).Draw(t, name))
			case name == "Reason":
				f.SetInt(int64(rapid.Uint16().Draw(t, name)))
			case f.Kind() == reflect.Struct:
				fill(f)
			case f.Kind() == reflect.Bool:
				f.SetBool(rapid.Bool().Draw(t, name))
			case f.Kind() == reflect.Array:
				copy(f.Slice(0, f.Len()).Bytes(), rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))
			default:
				limit, ok := limits[name]
				if !ok {
					limit = math.MaxUint64 >> (64 - 8*f.Type().Size())
				}
				f.SetUint(rapid.Uint64Range(0, limit).Draw(t, name))
			}
		}
	}
	fill(v)
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		attribute := Attribute(rapid.IntRange(int(AttrREQ), int(AttrAPR)).Draw(t, "attribute"))
		m, back := blank[attribute](), blank[attribute]()
		draw(t, m)
		var b [Len]byte
		require.NoError(t, m.Encode(&b))
		h, err := DecodeHeader(b[:])
		require.NoError(t, err)
		require.Equal(t, attribute, h.Attribute)
		require.NoError(t, back.Decode(b[:]))
		require.Equal(t, m, back)
	})
}

// TestFieldTooLarge: what does not fit is refused, and not cut short.
func TestFieldTooLarge(t *testing.T) {
	t.Parallel()
	var b [Len]byte
	for i, m := range []message{
		&REQ{QPN: 1 << 24}, &REQ{StartingPSN: 1 << 24}, &REQ{RemoteResponseTimeout: 32}, &REQ{LocalResponseTimeout: 32},
		&REQ{Transport: 4}, &REQ{RetryCount: 8}, &REQ{PathMTU: 16}, &REQ{RNRRetry: 8}, &REQ{MaxCMRetries: 16},
		&REQ{ExtendedTransport: 8}, &REQ{PrivateData: make([]byte, 93)}, &REQ{Primary: Path{FlowLabel: 1 << 20}},
		&REQ{Primary: Path{PacketRate: 64}}, &REQ{Alternate: Path{SL: 16}}, &REQ{Alternate: Path{AckTimeout: 32}},
		&REP{QPN: 1 << 24}, &REP{StartingPSN: 1 << 24}, &REP{TargetAckDelay: 32}, &REP{Failover: 4}, &REP{RNRRetry: 8},
		&REP{PrivateData: make([]byte, 197)}, &RTU{PrivateData: make([]byte, 225)}, &DREP{PrivateData: make([]byte, 225)},
		&DREQ{RemoteQPN: 1 << 24}, &DREQ{PrivateData: make([]byte, 221)}, &MRA{Message: 4}, &MRA{ServiceTimeout: 32},
		&MRA{PrivateData: make([]byte, 223)}, &REJ{Message: 4}, &REJ{Info: make([]byte, 73)}, &REJ{PrivateData: make([]byte, 149)},
		&SIDRREQ{PrivateData: make([]byte, 217)}, &SIDRREP{QPN: 1 << 24}, &SIDRREP{Info: make([]byte, 73)},
		&SIDRREP{PrivateData: make([]byte, 137)}, &LAP{RemoteQPN: 1 << 24}, &LAP{RemoteResponseTimeout: 32},
		&LAP{Alternate: Path{FlowLabel: 1 << 20}}, &LAP{Alternate: Path{PacketRate: 64}},
		&LAP{PrivateData: make([]byte, 169)}, &APR{Info: make([]byte, 73)}, &APR{PrivateData: make([]byte, 149)},
	} {
		assert.ErrorIs(t, m.Encode(&b), ErrField, "%d: %T", i, m)
	}
}

func TestStrict(t *testing.T) {
	t.Parallel()
	for attribute, create := range blank {
		var b [Len]byte
		require.NoError(t, create().Encode(&b))
		for err, change := range map[error]func(b []byte) []byte{
			ErrLength:    func(b []byte) []byte { return b[:Len-1] },
			ErrClass:     func(b []byte) []byte { b[0] = 2; return b },
			ErrStatus:    func(b []byte) []byte { b[5] = 1; return b },
			ErrAttribute: func(b []byte) []byte { b[17] = 0x1b; return b },
		} {
			bad := change(bytes.Clone(b[:]))
			assert.Equal(t, err, create().Decode(bad), attribute)
			_, got := DecodeHeader(bad)
			assert.Equal(t, err, got)
			assert.ErrorIs(t, err, ErrMalformed)
		}
		assert.Equal(t, ErrLength, create().Decode(append(b[:], 0)), "one byte too many")
		assert.Equal(t, ErrLength, create().Decode(nil))
		for other, create := range blank {
			if other != attribute {
				assert.Equal(t, ErrAttribute, create().Decode(b[:]), "%v as %v", attribute, other)
			}
		}
	}
	for _, at := range []int{1, 2, 3} {
		var b [Len]byte
		require.NoError(t, new(REQ).Encode(&b))
		b[at] ^= 0x40
		assert.Equal(t, ErrClass, new(REQ).Decode(b[:]))
	}
	var b [Len]byte
	require.NoError(t, (&REJ{}).Encode(&b))
	b[24+9] = 73 << 1
	assert.Equal(t, ErrInfoLen, new(REJ).Decode(b[:]))
	b[24+9], b[24+8] = 0, 3<<6
	assert.Equal(t, ErrMessage, new(REJ).Decode(b[:]))
	require.NoError(t, (&MRA{}).Encode(&b))
	b[24+8] = 3 << 6
	assert.Equal(t, ErrMessage, new(MRA).Decode(b[:]))
	require.NoError(t, (&SIDRREP{}).Encode(&b))
	b[24+5] = 73
	assert.Equal(t, ErrInfoLen, new(SIDRREP).Decode(b[:]))
	require.NoError(t, (&APR{}).Encode(&b))
	b[24+8] = 255
	assert.Equal(t, ErrInfoLen, new(APR).Decode(b[:]))
}

func TestMTUCodes(t *testing.T) {
	t.Parallel()
	for code := range 256 {
		mtu := MTUOf(uint8(code))
		assert.Equal(t, code >= 1 && code <= 5, mtu.Valid(), code)
		if mtu.Valid() {
			assert.Equal(t, uint8(code), MTUCode(mtu))
		}
	}
	assert.Zero(t, MTUCode(0))
	assert.Zero(t, MTUCode(1500))
	assert.Equal(t, verbs.MTU(4096), MTUOf(5))
}

func TestNames(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "SIDR_REP", AttrSIDRREP.String())
	assert.Equal(t, "attribute 0x1b", Attribute(0x1b).String())
	assert.Equal(t, "stale connection", verbs.CMRejectStaleConnection.String())
	assert.Equal(t, "alternate flow label rejected", Reason(33).String())
	assert.Equal(t, "reason 0", Reason(0).String())
	assert.Equal(t, "reason 999", Reason(999).String())
	assert.Equal(t, "no such service", SIDRNotSupported.String())
	assert.Equal(t, fmt.Sprint("status ", 6), SIDRStatus(6).String())
}

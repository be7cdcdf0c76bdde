package verbs_test

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

func header(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func gid(s string) verbs.GID { return verbs.GIDFromAddr(netip.MustParseAddr(s)) }

const (
	// The header checksum of the IPv4 one is that of RFC 1071, computed by hand.
	overIPv4 = "0000000000000000000000000000000000000000" + "4568003c0000400040112647" + "0a000001" + "0a000002"
	overIPv6 = "66854321001c1140" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002"
)

func TestParseGRH(t *testing.T) {
	h, err := verbs.ParseGRH(header(t, overIPv4))
	require.NoError(t, err)
	assert.Equal(t, verbs.GRH{SGID: gid("10.0.0.1"), DGID: gid("10.0.0.2"), TrafficClass: 0x68, HopLimit: 64}, h)

	garbage := header(t, overIPv4)
	copy(garbage, header(t, overIPv6)[:20])
	h, err = verbs.ParseGRH(garbage)
	require.NoError(t, err)
	assert.Equal(t, gid("10.0.0.1"), h.SGID, "what precedes an IPv4 header has no meaning")

	h, err = verbs.ParseGRH(header(t, overIPv6))
	require.NoError(t, err)
	assert.Equal(t, verbs.GRH{SGID: gid("fd00::1"), DGID: gid("fd00::2"), TrafficClass: 0x68, FlowLabel: 0x54321, HopLimit: 64}, h)

	for _, bad := range [][]byte{nil, make([]byte, 39), make([]byte, 40)} {
		_, err := verbs.ParseGRH(bad)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
}

func TestReplyAddress(t *testing.T) {
	table := []verbs.GIDEntry{
		{Index: 0, GID: gid("10.0.0.2"), Type: verbs.GIDRoCEv1},
		{Index: 1, GID: gid("10.0.0.2"), Type: verbs.GIDRoCEv2},
		{Index: 4, GID: gid("fd00::2"), Type: verbs.GIDRoCEv2},
	}
	wc := verbs.WC{HasGRH: true, SL: 3, SrcUDPPort: 4000}
	a, err := verbs.ReplyAddress(&wc, header(t, overIPv4), table)
	require.NoError(t, err)
	assert.Equal(t, verbs.AddressAttr{DGID: gid("10.0.0.1"), SGIDIndex: 1, SL: 3, TrafficClass: 0x68, UDPPort: 4000}, a)

	a, err = verbs.ReplyAddress(&wc, header(t, overIPv6), table)
	require.NoError(t, err)
	assert.Equal(t, 4, a.SGIDIndex)
	assert.Equal(t, uint32(0x54321), a.FlowLabel)

	group := header(t, overIPv6)
	copy(group[24:], header(t, "ff020000000000000000000000000001"))
	a, err = verbs.ReplyAddress(&wc, group, table)
	require.NoError(t, err)
	assert.Equal(t, 4, a.SGIDIndex)

	_, err = verbs.ReplyAddress(&wc, header(t, overIPv6), table[:2])
	require.ErrorIs(t, err, verbs.ErrInvalid)
	assert.ErrorContains(t, err, "fd00:0000:0000:0000:0000:0000:0000:0002")
	_, err = verbs.ReplyAddress(&verbs.WC{}, header(t, overIPv6), table)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = verbs.ReplyAddress(&wc, nil, table)
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

func FuzzParseGRH(f *testing.F) {
	f.Add(header(f, overIPv4))
	f.Add(header(f, overIPv6))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := verbs.ParseGRH(b)
		if err != nil {
			require.ErrorIs(t, err, verbs.ErrInvalid)
			return
		}
		require.LessOrEqual(t, h.FlowLabel, uint32(0xfffff))
	})
}

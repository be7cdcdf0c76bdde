package rdma

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/verbs"
)

func sampleEndpoint() endpoint {
	return endpoint{
		transport: verbs.RC, gidType: verbs.GIDRoCEv2,
		gid:     verbs.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 7},
		udpPort: 4791, source: 61234, lid: 3, mtu: 4096, reads: 16, qpn: 0xabcdef, psn: 0x123456,
		nonce: 0x1122334455667788, readyAddr: 0x7fff00001238, readyKey: 0xcafe,
	}
}

func TestDescriptorRoundTrip(t *testing.T) {
	want := sampleEndpoint()
	desc, err := want.encode()
	require.NoError(t, err)
	for _, form := range [][]byte{desc, []byte(descriptor.Armor(desc))} {
		got, err := decodeEndpoint(form)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

func TestDescriptorNonsense(t *testing.T) {
	for name, spoil := range map[string]func(*endpoint){
		"transport service":           func(e *endpoint) { e.transport = 9 },
		"GID type":                    func(e *endpoint) { e.gidType = verbs.GIDRoCEv1 },
		"GID":                         func(e *endpoint) { e.gid = verbs.GID{} },
		"unspecified":                 func(e *endpoint) { e.gid = verbs.GIDFromAddr(netip.IPv4Unspecified()) },
		"multicast group":             func(e *endpoint) { e.gid = verbs.GIDFromAddr(netip.MustParseAddr("239.1.1.1")) },
		"broadcast address":           func(e *endpoint) { e.gid = verbs.GIDFromAddr(netip.MustParseAddr("255.255.255.255")) },
		"UDP port":                    func(e *endpoint) { e.udpPort = 0 },
		"source UDP port":             func(e *endpoint) { e.gidType = verbs.GIDInfiniBand },
		"MTU":                         func(e *endpoint) { e.mtu = 1500 },
		"queue pair number":           func(e *endpoint) { e.qpn = 1 },
		"packet sequence number":      func(e *endpoint) { e.psn = 1 << 24 },
		"nonce":                       func(e *endpoint) { e.nonce = 0 },
		"address of the ready signal": func(e *endpoint) { e.readyAddr = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			e := sampleEndpoint()
			spoil(&e)
			desc, err := e.encode()
			require.NoError(t, err)
			_, err = decodeEndpoint(desc)
			require.ErrorIs(t, err, descriptor.ErrFormat)
			assert.ErrorContains(t, err, name)
		})
	}
}

func TestDescriptorLength(t *testing.T) {
	e := sampleEndpoint()
	desc, err := e.encode()
	require.NoError(t, err)
	payload, err := descriptor.Decode(descriptor.Connection, desc)
	require.NoError(t, err)
	short, err := descriptor.Encode(descriptor.Connection, payload[:len(payload)-1])
	require.NoError(t, err)
	_, err = decodeEndpoint(short)
	require.ErrorIs(t, err, descriptor.ErrTruncated)
	long, err := descriptor.Encode(descriptor.Connection, append(payload[:len(payload):len(payload)], 0))
	require.NoError(t, err)
	_, err = decodeEndpoint(long)
	require.ErrorIs(t, err, descriptor.ErrTrailing)
}

// Both ends agree on which of them is the active one.
func TestRolesAreOpposite(t *testing.T) {
	a, b := sampleEndpoint(), sampleEndpoint()
	assert.Zero(t, a.compare(&b))
	for _, change := range []func(){func() { b.qpn++ }, func() { b.gid[15]-- }, func() { b.nonce++ }} {
		change()
		assert.NotZero(t, a.compare(&b))
		assert.Equal(t, a.compare(&b), -b.compare(&a))
	}
}

func FuzzDescriptor(f *testing.F) {
	e := sampleEndpoint()
	desc, err := e.encode()
	require.NoError(f, err)
	payload, err := descriptor.Decode(descriptor.Connection, desc)
	require.NoError(f, err)
	f.Add(payload)
	f.Fuzz(func(t *testing.T, payload []byte) {
		// Sealed again, lest the checksum keep everything out.
		desc, err := descriptor.Encode(descriptor.Connection, payload)
		if err != nil {
			t.Skip()
		}
		e, err := decodeEndpoint(desc)
		if err != nil {
			return
		}
		again, err := e.encode()
		require.NoError(t, err)
		require.Equal(t, desc, again)
	})
}

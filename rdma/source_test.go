package rdma

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/verbs"
)

// The source UDP port is where docs/descriptors.md has it, and zero on InfiniBand.
func TestDescriptorOfAnEndpoint(t *testing.T) {
	want := endpointDescriptor{
		transport: verbs.UD, gidType: verbs.GIDRoCEv2,
		addr:   EndpointAddr{GID: verbs.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 7}, QPN: 0x112, UDPPort: 4791},
		source: 61234, lid: 3, qkey: 0x21222324,
	}
	desc, err := want.encode()
	require.NoError(t, err)
	payload, err := descriptor.Decode(descriptor.Endpoint, desc)
	require.NoError(t, err)
	require.Len(t, payload, 32)
	assert.Equal(t, uint16(61234), binary.BigEndian.Uint16(payload[24:]))
	got, err := decodeEndpointDescriptor(desc)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	want.gidType = verbs.GIDInfiniBand
	desc, err = want.encode()
	require.NoError(t, err)
	_, err = decodeEndpointDescriptor(desc)
	require.ErrorIs(t, err, descriptor.ErrFormat)
	assert.ErrorContains(t, err, "source UDP port")
}

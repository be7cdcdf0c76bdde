//go:build linux && cgo && verbs

package rdmacm

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// join joins a group, and returns the library's identifier of the membership.
func (r *rig) join() (verbs.CMMulticast, *fakeID) {
	r.t.Helper()
	g, err := r.cm.(verbs.MulticastCM).JoinMulticast(verbs.CMJoin{Group: netip.MustParseAddr("239.1.2.3"), Local: ownAddr})
	require.NoError(r.t, err)
	ids := r.lib.channels[0].ids
	return g, ids[len(ids)-1]
}

func TestMulticast(t *testing.T) {
	r := newRig(t)
	g, raw := r.join()
	r.main(rawEvent{kind: eventAddrResolved, id: raw})
	want := verbs.CMEvent{
		Type: verbs.CMMulticastJoined, Multicast: g, Param: verbs.CMParam{QPN: verbs.MulticastQPN, QKey: udpQKey},
		Address: verbs.AddressAttr{DGID: verbs.GIDFromAddr(netip.MustParseAddr("239.1.2.3")), HopLimit: 1},
	}
	r.main(rawEvent{kind: eventMulticastJoin, id: raw, param: want.Param, address: want.Address})
	assert.Equal(t, want, r.next(verbs.CMMulticastJoined))
	r.main(rawEvent{kind: eventMulticastError, id: raw, status: -int(syscall.ENOMEM)}) // lost
	require.ErrorIs(t, r.next(verbs.CMMulticastFailed).Err, verbs.ErrLimit)
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	assert.Equal(t, []string{"leave", "destroy"}, r.lib.last(2))

	_, left := r.join() // left with the manager
	r.main(rawEvent{kind: eventAddrResolved, id: left})
}

// The kernel has no IPv6 groups on RoCEv2: a socket joins them.
func TestMulticastIPv6(t *testing.T) {
	r := newRig(t)
	r.lib.fail("join", errNotSupported)
	group := netip.MustParseAddr("ff15::7401")
	for _, sendOnly := range []bool{false, true} {
		g, err := r.cm.(verbs.MulticastCM).JoinMulticast(verbs.CMJoin{Group: group, SendOnly: sendOnly})
		require.NoError(t, err)
		ids := r.lib.channels[0].ids
		r.main(rawEvent{kind: eventAddrResolved, id: ids[len(ids)-1]})
		assert.Equal(t, verbs.CMEvent{
			Type: verbs.CMMulticastJoined, Multicast: g, Param: verbs.CMParam{QPN: verbs.MulticastQPN, QKey: udpQKey},
			Address: verbs.AddressAttr{DGID: verbs.GIDFromAddr(group), SGIDIndex: 2, Port: 1, HopLimit: 1},
		}, r.next(verbs.CMMulticastJoined))
		memberships, err := os.ReadFile("/proc/net/igmp6")
		require.NoError(t, err)
		assert.Equal(t, !sendOnly, strings.Contains(string(memberships), "ff150000000000000000000000007401"))
		require.NoError(t, g.Close())
	}
}

func TestMulticastFailures(t *testing.T) {
	r := newRig(t)
	cm := r.cm.(verbs.MulticastCM)
	group := netip.MustParseAddr("239.1.2.3")
	for _, bad := range []verbs.CMJoin{{}, {Group: ownAddr}, {Group: group, Local: netip.MustParseAddr("10.0.0.7")}, {Group: group, Local: netip.MustParseAddr("fe80::1")}} {
		_, err := cm.JoinMulticast(bad)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	g, raw := r.join()
	r.main(rawEvent{kind: eventAddrError, id: raw, status: -int(syscall.ENETUNREACH)})
	e := r.next(verbs.CMMulticastFailed)
	require.ErrorIs(t, e.Err, verbs.ErrNoRoute)
	assert.Equal(t, g, e.Multicast)
	require.NoError(t, g.Close())

	other, raw := r.join()
	raw.path.device = "mlx5_1"
	r.main(rawEvent{kind: eventAddrResolved, id: raw})
	require.ErrorIs(t, r.next(verbs.CMMulticastFailed).Err, verbs.ErrNoRoute)
	require.NoError(t, other.Close())

	for call, function := range map[string]string{"create": "rdma_create_id", "resolve address": "rdma_resolve_addr"} {
		r.lib.fail(call, syscall.ENOMEM)
		_, err := cm.JoinMulticast(verbs.CMJoin{Group: group})
		require.ErrorIs(t, err, verbs.ErrLimit)
		assert.ErrorContains(t, err, function)
		r.lib.fail(call, nil)
	}
	r.lib.fail("join", syscall.EOPNOTSUPP)
	_, raw = r.join()
	r.main(rawEvent{kind: eventAddrResolved, id: raw})
	require.ErrorIs(t, r.next(verbs.CMMulticastFailed).Err, verbs.ErrNotSupported)
}

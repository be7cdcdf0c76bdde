package route

import (
	"flag"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/verbs"
)

// aloneIn is the environment variable of tests that run in a network namespace of their own.
const aloneIn = "VERBENA_TEST_ALONE"

// TestMain leaves out the example that serves all addresses of a host, where that is not the test's own.
func TestMain(m *testing.M) {
	flag.Parse()
	if runtime.GOOS == "linux" && os.Getenv(aloneIn) == "" {
		_ = flag.Set("test.skip", "^ExampleServe$")
	}
	goleak.VerifyTestMain(m)
}

func TestLoopback(t *testing.T) {
	for _, target := range []string{"127.0.0.1", "127.0.0.9"} {
		r, err := Find("", netip.MustParseAddr(target))
		require.NoError(t, err)
		assert.Contains(t, r.Device, "soft-lo")
		assert.Contains(t, r.Why, "software device")
		dev, err := device.Open(r.Device)
		require.NoError(t, err)
		require.NoError(t, r.Rank(dev))
		require.NoError(t, dev.Close())
		used := 0
		for _, c := range r.Candidates {
			assert.NotEmpty(t, c.Why)
			if c.Used {
				used++
				assert.True(t, c.Entry.GID.Addr().Is4())
			}
		}
		assert.Equal(t, 1, used)
	}
}

func TestNothingToChooseBy(t *testing.T) {
	_, err := Find("", netip.Addr{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "name a device")
	r, err := Find("soft-lo", netip.Addr{})
	require.NoError(t, err)
	assert.Equal(t, "soft-lo", r.Device)
}

func TestWhichGID(t *testing.T) {
	gid := func(addr string, kind verbs.GIDType) verbs.GIDEntry {
		return verbs.GIDEntry{GID: verbs.GIDFromAddr(netip.MustParseAddr(addr)), Type: kind}
	}
	for _, c := range []struct {
		target, source string
		entry          verbs.GIDEntry
		taken, used    bool
		why            string
	}{
		{"192.0.2.9", "192.0.2.1", gid("192.0.2.1", verbs.GIDRoCEv2), false, true, "source address"},
		{"192.0.2.9", "192.0.2.1", gid("192.0.2.1", verbs.GIDRoCEv2), true, false, "not needed"},
		{"192.0.2.9", "192.0.2.1", gid("198.51.100.1", verbs.GIDRoCEv2), false, false, "not the source address of the system's route, 192.0.2.1"},
		{"192.0.2.9", "192.0.2.1", gid("2001:db8::1", verbs.GIDRoCEv2), false, false, "address family differs"},
		{"192.0.2.9", "192.0.2.1", gid("192.0.2.1", verbs.GIDRoCEv1), false, false, "not routed"},
		{"192.0.2.9", "192.0.2.1", gid("127.0.0.1", verbs.GIDRoCEv2), false, false, "loopback"},
		{"127.0.0.1", "127.0.0.1", gid("127.0.0.7", verbs.GIDRoCEv2), false, true, "loopback interface"},
		{"2001:db8::2", "2001:db8::1", gid("fe80::1", verbs.GIDRoCEv2), false, false, "link-local"},
	} {
		r := Route{Target: netip.MustParseAddr(c.target), Source: netip.MustParseAddr(c.source)}
		used, why := r.assess(c.entry, c.taken)
		assert.Equal(t, c.used, used, "%v", c)
		assert.Contains(t, why, c.why)
	}
}

// TestNoRoute: the system has no route to a link that does not exist.
func TestNoRoute(t *testing.T) {
	r, err := Find("", netip.MustParseAddr("fe80::1%no-such-link"))
	require.ErrorIs(t, err, verbs.ErrNoRoute)
	require.ErrorContains(t, err, "fe80::1%no-such-link")
	assert.Nil(t, r)
}

// TestRankTwice: Rank describes one device, not all that it was given.
func TestRankTwice(t *testing.T) {
	r, err := Find("soft-lo", netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	dev, err := device.Open(r.Device)
	require.NoError(t, err)
	require.NoError(t, r.Rank(dev))
	first := r.Candidates
	require.NotEmpty(t, first)
	require.NoError(t, r.Rank(dev))
	assert.Equal(t, first, r.Candidates)
	require.NoError(t, dev.Close())
}

// TestZones: an address of the link stays with its interface, of which another may have the
// same address.
func TestZones(t *testing.T) {
	a := netip.MustParseAddr("fe80::1%zone")
	list, err := LookUp(t.Context(), a.String())
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{a}, list)
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	found := 0
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, own := range addrs {
			p, err := netip.ParsePrefix(own.String())
			require.NoError(t, err)
			if !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() || i.Flags&net.FlagUp == 0 {
				continue
			}
			found++
			plain := p.Addr().WithZone("")
			assert.Equal(t, i.Name, hostaddr.InterfaceOf(plain.WithZone(i.Name)))
			assert.Equal(t, i.Name, hostaddr.InterfaceOf(plain.WithZone(strconv.Itoa(i.Index))))
			assert.Empty(t, hostaddr.InterfaceOf(plain.WithZone("none")))
			r, err := Find("", plain.WithZone(i.Name))
			require.NoError(t, err)
			assert.Equal(t, i.Name, r.Interface)
		}
	}
	if found == 0 {
		t.Log("no interface here has an address of its link")
	}
}

package link

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// joined tests two sockets of a group at two addresses, and a third that sends to it.
func joined(t *testing.T, cfg Config, first, second string, group netip.AddrPort) {
	cfg.Addr = netip.AddrPortFrom(netip.MustParseAddr(first), 0)
	a, tx := listen(t, cfg), listen(t, cfg)
	cfg.Addr = netip.AddrPortFrom(netip.MustParseAddr(second), 0)
	b := listen(t, cfg)
	other := netip.AddrPortFrom(group.Addr().Next(), group.Port())
	for _, s := range []*Socket{a, b} {
		for range 2 {
			require.NoError(t, s.Join(group))
		}
	}
	require.NoError(t, a.Join(other))
	woken := make(chan error)
	go func() { woken <- b.Wait(time.Time{}) }()

	h := Header{TrafficClass: 0x28, FlowLabel: 77}
	const packets = 10
	for i := range packets {
		p, _ := tx.Packet(group, h, 1000)
		p[0] = byte(i)
	}
	flush(t, tx)
	require.NoError(t, <-woken)
	want := h.arriving(group.Addr().Is4())
	want.HopLimit = 1
	for _, s := range []*Socket{a, b} {
		for i, d := range take(t, s, packets) {
			assert.Equal(t, tx.Source(), d.Src)
			assert.Equal(t, group.Addr(), d.Group)
			assert.Equal(t, byte(i), d.Data[0])
			assert.Equal(t, want, d.Header)
		}
	}

	// The socket still receives; the groups that were left give no more packets.
	require.NoError(t, a.Leave(group))
	require.NoError(t, a.Leave(group))
	for _, to := range []netip.AddrPort{group, other, a.Addr()} {
		put(tx, to, []byte(to.String()))
	}
	flush(t, tx)
	got := take(t, a, 2)
	texts := []string{string(got[0].Data), string(got[1].Data)}
	assert.ElementsMatch(t, []string{other.String(), a.Addr().String()}, texts)
	assert.Equal(t, group.String(), string(take(t, b, 1)[0].Data))
}

func TestGroups(t *testing.T) {
	for _, v := range variants {
		if !v.cfg.Portable {
			t.Run(v.name, func(t *testing.T) {
				joined(t, v.cfg, "127.0.0.1", "127.0.0.9", netip.MustParseAddrPort("239.255.71.1:4791"))
			})
		}
	}
}

// Groups of both families and of several scopes, on an interface that can broadcast.
func TestGroupsOfAnInterface(t *testing.T) {
	namespace(t, `
		link set lo up
		link add nic type veth peer name other
		link set nic up
		link set other up
		addr add 10.9.0.1/24 dev nic
		addr add 10.9.0.2/24 dev nic
		addr add fd00::1/64 dev nic nodad
		addr add fd00::2/64 dev nic nodad
		addr add fe80::1/64 dev nic nodad
		addr add fe80::2/64 dev nic nodad`)
	awaitCarrier(t, "nic")
	awaitLocal(t, "fd00::2")
	awaitLocal(t, "fe80::2")
	for _, c := range []struct{ first, second, group string }{
		{"10.9.0.1", "10.9.0.2", "239.255.71.1:4791"},
		{"fd00::1", "fd00::2", "[ff15::7101]:4791"},
		{"fd00::1", "fd00::2", "[ff02::7101]:4791"},
		{"fe80::1", "fe80::2", "[ff12::7101]:4791"},
	} {
		t.Log(c.first, c.group) // no subtest: it would run on a thread of another namespace
		joined(t, Config{Interface: "nic"}, c.first, c.second, netip.MustParseAddrPort(c.group))
	}
}

func TestGroupErrors(t *testing.T) {
	s := listen(t, Config{Addr: loopback4})
	for _, group := range []string{"127.0.0.2:4791", "[ff15::1]:4791"} {
		require.ErrorIs(t, s.Join(netip.MustParseAddrPort(group)), ErrAddress)
	}
	group := netip.MustParseAddrPort("239.255.71.3:4791")
	require.ErrorIs(t, listen(t, Config{Addr: loopback4, Portable: true}).Join(group), errors.ErrUnsupported)
	taken, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(taken, &unix.SockaddrInet4{Addr: group.Addr().As4(), Port: int(group.Port())}))
	require.ErrorIs(t, s.Join(group), syscall.EADDRINUSE)
	require.NoError(t, unix.Close(taken))
	require.NoError(t, s.Join(group))
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Join(group), net.ErrClosed)
}

// A receiver of group packets allocates nothing.
func TestGroupsDoNotAllocate(t *testing.T) {
	s := listen(t, Config{Addr: loopback4})
	group := netip.MustParseAddrPort("239.255.71.4:4791")
	require.NoError(t, s.Join(group))
	p := []byte("x")
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		put(s, group, p)
		_, _ = s.Flush()
		for list, _ := s.Receive(); len(list) == 0; list, _ = s.Receive() {
		}
	}))
}

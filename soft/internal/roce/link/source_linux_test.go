package link

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// otherProgram is a plain socket of another program.
type otherProgram struct{ sock int }

// newOtherProgram opens a socket of a family, with options that may help to bind it.
func newOtherProgram(t *testing.T, domain int, v6only bool, options ...int) otherProgram {
	t.Helper()
	sock, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(sock) })
	for _, o := range options {
		require.NoError(t, unix.SetsockoptInt(sock, unix.SOL_SOCKET, o, 1))
	}
	if domain == unix.AF_INET6 {
		only := 0
		if v6only {
			only = 1
		}
		require.NoError(t, unix.SetsockoptInt(sock, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only))
	}
	return otherProgram{sock}
}

// bind binds it to an address as it stands: one that is mapped into IPv6 stays so.
func (n otherProgram) bind(at netip.AddrPort) error {
	if at.Addr().Is4() {
		return unix.Bind(n.sock, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
	}
	return unix.Bind(n.sock, &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())})
}

// forge sends a packet that names its source by itself.
func (n otherProgram) forge(source netip.Addr, to netip.AddrPort) error {
	k := kernel{v4: source.Is4(), sendSock: -1, cfg: Config{Addr: netip.AddrPortFrom(source, 0)}}
	var c sendControl
	size := c.init(&k)
	control := unsafe.Slice((*byte)(unsafe.Pointer(&c.rest)), size)
	if to.Addr().Is4() {
		return unix.Sendmsg(n.sock, []byte("forged"), control, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}, 0)
	}
	return unix.Sendmsg(n.sock, []byte("forged"), control, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}, 0)
}

// modes are the sockets whose source no other program can use, and one whose source any
// program can.
var modes = map[string]struct {
	cfg       Config
	protected bool
}{
	"port to send from":         {Config{SendPorts: sendPorts}, true},
	"exclusive":                 {Config{Exclusive: true}, true},
	"bound at a single address": {Config{}, false},
}

// No other program can bind the port that packets leave from, at any address and with any
// option. Packets from a port at another address of the host appear to come from the first.
func TestSourceCannotBeTaken(t *testing.T) {
	namespace(t, `
		link set lo up
		addr add fd00::1/128 dev lo nodad
		addr add fd00::2/128 dev lo nodad`)
	awaitLocal(t, "fd00::1")
	awaitLocal(t, "fd00::2")
	for name, m := range modes {
		for _, own := range []string{"127.0.0.1", "fd00::1"} {
			cfg := m.cfg
			cfg.Addr = netip.AddrPortFrom(netip.MustParseAddr(own), 0)
			victim, peer := listen(t, cfg), listen(t, Config{Addr: cfg.Addr})
			put(victim, peer.Addr(), []byte("mine"))
			flush(t, victim)
			require.Equal(t, victim.Source(), take(t, peer, 1)[0].Src)

			port, v4 := victim.Source().Port(), victim.Source().Addr().Is4()
			others := map[string]bool{"127.0.0.1": true, "127.0.0.2": true, "0.0.0.0": true, "::": true, "::ffff:127.0.0.2": true}
			if !v4 {
				others = map[string]bool{"fd00::1": true, "fd00::2": true, "::1": true, "::": true}
			}
			forged := 0
			for at := range others {
				addr := netip.MustParseAddr(at)
				for _, options := range [][]int{nil, {unix.SO_REUSEADDR}, {unix.SO_REUSEPORT}, {unix.SO_REUSEADDR, unix.SO_REUSEPORT}} {
					domain := unix.AF_INET
					if addr.Is6() {
						domain = unix.AF_INET6
					}
					n := newOtherProgram(t, domain, false, options...)
					err := n.bind(netip.AddrPortFrom(addr, port))
					what := fmt.Sprintf("%s, %s: [%s]:%d with %v", name, own, at, port, options)
					if m.protected {
						require.ErrorIs(t, err, unix.EADDRINUSE, what)
						continue
					}
					if err == nil && addr.Is4() == v4 && n.forge(victim.Source().Addr(), peer.Addr()) == nil {
						d := take(t, peer, 1)[0]
						require.Equal(t, victim.Source(), d.Src, what)
						require.Equal(t, "forged", string(d.Data), what)
						forged++
					}
					unix.Close(n.sock)
				}
			}
			if !m.protected {
				assert.NotZero(t, forged, "the attack is none: %s, %s", name, own)
			}
		}
	}
}

// Ports of the other address family do not matter: no packet of one family can be sent from a
// port of the other.
func TestSourceOfTheOtherFamily(t *testing.T) {
	for _, own := range []netip.AddrPort{loopback4, loopback6} {
		victim := listen(t, Config{Addr: own, SendPorts: sendPorts})
		peer := listen(t, Config{Addr: own})
		v4 := own.Addr().Is4()
		domain, at := unix.AF_INET6, netip.IPv6Unspecified()
		if !v4 {
			domain, at = unix.AF_INET, netip.IPv4Unspecified()
		}
		n := newOtherProgram(t, domain, v4)
		require.NoError(t, n.bind(netip.AddrPortFrom(at, victim.Source().Port())))
		var err error
		if v4 {
			to := netip.AddrFrom16(own.Addr().As16()) // mapped
			err = n.forge(to, netip.AddrPortFrom(to, peer.Addr().Port()))
		} else {
			err = n.forge(own.Addr(), peer.Addr())
		}
		require.Error(t, err)
		got, err := peer.Receive()
		require.NoError(t, err)
		require.Empty(t, got)
	}
}

// A port that is bound at all addresses still needs an address of this host.
func TestExclusiveOfNoHost(t *testing.T) {
	for _, addr := range []string{"192.0.2.77:0", "[2001:db8::77]:0"} {
		_, err := Listen(Config{Addr: netip.MustParseAddrPort(addr), Exclusive: true})
		require.ErrorIs(t, err, unix.EADDRNOTAVAIL)
	}
}

// Sockets that share an address send from one port; where there is none left, the error says so.
func TestSendPorts(t *testing.T) {
	one := sendPorts
	first := listen(t, Config{Addr: loopback4, SendPorts: one})
	one.First, one.Last = first.Source().Port(), first.Source().Port()
	_, err := Listen(Config{Addr: loopback4, SendPorts: one})
	require.ErrorIs(t, err, ErrSendPort)
	assert.False(t, errors.Is(err, unix.EADDRINUSE), "another address does not help")
	second, err := first.Share(nil, 0)
	require.NoError(t, err)
	assert.Equal(t, first.Source(), second.Source())
	require.NoError(t, first.Close())
	_, err = Listen(Config{Addr: loopback4, SendPorts: one})
	require.ErrorIs(t, err, ErrSendPort)
	require.NoError(t, second.Close())
	_ = listen(t, Config{Addr: loopback4, SendPorts: one})
}

// Packets to the port that packets leave from are dropped and occupy no buffer.
func TestNothingComesToTheSendPort(t *testing.T) {
	for _, own := range []netip.AddrPort{loopback4, loopback6} {
		s, peer := listen(t, Config{Addr: own, SendPorts: sendPorts}), listen(t, Config{Addr: own})
		for range 100 {
			put(peer, s.Source(), make([]byte, 1000))
		}
		put(peer, s.Addr(), []byte("taken"))
		flush(t, peer)
		assert.Equal(t, "taken", string(take(t, s, 1)[0].Data))
		require.NoError(t, s.Wait(time.Now().Add(10*time.Millisecond)))
		got, err := s.Receive()
		require.NoError(t, err)
		assert.Empty(t, got)
		n, _, err := unix.Recvfrom(s.io.(*kernel).sendSock, make([]byte, 2000), unix.MSG_DONTWAIT)
		require.ErrorIs(t, err, unix.EAGAIN, "%d bytes", n)
		put(s, peer.Addr(), []byte("goes on"))
		flush(t, s)
		take(t, peer, 1)
	}
}

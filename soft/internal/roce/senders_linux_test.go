package roce

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// hosts are two network namespaces, joined by a link. Functions run in one create their
// sockets there.
type hosts struct {
	t   *testing.T
	run [2]chan func()
	pid [2]int // of a thread in each
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	h := &hosts{t: t}
	for i := range h.run {
		h.run[i] = make(chan func())
		ready := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the test
			err := unix.Unshare(unix.CLONE_NEWNET)
			h.pid[i] = unix.Gettid()
			ready <- err
			for f := range h.run[i] {
				f()
			}
		}()
		t.Cleanup(func() { close(h.run[i]) })
		if err := <-ready; err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skipf("the test needs leave to make network namespaces: %v", err)
		}
	}
	return h
}

// in runs a function in a namespace.
func (h *hosts) in(i int, f func()) {
	h.t.Helper()
	done := make(chan struct{})
	h.run[i] <- func() { f(); close(done) }
	<-done
}

func (h *hosts) ip(i int, lines string) {
	h.t.Helper()
	h.in(i, func() {
		for line := range strings.Lines(lines) {
			if args := strings.Fields(line); len(args) > 0 {
				out, err := exec.Command("ip", args...).CombinedOutput()
				assert.NoError(h.t, err, "ip %s: %s", line, out)
			}
		}
	})
	require.False(h.t, h.t.Failed())
}

// forgeFrom sends a well-formed packet with another source address, from the port of the
// socket.
func forgeFrom(sock int, source netip.AddrPort, to netip.AddrPort, p wire.Packet, payload string) error {
	headers := p.Opcode.HeaderLen()
	b := make([]byte, headers+len(payload)+wire.ICRCLen)
	p.MigReq, p.PKey = true, 0xffff
	p.PutHeaders(b)
	copy(b[headers:], payload)
	flow := wire.NewFlow(source, to)
	n := len(b) - wire.ICRCLen
	crc := flow.ICRCStart(0, len(b), b[:wire.BTHLen])
	wire.PutICRC(b[n:], wire.ICRCFinish(wire.ICRCUpdate(crc, b[wire.BTHLen:n])))
	if source.Addr().Is4() {
		control := make([]byte, unix.CmsgSpace(unix.SizeofInet4Pktinfo))
		h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		h.Level, h.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
		h.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
		(*unix.Inet4Pktinfo)(unsafe.Pointer(&control[unix.CmsgLen(0)])).Spec_dst = source.Addr().As4()
		return unix.Sendmsg(sock, b, control, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, 0)
	}
	control := make([]byte, unix.CmsgSpace(unix.SizeofInet6Pktinfo))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	h.Level, h.Type = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
	h.SetLen(unix.CmsgLen(unix.SizeofInet6Pktinfo))
	(*unix.Inet6Pktinfo)(unsafe.Pointer(&control[unix.CmsgLen(0)])).Addr = source.Addr().As16()
	return unix.Sendmsg(sock, b, control, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}, 0)
}

// Two hosts, and another program on the first, with an address of its own, which knows all
// numbers. It cannot bind the port that the device sends from, and its packets from other
// ports are refused.
func TestForgedPacketsBetweenHosts(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("the test needs ip (Debian package iproute2)")
	}
	for _, network := range []struct{ name, x, y, neighbour, all, mask string }{
		{"IPv4", "10.9.0.1", "10.9.0.2", "10.9.0.3", "0.0.0.0", "24"},
		{"IPv6", "fd00:9::1", "fd00:9::2", "fd00:9::3", "::", "64"},
	} {
		t.Run(network.name, func(t *testing.T) {
			h := newHosts(t)
			h.ip(0, fmt.Sprintf("link set lo up\nlink add left type veth peer name right netns %d\nlink set left up", h.pid[1]))
			h.ip(1, "link set lo up\nlink set right up")
			nodad := map[bool]string{true: " nodad"}[network.name == "IPv6"]
			h.ip(0, fmt.Sprintf("addr add %s/%s dev left%s\naddr add %s/%s dev left%s", network.x, network.mask, nodad, network.neighbour, network.mask, nodad))
			h.ip(1, fmt.Sprintf("addr add %s/%s dev right%s", network.y, network.mask, nodad))
			at := func(s string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(s), wire.UDPPort) }
			var x, y *side
			open := func(s string) *side {
				// The link, and IPv6 addresses, may take their time.
				cfg := Config{Name: "soft-test", Addresses: []netip.AddrPort{at(s)}, DisableLocal: true, MaxShards: 1, InterfaceMTU: 1500}
				for range 1000 {
					if d, err := Open(cfg); err == nil {
						assert.NoError(t, d.Close())
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				return openSideWith(t, cfg, 4096, verbs.QPInit{AdaptiveRetransmission: true})
			}
			h.in(0, func() { x = open(network.x) })
			h.in(1, func() { y = open(network.y) })
			x.mtu, y.mtu = 1024, 1024
			x.path.SourceUDPPort, y.path.SourceUDPPort = y.source().Port(), x.source().Port()
			x.connect(y)
			y.connect(x)
			x.post(x.write(y, 8))
			require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)

			h.in(0, func() {
				for _, own := range []string{network.neighbour, network.x, network.all} {
					c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(own), Port: int(x.source().Port())})
					if !assert.ErrorIs(t, err, unix.EADDRINUSE, own) {
						c.Close()
					}
				}
				c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(network.neighbour)})
				if !assert.NoError(t, err) {
					return
				}
				defer c.Close()
				source := netip.AddrPortFrom(netip.MustParseAddr(network.x), c.LocalAddr().(*net.UDPAddr).AddrPort().Port())
				raw, err := c.SyscallConn()
				if assert.NoError(t, err) {
					assert.NoError(t, raw.Control(func(fd uintptr) {
						for i := range 20 {
							assert.NoError(t, forgeFrom(int(fd), source, y.at(), write8(y, wire.PSNAdd(0xfffff1, i-2)), "intruder"))
						}
					}))
				}
			})
			y.awaitCount("rx_wrong_source", 0, 20)
			x.post(x.write(y, 8))
			require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
			assert.NotContains(t, string(y.mem), "intruder")
		})
	}
}

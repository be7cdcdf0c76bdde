package link

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// namespace moves the test to a network namespace of its own, and runs ip(8)
// with each line of commands there.
func namespace(t *testing.T, commands string) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		skipWithout(t, "ip (Debian package iproute2)", err)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		skipWithout(t, "leave to make a network namespace", err)
	}
	for line := range strings.Lines(commands) {
		if args := strings.Fields(line); len(args) > 0 {
			ip(t, args...)
		}
	}
}

// skipWithout skips a test for what the machine lacks, except in CI, where a skipped
// test would hide a broken one.
func skipWithout(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("the test needs %s: %v", what, err)
	}
	t.Skipf("the test needs %s: %v", what, err)
}

func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(t, err, "ip %s: %s", strings.Join(args, " "), out)
	return string(out)
}

// awaitLocal waits until packets to an IPv6 address just added are delivered;
// the kernel sees to that in the background.
func awaitLocal(t *testing.T, addr string) {
	t.Helper()
	for limit := time.Now().Add(testTimeout); !strings.Contains(ip(t, "-6", "route", "show", "table", "local"), "local "+addr+" "); {
		require.Less(t, time.Now(), limit, "no local route to %s", addr)
	}
}

// awaitCarrier waits until the kernel has noticed that an interface can send;
// until then it loses packets without a word.
func awaitCarrier(t *testing.T, name string) {
	t.Helper()
	for limit := time.Now().Add(testTimeout); ; {
		ifi, err := net.InterfaceByName(name)
		require.NoError(t, err)
		if ifi.Flags&net.FlagRunning != 0 {
			break
		}
		require.Less(t, time.Now(), limit, "no carrier on %s", name)
	}
	ip(t, "link", "set", name, "up") // waits for the kernel's lock, and so for the rest of it
}

func TestPathMTU(t *testing.T) {
	namespace(t, `
		link set lo mtu 1500
		link set lo up`)
	awaitLocal(t, "::1")
	for _, cfg := range []Config{{}, {DisableSegmentation: true}} {
		for _, addr := range []netip.AddrPort{loopback4, loopback6} {
			cfg.Addr = addr
			tx, rx := listen(t, cfg), listen(t, cfg)
			fits := 1500 - headerBytes(addr)
			for range 3 {
				put(tx, rx.Addr(), make([]byte, fits))
			}
			flush(t, tx)
			take(t, rx, 3)
			for _, n := range []int{1, 3} {
				for range n {
					put(tx, rx.Addr(), make([]byte, fits+1))
				}
				dropped, err := tx.Flush()
				assert.Equal(t, n, dropped)
				require.ErrorIs(t, err, unix.EMSGSIZE)
				assert.ErrorContains(t, err, "a packet of 1501 bytes exceeds the MTU of lo, 1500")
			}
			assert.Equal(t, !cfg.DisableSegmentation, tx.Features().Segmentation)
		}
	}
}

func TestLinkLocal(t *testing.T) {
	namespace(t, `
		link set lo up
		addr add fe80::1/64 dev lo nodad
		addr add fe80::2/64 dev lo nodad`)
	awaitLocal(t, "fe80::1")
	awaitLocal(t, "fe80::2")
	for _, portable := range []bool{false, true} {
		a := listen(t, Config{Portable: portable, Addr: netip.MustParseAddrPort("[fe80::1]:0"), Interface: "lo"})
		b := listen(t, Config{Portable: portable, Addr: netip.MustParseAddrPort("[fe80::2%lo]:0")})
		assert.Empty(t, a.Addr().Addr().Zone())
		put(a, b.Addr(), []byte("x"))
		flush(t, a)
		assert.Equal(t, a.Source(), take(t, b, 1)[0].Src)
	}
}

// Packets to a host that does not answer ARP stay in the send buffer.
func TestFullSendBuffer(t *testing.T) {
	namespace(t, `
		link add left type veth peer name right
		link set left up
		link set right up
		addr add 10.9.0.1/24 dev left`)
	awaitCarrier(t, "left")
	for _, v := range variants {
		cfg := v.cfg
		cfg.Addr = netip.MustParseAddrPort("10.9.0.1:0")
		cfg.SendBuffer = 1 // the kernel has a minimum
		tx := listen(t, cfg)
		const packets = 60
		for i := range packets {
			put(tx, netip.MustParseAddrPort("10.9.0.77:4791"), make([]byte, 1000+i))
		}
		start := time.Now()
		dropped, err := tx.Flush()
		assert.GreaterOrEqual(t, time.Since(start), sendTimeout, v.name)
		require.NoError(t, err, v.name)
		assert.Positive(t, dropped, v.name)
		assert.Less(t, dropped, packets, v.name)
	}
}

// Header fields that the invariant CRC covers: don't fragment, and the identification that
// Packet returned, also if the kernel cuts a train into packets.
func TestIdentificationOnTheWire(t *testing.T) {
	namespace(t, `
		link add left type veth peer name right
		link set left mtu 9000 gso_max_segs 1
		link set right mtu 9000
		link set left up
		link set right up
		addr add 10.9.0.1/24 dev left
		neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev left`)
	awaitCarrier(t, "left")
	capture := sniff(t, "right")
	for _, v := range variants {
		cfg := v.cfg
		cfg.Addr = netip.MustParseAddrPort("10.9.0.1:0")
		tx := listen(t, cfg)
		var want []int
		for _, size := range []int{4124, 4112, 4112, 4112, 500, 40, 40, 100, 100, 100} {
			want = append(want, put(tx, netip.MustParseAddrPort("10.9.0.2:4791"), make([]byte, size)))
		}
		flush(t, tx)
		if tx.Features().Segmentation {
			assert.Equal(t, []int{0, 1, 0, 1, 2, 0, 1, 0, 1, 2}, want, v.name)
		}
		for i, p := range capture(tx.Source().Port(), len(want)) {
			assert.Equal(t, want[i], int(binary.BigEndian.Uint16(p[4:])), "%s: identification of packet %d", v.name, i)
			assert.Equal(t, uint16(0x4000), binary.BigEndian.Uint16(p[6:]), "%s: flags of packet %d", v.name, i)
			assert.NotZero(t, binary.BigEndian.Uint16(p[26:]), "%s: UDP checksum of packet %d", v.name, i)
		}
	}
}

// sniff listens on an interface, and returns a function that takes n IPv4
// packets from a UDP port.
func sniff(t *testing.T, name string) func(port uint16, n int) [][]byte {
	ifi, err := net.InterfaceByName(name)
	require.NoError(t, err)
	network := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	sock, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(network))
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(sock) })
	require.NoError(t, unix.Bind(sock, &unix.SockaddrLinklayer{Protocol: network, Ifindex: ifi.Index}))
	limit := unix.NsecToTimeval(testTimeout.Nanoseconds())
	require.NoError(t, unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	return func(port uint16, n int) (packets [][]byte) {
		for len(packets) < n {
			p := make([]byte, 1<<16)
			size, _, err := unix.Recvfrom(sock, p, 0)
			require.NoError(t, err, "%d of %d packets seen", len(packets), n)
			if size >= 28 && p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[20:]) == port {
				packets = append(packets, p[:size])
			}
		}
		return packets
	}
}

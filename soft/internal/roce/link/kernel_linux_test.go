package link

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The kernels that the tests are meant for have all features; a skip would hide a broken
// probe.
func TestFeatures(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want Features
	}{
		{Config{}, Features{Segmentation: true, Coalescing: true, BatchReceive: true, Groups: true, MaxSegments: 64}},
		{Config{DisableSegmentation: true}, Features{Coalescing: true, BatchReceive: true, Groups: true, MaxSegments: 1}},
		{Config{DisableCoalescing: true}, Features{Segmentation: true, BatchReceive: true, Groups: true, MaxSegments: 64}},
		{Config{DisableBatch: true}, Features{Segmentation: true, Coalescing: true, Groups: true, MaxSegments: 64}},
		{Config{Portable: true}, Features{MaxSegments: 1}},
	} {
		for _, addr := range []netip.AddrPort{loopback4, loopback6} {
			c.cfg.Addr = addr
			c.cfg.ReceiveBuffer = 64 << 10
			got := listen(t, c.cfg).Features()
			assert.GreaterOrEqual(t, got.ReceiveBuffer, 64<<10)
			got.ReceiveBuffer = 0
			assert.Equal(t, c.want, got)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	for _, v := range variants {
		for _, addr := range []netip.AddrPort{loopback4, loopback6} {
			cfg := v.cfg
			cfg.Addr = addr
			t.Run(v.name+"/"+family(addr.Addr().Is4()), func(t *testing.T) {
				tx, rx := listen(t, cfg), listen(t, cfg)
				payload := make([]byte, 1000)
				const packets = 100
				run := func() {
					for i := range packets {
						put(tx, rx.Addr(), payload[:min(1000, 40+i)])
					}
					if n, err := tx.Flush(); n != 0 || err != nil {
						t.Fatal(n, err)
					}
					for n := 0; n < packets; {
						got, err := rx.Receive()
						if err != nil {
							t.Fatal(err)
						}
						if n += len(got); len(got) == 0 {
							// Data that is there, or soon will be: no deadline expires.
							if err := rx.Wait(time.Time{}); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				assert.Zero(t, testing.AllocsPerRun(20, run))
			})
		}
	}
}

func TestNoDescriptorLeaks(t *testing.T) {
	for _, portable := range []bool{false, true} {
		listen(t, Config{Addr: loopback4}) // the poller's own descriptors exist now
		before := descriptors(t)
		for range 10 {
			s, err := Listen(Config{Addr: loopback4, Portable: portable})
			require.NoError(t, err)
			_, err = Listen(Config{Addr: s.Addr(), Portable: portable})
			require.Error(t, err)
			require.NoError(t, s.Close())
		}
		assert.Equal(t, before, descriptors(t))
	}
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Over IPv6 too, packets arrive that have no UDP checksum.
func TestNoChecksum6(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			cfg := v.cfg
			cfg.Addr = netip.MustParseAddrPort("[::1]:0")
			rx := listen(t, cfg)
			s, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
			require.NoError(t, err)
			defer unix.Close(s)
			require.NoError(t, unix.SetsockoptInt(s, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, 1))
			to := &unix.SockaddrInet6{Port: int(rx.Addr().Port()), Addr: rx.Addr().Addr().As16()}
			require.NoError(t, unix.Sendto(s, []byte("unchecked"), 0, to))
			assert.Equal(t, "unchecked", string(take(t, rx, 1)[0].Data))
		})
	}
}

// Without a checksum the kernel refuses segmentation.
func TestSegmentationRefused(t *testing.T) {
	tx, rx := listen(t, Config{Addr: loopback4}), listen(t, Config{Addr: loopback4})
	require.NoError(t, unix.SetsockoptInt(tx.io.(*kernel).sock, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1))
	put(tx, rx.Addr(), []byte("alone"))
	for range 3 {
		put(tx, rx.Addr(), []byte("in a train"))
	}
	put(tx, rx.Addr(), []byte("also alone, since longer"))
	dropped, err := tx.Flush()
	assert.Equal(t, 3, dropped)
	require.ErrorIs(t, err, ErrSegmentation)
	require.ErrorIs(t, err, unix.EINVAL)
	assert.False(t, tx.Features().Segmentation)
	assert.Equal(t, 1, tx.Features().MaxSegments)

	for range 3 {
		assert.Zero(t, put(tx, rx.Addr(), []byte("one by one")))
	}
	flush(t, tx)
	var got []string
	for _, d := range take(t, rx, 5) {
		got = append(got, string(d.Data))
	}
	assert.Equal(t, strings.Split("alone|also alone, since longer|one by one|one by one|one by one", "|"), got)
}

// Errors of one destination do not affect the packets to others.
func TestUnreachable(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			cfg := v.cfg
			cfg.Addr = loopback4
			tx, rx := listen(t, cfg), listen(t, cfg)
			put(tx, rx.Addr(), []byte("before"))
			put(tx, netip.MustParseAddrPort("192.0.2.1:4791"), []byte("lost")) // from a loopback source
			put(tx, rx.Addr(), []byte("after"))
			dropped, err := tx.Flush()
			assert.Equal(t, 1, dropped)
			assert.ErrorContains(t, err, "192.0.2.1:4791")
			got := take(t, rx, 2)
			assert.Equal(t, "before", string(got[0].Data))
			assert.Equal(t, "after", string(got[1].Data))
		})
	}
}

func FuzzSockaddr(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1}, uint16(4791))
	f.Add(netip.IPv6Loopback().AsSlice(), uint16(1))
	f.Add(netip.MustParseAddr("fe80::1").AsSlice(), uint16(65535))
	f.Fuzz(func(t *testing.T, raw []byte, port uint16) {
		addr, ok := netip.AddrFromSlice(raw)
		if !ok || addr.Is4In6() {
			t.Skip()
		}
		var s sockaddr
		want := netip.AddrPortFrom(addr, port)
		size := s.encode(want, 3)
		assert.Equal(t, want, s.decode())
		assert.Equal(t, addr.Is4(), size == unix.SizeofSockaddrInet4)
		assert.Equal(t, addr.Is6() && addr.IsLinkLocalUnicast(), s.Scope_id == 3 && addr.Is6())
	})
}

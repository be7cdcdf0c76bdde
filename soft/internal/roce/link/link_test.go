package link

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testTimeout is how long a test waits for what must happen.
const testTimeout = 5 * time.Minute

var (
	loopback4 = netip.MustParseAddrPort("127.0.0.1:0")
	loopback6 = netip.MustParseAddrPort("[::1]:0")
)

// sendPorts are none that a system gives to sockets that ask for any.
var sendPorts = PortRange{First: 61000, Last: 65535}

type variant struct {
	name string
	cfg  Config
}

var variants = []variant{
	{"offloads", Config{}},
	{"no segmentation", Config{DisableSegmentation: true}},
	{"no coalescing", Config{DisableCoalescing: true}},
	{"no batch", Config{DisableBatch: true}},
	{"nothing", Config{DisableSegmentation: true, DisableCoalescing: true, DisableBatch: true}},
	{"portable", Config{Portable: true}},
	{"port to send from", Config{SendPorts: sendPorts}},
	{"portable, port to send from", Config{Portable: true, SendPorts: sendPorts}},
	{"exclusive", Config{Exclusive: true}},
}

// forEach runs a test over all variants and both families.
func forEach(t *testing.T, test func(t *testing.T, cfg Config)) {
	for _, v := range variants {
		for _, addr := range []netip.AddrPort{loopback4, loopback6} {
			t.Run(v.name+"/"+family(addr.Addr().Is4()), func(t *testing.T) {
				cfg := v.cfg
				cfg.Addr = addr
				test(t, cfg)
			})
		}
	}
}

func listen(t testing.TB, cfg Config) *Socket {
	t.Helper()
	s, err := Listen(cfg)
	if err != nil && cfg.Addr.Addr().Is6() && !cfg.Addr.Addr().IsLinkLocalUnicast() && !hasIPv6() {
		t.Skipf("no IPv6 on this machine: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func hasIPv6() bool {
	c, err := net.ListenPacket("udp6", "[::1]:0")
	if err == nil {
		c.Close()
	}
	return err == nil
}

// put sends a copy of p.
func put(s *Socket, dst netip.AddrPort, p []byte) (segment int) {
	b, segment := s.Packet(dst, Header{}, len(p))
	copy(b, p)
	return segment
}

func flush(t testing.TB, s *Socket) {
	t.Helper()
	dropped, err := s.Flush()
	require.NoError(t, err)
	require.Zero(t, dropped)
}

// take receives n packets and copies them.
func take(t testing.TB, s *Socket, n int) []Datagram {
	t.Helper()
	var got []Datagram
	limit := time.Now().Add(testTimeout)
	for len(got) < n {
		require.NoError(t, s.Wait(limit))
		batch, err := s.Receive()
		require.NoError(t, err)
		for _, d := range batch {
			d.Data = bytes.Clone(d.Data)
			got = append(got, d)
		}
		require.Less(t, time.Now(), limit, "only %d of %d packets have come", len(got), n)
	}
	require.Len(t, got, n)
	return got
}

func random(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

func TestPacketsArriveWholeAndInOrder(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		tx, rx := listen(t, cfg), listen(t, cfg)
		whole := tx.Features().Segmentation && rx.Features().Coalescing
		r := rand.New(rand.NewPCG(1, 2))
		sizes := []int{1, 12, 16, 40, 40, 40, 100, 1000, 1040, 4112, 4112, 4112, 4112, 9000}
		rounds := 30
		if testing.Short() {
			rounds = 10
		}
		for limit := time.Now().Add(testTimeout); rounds > 0; {
			var sent [][]byte
			var segments []int
			for n := 1 + r.IntN(100); len(sent) < n; {
				size := sizes[r.IntN(len(sizes))]
				for range 1 + r.IntN(20) {
					p := random(r, size)
					sent = append(sent, p)
					segments = append(segments, put(tx, rx.Addr(), p))
				}
			}
			dropped, err := tx.Flush()
			require.NoError(t, err)
			assert.Zero(t, tx.Pending())
			if dropped > 0 { // a kernel that does not get on has no room for more
				require.Less(t, time.Now(), limit)
				take(t, rx, len(sent)-dropped)
				continue
			}
			rounds--
			for i, d := range take(t, rx, len(sent)) {
				require.Equal(t, sent[i], d.Data, "packet %d", i)
				require.Equal(t, tx.Source(), d.Src)
				if whole {
					require.Equal(t, segments[i], d.Segment, "packet %d of %d bytes", i, len(d.Data))
				} else {
					require.Zero(t, d.Segment)
				}
			}
		}
	})
}

func TestTwoPeers(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		tx, a, b := listen(t, cfg), listen(t, cfg), listen(t, cfg)
		for i := range 20 {
			for _, peer := range []*Socket{a, a, b} {
				put(tx, peer.Addr(), fmt.Appendf(nil, "%02d to %s", i, peer.Addr()))
			}
		}
		flush(t, tx)
		for n, peer := range []*Socket{b, a} {
			for i, d := range take(t, peer, 20*(n+1)) {
				require.Equal(t, fmt.Sprintf("%02d to %s", i/(n+1), peer.Addr()), string(d.Data))
			}
		}
	})
}

func TestFullTrain(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		tx, rx := listen(t, cfg), listen(t, cfg)
		r := rand.New(rand.NewPCG(3, 4))
		train := max(2, tx.Features().MaxSegments)
		var sent [][]byte
		for i := range train {
			p := random(r, 1000)
			if i == train-1 {
				p = p[:7]
			}
			sent = append(sent, p)
			segment := put(tx, rx.Addr(), p)
			if tx.Features().Segmentation {
				assert.Equal(t, i, segment)
			} else {
				assert.Zero(t, segment)
			}
		}
		assert.Equal(t, train, tx.Pending())
		flush(t, tx)
		for i, d := range take(t, rx, train) {
			require.Equal(t, sent[i], d.Data)
		}
	})
}

func TestPacketIsReadAtFlush(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		tx, rx := listen(t, cfg), listen(t, cfg)
		p, _ := tx.Packet(rx.Addr(), Header{}, 6)
		copy(p, "oldold")
		copy(p, "new")
		flush(t, tx)
		copy(p, "???")
		assert.Equal(t, "newold", string(take(t, rx, 1)[0].Data))
	})
}

func TestReceiveNothing(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		got, err := listen(t, cfg).Receive()
		require.NoError(t, err)
		assert.Empty(t, got)
	})
}

func TestLargestPacket(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		if runtime.GOOS != "linux" {
			t.Skip("other systems limit a UDP packet to less")
		}
		tx, rx := listen(t, cfg), listen(t, cfg)
		p := random(rand.New(rand.NewPCG(5, 6)), MaxPacket)
		put(tx, rx.Addr(), p)
		put(tx, rx.Addr(), p[:MaxPacket-1])
		flush(t, tx)
		got := take(t, rx, 2)
		assert.True(t, bytes.Equal(p, got[0].Data))
		assert.True(t, bytes.Equal(p[:MaxPacket-1], got[1].Data))
	})
}

func TestWrongUseDropsOnlyThatPacket(t *testing.T) {
	packet := func(s *Socket, dst netip.AddrPort, size int) []byte {
		p, segment := s.Packet(dst, Header{}, size)
		assert.Zero(t, segment)
		return p
	}
	for name, c := range map[string]struct {
		wrong func(s *Socket, dst netip.AddrPort) []byte
		want  error
	}{
		"size 0":        {func(s *Socket, dst netip.AddrPort) []byte { return packet(s, dst, 0) }, ErrPacket},
		"size below 0":  {func(s *Socket, dst netip.AddrPort) []byte { return packet(s, dst, -1) }, ErrPacket},
		"too large":     {func(s *Socket, dst netip.AddrPort) []byte { return packet(s, dst, MaxPacket+1) }, ErrPacket},
		"far too large": {func(s *Socket, dst netip.AddrPort) []byte { return packet(s, dst, math.MaxInt) }, ErrPacket},
		"no address":    {func(s *Socket, _ netip.AddrPort) []byte { return packet(s, netip.AddrPort{}, 4) }, ErrAddress},
		"family":        {func(s *Socket, _ netip.AddrPort) []byte { return packet(s, loopback6, 4) }, ErrAddress},
	} {
		t.Run(name, func(t *testing.T) {
			tx, rx := listen(t, Config{Addr: loopback4}), listen(t, Config{Addr: loopback4})
			for range 3 {
				put(tx, rx.Addr(), []byte("before"))
				require.Nil(t, c.wrong(tx, rx.Addr()))
				put(tx, rx.Addr(), []byte("after"))
			}
			dropped, err := tx.Flush()
			assert.Equal(t, 3, dropped)
			require.ErrorIs(t, err, c.want)
			for i, d := range take(t, rx, 6) {
				assert.Equal(t, []string{"before", "after"}[i%2], string(d.Data))
			}
			flush(t, tx)
		})
	}
}

func TestMappedDestination(t *testing.T) {
	tx, rx := listen(t, Config{Addr: loopback4}), listen(t, Config{Addr: netip.MustParseAddrPort("[::ffff:127.0.0.1]:0")})
	assert.True(t, rx.Addr().Addr().Is4())
	put(tx, netip.AddrPortFrom(netip.MustParseAddr("::ffff:127.0.0.1"), rx.Addr().Port()), []byte("x"))
	flush(t, tx)
	take(t, rx, 1)
}

func TestListenErrors(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		first := listen(t, cfg)
		cfg.Addr = first.Addr()
		_, err := Listen(cfg)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		assert.ErrorContains(t, err, "address is in use")
		assert.ErrorContains(t, err, first.Addr().String())
	})
	for _, portable := range []bool{false, true} {
		_, err := Listen(Config{Portable: portable})
		assert.ErrorIs(t, err, ErrAddress)

		_, err = Listen(Config{Portable: portable, Addr: netip.MustParseAddrPort("192.0.2.1:4791")})
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		assert.ErrorContains(t, err, "192.0.2.1:4791: no interface")

		_, err = Listen(Config{Portable: portable, Addr: netip.MustParseAddrPort("[fe80::1]:4791")})
		require.ErrorIs(t, err, ErrAddress)
		assert.ErrorContains(t, err, "Config.Interface")

		_, err = Listen(Config{Portable: portable, Addr: netip.MustParseAddrPort("[fe80::1%no-such]:4791")})
		assert.ErrorContains(t, err, `"no-such"`)
	}
}

func TestClosed(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		s := listen(t, cfg)
		put(s, s.Addr(), []byte("one"))
		put(s, s.Addr(), []byte("two"))
		require.NoError(t, s.Close())
		require.NoError(t, s.Close())
		dropped, err := s.Flush()
		assert.Equal(t, 2, dropped)
		assert.ErrorIs(t, err, net.ErrClosed)
		_, err = s.Receive()
		assert.ErrorIs(t, err, net.ErrClosed)
		assert.ErrorIs(t, s.Wait(time.Time{}), net.ErrClosed)
		s.Interrupt()
		s.SetDeadline(time.Now())
		assert.ErrorIs(t, s.Wait(time.Time{}), net.ErrClosed)
	})
}

// Close is called while other goroutines are inside calls.
func TestCloseDuringTraffic(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		s := listen(t, cfg)
		done := make(chan struct{}, 2)
		running := make(chan struct{}, 2)
		go func() {
			defer func() { done <- struct{}{} }()
			for i := 0; ; i++ {
				for range 10 {
					put(s, s.Addr(), []byte("some packet"))
				}
				if _, err := s.Flush(); err != nil {
					assert.ErrorIs(t, err, net.ErrClosed)
					return
				}
				if i == 10 {
					running <- struct{}{}
				}
			}
		}()
		go func() {
			defer func() { done <- struct{}{} }()
			for i := 0; ; i++ {
				if err := s.Wait(time.Time{}); err != nil {
					assert.ErrorIs(t, err, net.ErrClosed)
					return
				}
				got, err := s.Receive()
				if err != nil {
					assert.ErrorIs(t, err, net.ErrClosed)
					return
				}
				for _, d := range got {
					assert.Equal(t, "some packet", string(d.Data))
				}
				if i == 2 {
					running <- struct{}{}
				}
			}
		}()
		<-running
		<-running
		require.NoError(t, s.Close())
		<-done
		<-done
	})
}

package link

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// closedPort returns an address of this machine with no listener.
func closedPort(t *testing.T, cfg Config) netip.AddrPort {
	t.Helper()
	s, err := Listen(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return s.Addr()
}

// A packet to a closed port is reported, whether the program waits or polls.
func TestPortUnreachable(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		if cfg.Portable {
			t.Skip("the portable socket has no reports")
		}
		tx := listen(t, cfg)
		gone := closedPort(t, cfg)
		assert.Empty(t, tx.Unreachable())
		for _, wait := range []bool{true, false} {
			put(tx, gone, []byte("to 1\x00\x00\x00\x01: anybody?"))
			flush(t, tx)
			limit := time.Now().Add(testTimeout)
			var got []Refusal
			for len(got) == 0 {
				if wait {
					require.NoError(t, tx.Wait(limit))
				}
				packets, err := tx.Receive()
				require.NoError(t, err)
				require.Empty(t, packets)
				got = tx.Unreachable()
				require.Less(t, time.Now(), limit, "nothing was reported")
			}
			report := Refusal{Peer: gone, Errno: unix.ECONNREFUSED}
			copy(report.Packet[:], "to 1\x00\x00\x00\x01: anybody?")
			assert.Equal(t, []Refusal{report}, got)
			assert.Empty(t, tx.Unreachable())
		}
		// The report is gone: it does not end another wait.
		start := time.Now()
		require.NoError(t, tx.Wait(start.Add(20*time.Millisecond)))
		assert.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	})
}

// Errors of one peer's address lose no packet to or from another.
func TestPortUnreachableLosesNothing(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		if cfg.Portable {
			t.Skip("the portable socket has no reports")
		}
		a, b := listen(t, cfg), listen(t, cfg)
		gone := []netip.AddrPort{closedPort(t, cfg), closedPort(t, cfg)}
		reported := 0
		for round := range 50 {
			const packets = 20
			for i := range packets {
				put(a, gone[i%2], []byte("lost"))
				put(a, b.Addr(), fmt.Appendf(nil, "there %d %d", round, i))
				put(b, a.Addr(), fmt.Appendf(nil, "back %d %d", round, i))
			}
			flush(t, b)
			flush(t, a)
			for i, d := range take(t, b, packets) {
				require.Equal(t, fmt.Sprintf("there %d %d", round, i), string(d.Data))
			}
			for i, d := range take(t, a, packets) {
				require.Equal(t, fmt.Sprintf("back %d %d", round, i), string(d.Data))
			}
			for _, r := range a.Unreachable() {
				require.Contains(t, gone, r.Peer)
				reported++
			}
			require.Empty(t, b.Unreachable())
		}
		assert.NotZero(t, reported)
	})
}

// The number of reports that are not read is bounded.
func TestPortUnreachableBounded(t *testing.T) {
	cfg := Config{Addr: loopback4}
	tx := listen(t, cfg)
	gone := closedPort(t, cfg)
	for range 20 {
		for range 20 {
			put(tx, gone, []byte("x"))
			flush(t, tx)
		}
		_, err := tx.Receive()
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, len(tx.Unreachable()), maxUnreachable)
}

// FuzzErrorMessage: no length in a message of the error queue is trusted.
func FuzzErrorMessage(f *testing.F) {
	f.Add([]byte{}, uint64(0))
	f.Add([]byte{48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 111, 0, 0, 0, 2, 3, 3}, uint64(48))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0}, uint64(8))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255}, uint64(1<<63))
	f.Fuzz(func(t *testing.T, control []byte, length uint64) {
		var e errorQueue
		e.header.Namelen = unix.SizeofSockaddrInet4
		e.header.SetControllen(int(length))
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&e.control)), unsafe.Sizeof(e.control)), control)
		e.unreachable()
	})
}

func TestErrorMessages(t *testing.T) {
	for name, c := range map[string]struct {
		level, kind int32
		origin      uint8
		errno       syscall.Errno
		want        bool
	}{
		"port":                    {unix.SOL_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_ICMP, unix.ECONNREFUSED, true},
		"port, IPv6":              {unix.SOL_IPV6, unix.IPV6_RECVERR, unix.SO_EE_ORIGIN_ICMP6, unix.ECONNREFUSED, true},
		"host":                    {unix.SOL_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_ICMP, unix.EHOSTUNREACH, true},
		"network":                 {unix.SOL_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_ICMP, unix.ENETUNREACH, true},
		"administratively denied": {unix.SOL_IPV6, unix.IPV6_RECVERR, unix.SO_EE_ORIGIN_ICMP6, unix.EACCES, true},
		"too large":               {unix.SOL_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_ICMP, unix.EMSGSIZE, false},
		"of this host":            {unix.SOL_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_LOCAL, unix.ECONNREFUSED, false},
		"other control data":      {unix.SOL_UDP, unix.UDP_GRO, unix.SO_EE_ORIGIN_ICMP, unix.ECONNREFUSED, false},
	} {
		t.Run(name, func(t *testing.T) {
			var e errorQueue
			e.header.Namelen = unix.SizeofSockaddrInet4
			b := unsafe.Pointer(&e.control)
			first := (*unix.Cmsghdr)(b) // something else before it
			first.Level, first.Type = unix.SOL_SOCKET, unix.SO_TIMESTAMP
			first.SetLen(unix.CmsgLen(3))
			at := unix.CmsgSpace(3)
			h := (*unix.Cmsghdr)(unsafe.Add(b, at))
			h.Level, h.Type = c.level, c.kind
			h.SetLen(unix.CmsgLen(extendedErrorBytes))
			x := (*unix.SockExtendedErr)(unsafe.Add(b, at+unix.CmsgLen(0)))
			x.Origin, x.Errno = c.origin, uint32(c.errno)
			e.header.SetControllen(at + unix.CmsgSpace(extendedErrorBytes))
			want := c.errno
			if !c.want {
				want = 0
			}
			assert.Equal(t, want, e.unreachable())
			e.header.SetControllen(at + unix.CmsgSpace(extendedErrorBytes) - 9)
			assert.Zero(t, e.unreachable(), "cut short")
			e.header.Namelen = 0
			e.header.SetControllen(at + unix.CmsgSpace(extendedErrorBytes))
			assert.Zero(t, e.unreachable(), "without an address")
		})
	}
}

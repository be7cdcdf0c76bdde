package rsocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// aloneIn is the environment variable of a test that runs in a network namespace of its own.
const aloneIn = "VERBENA_TEST_ALONE"

// alone runs a test in a network namespace of its own, where nothing changes: the interfaces n0 and n1 have
// the addresses 10.12.0.1 and 10.12.0.2. It reports false in the process that has only waited for that.
func alone(t *testing.T) bool {
	if os.Getenv(aloneIn) != "" {
		return true
	}
	n := netns.New(t)
	n.IP(t, "link add n0 type veth peer name n1")
	for i, name := range []string{"n0", "n1"} {
		n.IP(t, "link set %s addrgenmode none", name) // a generated address would be tentative for a while
		n.IP(t, "addr add 10.12.0.%d/24 dev %s", i+1, name)
		n.IP(t, "link set %s up", name)
	}
	args := append(n.Run(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=8m")
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), aloneIn+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// A listener on all addresses is reached at each that it names, and at the unspecified one.
func TestAllAddresses(t *testing.T) {
	if !alone(t) {
		return
	}
	for _, host := range []string{"", "0.0.0.0", "[::]"} {
		l, err := Listen(host + ":0")
		require.NoError(t, err)
		own := l.Addr().(*Addr).AddrPort
		require.Equal(t, netip.IPv6Unspecified(), own.Addr())
		addrs := append(l.Addrs(), own)
		for _, host := range []string{"127.0.0.1", "::1", "10.12.0.1", "10.12.0.2"} {
			require.Contains(t, addrs, netip.AddrPortFrom(netip.MustParseAddr(host), own.Port()))
		}
		for _, a := range addrs {
			c, err := Dial(context.Background(), a.String())
			require.NoError(t, err, "%v", a)
			far, err := l.Accept()
			require.NoError(t, err)
			require.NoError(t, errors.Join(c.Close(), far.Close()))
		}
		_, err = Listen(l.Addr().String())
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.ErrorContains(t, err, "of interface ")
		require.NoError(t, l.Close())
		_, err = Dial(context.Background(), addrs[0].String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
}

// Stacks end with a listener at all addresses, whose connections may be accepted or wait for that.
func TestEndOfListener(t *testing.T) {
	if !alone(t) {
		return
	}
	for _, keep := range []bool{false, true} {
		s := newStacks("", Config{}, keep)
		l, err := s.Listen(":0")
		require.NoError(t, err)
		var conns []net.Conn
		for range 2 {
			c, err := s.Dial(context.Background(), l.Addr().String())
			require.NoError(t, err)
			conns = append(conns, c)
		}
		far, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, s.Close())
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, l.Close(), net.ErrClosed)
		for _, c := range append(conns, far) {
			require.ErrorIs(t, c.Close(), net.ErrClosed)
		}
	}
}

// A listener may be closed with connections that nobody has accepted, and stacks may end while one starts to
// listen.
func TestListenAndClose(t *testing.T) {
	if !alone(t) {
		return
	}
	for i := range 20 {
		s := newStacks("", Config{}, i%2 == 0)
		var listening sync.WaitGroup
		listening.Go(func() {
			l, err := s.Listen(":0")
			if err != nil {
				assert.ErrorIs(t, err, net.ErrClosed)
				return
			}
			if c, err := s.Dial(context.Background(), l.Addr().String()); err == nil {
				_ = l.Close()
				_ = c.Close()
			}
		})
		time.Sleep(time.Duration(i) * time.Millisecond) // it opens its devices
		require.NoError(t, s.Close())
		listening.Wait()
	}
}

// A stack that fails ends its part alone, and the listener makes another.
func TestOneStackFails(t *testing.T) {
	if !alone(t) {
		return
	}
	s := NewStacks("", Config{})
	l, err := s.Listen(":0")
	require.NoError(t, err)
	port := l.Addr().(*Addr).Port()
	reach := func(host string) error {
		c, err := s.Dial(context.Background(), netip.AddrPortFrom(netip.MustParseAddr(host), port).String())
		if err != nil {
			return err
		}
		far, err := l.Accept()
		require.NoError(t, err)
		return errors.Join(c.Close(), far.Close())
	}
	hosts := []string{"127.0.0.1", "10.12.0.1", "10.12.0.2"}
	for _, h := range hosts {
		require.NoError(t, reach(h))
	}
	stacks := s.Stacks()
	failed := stacks[slices.IndexFunc(stacks, func(s *Stack) bool { return s.Device().Name() == "soft-n0" })]
	failed.stopEngine()
	<-failed.ended
	for _, h := range []string{"127.0.0.1", "10.12.0.2"} {
		require.NoError(t, reach(h))
	}
	deadline := time.Now().Add(5 * time.Minute)
	// (A dial before that could find the device still open, and open another on another UDP port.)
	for slices.Contains(s.Stacks(), failed) || reach("10.12.0.1") != nil {
		require.True(t, time.Now().Before(deadline))
		time.Sleep(time.Millisecond)
	}
	for _, stack := range s.Stacks() {
		gids, err := stack.Device().GIDs(1)
		require.NoError(t, err)
		require.EqualValues(t, 4791, gids[0].UDPPort)
	}
	require.NoError(t, errors.Join(l.Close(), s.Close()))
}

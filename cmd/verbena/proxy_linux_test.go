package main

import (
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/test/netns"
)

// inside calls f in a network namespace. Sockets stay in the namespace that they were made in.
func inside(t *testing.T, n netns.Namespace, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		done <- func() error {
			file, err := os.Open("/var/run/netns/" + string(n))
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }()
			if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		}()
	}()
	require.NoError(t, <-done)
}

// Two hosts: RDMA between them, over IPv4, IPv6 and link-local addresses. A listener on all
// addresses has the loopback address too.
func TestProxyHosts(t *testing.T) {
	a, b := netns.New(t, "a"), netns.New(t, "b")
	a.IP(t, "link add e0 type veth peer name e0 netns %s", b)
	for i, n := range []netns.Namespace{a, b} {
		n.IP(t, "addr add 10.11.0.%d/24 dev e0", i+1)
		n.IP(t, "addr add fd11::%d/64 dev e0 nodad", i+1)
		n.IP(t, "addr add fe80::11:%d/64 dev e0 nodad", i+1)
		n.IP(t, "link set lo up")
		n.IP(t, "link set e0 up")
		n.IP(t, "route add default dev e0")
	}
	var target net.Listener
	inside(t, b, func() (err error) {
		target, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	serveOn(t, target, echo)
	far, at := startProxyOn(t, b.Run(), "rdma:*:0", "tcp:"+target.Addr().String())
	assert.Contains(t, far.out.String(), "any machine that reaches this address")
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	for _, c := range []struct {
		from netns.Namespace
		host string
	}{{a, "10.11.0.2"}, {a, "[fd11::2]"}, {a, "[fe80::11:2%e0]"}, {b, "localhost"}} {
		near, addr := startProxyOn(t, c.from.Run(), "tcp:0", "rdma:"+c.host+":"+port)
		var client net.Conn
		inside(t, c.from, func() (err error) {
			client, err = net.Dial("tcp", addr)
			return err
		})
		exchangeOn(t, client.(*net.TCPConn), 1_000_000)
		require.NoError(t, client.Close())
		near.interrupted()
		assert.Contains(t, near.out.String(), "failed=0", c.host)
	}
	far.interrupted()
	assert.Contains(t, far.out.String(), "connections=4 ")

	// Without a host, a device that has no loopback address does not listen.
	fail := start(t, verbena(b.Run(), "proxy", "-d", "soft-e0", "rdma:0", "tcp:localhost:80")...)
	assert.Equal(t, 1, fail.code())
	assert.Contains(t, fail.out.String(), "write rdma:*:0 to listen on all of its addresses")
}

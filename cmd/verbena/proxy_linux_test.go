package main

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// Two hosts: RDMA between them, over IPv4, IPv6 and link-local addresses. A listener on all
// addresses has the loopback address too.
func TestProxyHosts(t *testing.T) {
	hosts := netns.Hosts(t, 2, 1500)
	for i, h := range hosts {
		h.IP(t, "addr add fe80::11:%d/64 dev e0 nodad", i+1)
		h.IP(t, "route add default dev e0")
	}
	a, b := hosts[0], hosts[1]
	var target net.Listener
	require.NoError(t, b.Do(func() (err error) {
		target, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	serveOn(t, target, echo)
	far, at := startProxyBy(t, verbena(t, b.Run()), "rdma:*:0", "tcp:"+target.Addr().String())
	assert.Contains(t, far.Stderr.String(), "any machine that reaches this address")
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	for _, c := range []struct {
		from netns.Host
		host string
	}{{a, "10.11.0.2"}, {a, "[fd11::2]"}, {a, "[fe80::11:2%e0]"}, {b, "localhost"}} {
		near, addr := startProxyBy(t, verbena(t, c.from.Run()), "tcp:0", "rdma:"+c.host+":"+port)
		var client net.Conn
		require.NoError(t, c.from.Do(func() (err error) {
			client, err = net.Dial("tcp", addr)
			return err
		}))
		exchangeOn(t, client.(*net.TCPConn), 1_000_000)
		require.NoError(t, client.Close())
		interrupted(near)
		assert.Contains(t, near.Stderr.String(), "failed=0", c.host)
	}
	interrupted(far)
	assert.Contains(t, far.Stderr.String(), "connections=4 ")

	// Without a host, a device that has no loopback address does not listen.
	fail := start(t, verbena(t, b.Run(), "proxy", "-d", "soft-e0", "rdma:0", "tcp:localhost:80")...)
	assert.Equal(t, 1, fail.Code())
	assert.Contains(t, fail.Stderr.String(), "write rdma:*:0 to listen on all of its addresses")
}

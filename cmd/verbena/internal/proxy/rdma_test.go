package proxy

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func openRDMA(t *testing.T, device string, max int) *rdma {
	r := newRDMA(device, max, zerolog.Nop())
	t.Cleanup(func() { require.NoError(t, r.close()) })
	return r
}

// listenRDMA listens on an address, and returns the address for a dial to a host.
func listenRDMA(t *testing.T, r *rdma, a address, host string) (net.Listener, address) {
	t.Helper()
	l, err := r.listen(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, address{"rdma", host, netip.MustParseAddrPort(l.Addr().String()).Port()}
}

// A reset goes through the proxy from TCP to RDMA and from RDMA to TCP.
func TestResetOverRDMA(t *testing.T) {
	r := openRDMA(t, "", 20)
	l, at := listenRDMA(t, r, address{network: "rdma"}, "127.0.0.1")
	for _, of := range []string{"client", "target"} {
		client, nearClient := tcpPair(t)
		nearTarget, err := r.dial(t.Context(), at)
		require.NoError(t, err)
		accepted, err := l.Accept()
		require.NoError(t, err)
		target := accepted.(stream)
		result := make(chan error)
		go func() { result <- newPair(nearClient, nearTarget, 0).run(t.Context()) }()
		resets, other := stream(client), target
		if of == "target" {
			resets, other = target, stream(client)
		}
		_, err = resets.Write([]byte("part"))
		require.NoError(t, err)
		_, err = io.ReadFull(other, make([]byte, 4))
		require.NoError(t, err)
		reset(resets)
		_, err = other.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.ErrorIs(t, <-result, syscall.ECONNRESET)
		_ = other.Close()
	}
}

// A client that closes is noticed while the target is silent, over RDMA too.
func TestGoneOverRDMA(t *testing.T) {
	r := openRDMA(t, "", 20)
	l, at := listenRDMA(t, r, address{network: "rdma"}, "127.0.0.1")
	client, err := r.dial(t.Context(), at)
	require.NoError(t, err)
	near, err := l.Accept()
	require.NoError(t, err)
	nearTarget, target := tcpPair(t)
	result := make(chan error)
	p := newPair(near.(stream), nearTarget, 0)
	p.ask = 10 * time.Millisecond
	go func() { result <- p.run(t.Context()) }()
	_, err = client.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(target, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, client.Close())
	require.NoError(t, <-result)
	_, err = target.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// hop returns a pair of a TCP client and an RDMA target, with the far ends.
func hop(t *testing.T, idle time.Duration) (client *net.TCPConn, target stream, p *pair) {
	r := openRDMA(t, "", 20)
	l, at := listenRDMA(t, r, address{network: "rdma"}, "127.0.0.1")
	client, nearClient := tcpPair(t)
	nearTarget, err := r.dial(t.Context(), at)
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	return client, accepted.(stream), newPair(nearClient, nearTarget, idle)
}

// The idle limit holds over RDMA too.
func TestIdleOverRDMA(t *testing.T) {
	client, target, p := hop(t, 50*time.Millisecond)
	require.ErrorContains(t, p.run(t.Context()), "no data in either direction for 50ms")
	for _, c := range []net.Conn{client, target} {
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_ = c.Close()
	}
}

// Much data goes both ways at once, from TCP to RDMA and back.
func TestDataOverRDMA(t *testing.T) {
	client, target, p := hop(t, time.Hour)
	exchange(t, p, client, target)
	_ = target.Close()
}

// TestProxyHosts of the program has the addresses that are not of the loopback interface.
func TestListenRDMA(t *testing.T) {
	for _, c := range []struct{ device, host, dial string }{
		{"", "", "127.0.0.1"},
		{"", "", "localhost"},
		{"", "localhost", "localhost"},
		{"soft-lo", "", "127.0.0.1"},
		{"soft-lo", "*", "127.0.0.1"},
		{"soft-lo", "0.0.0.0", "127.0.0.1"},
	} {
		r := openRDMA(t, c.device, 20)
		l, at := listenRDMA(t, r, address{"rdma", c.host, 0}, c.dial)
		near, err := r.dial(t.Context(), at)
		require.NoError(t, err, "%v: %v", c, at)
		far, err := l.Accept()
		require.NoError(t, err)
		_, err = near.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(far, make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
		require.NoError(t, l.Close())
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
	}
}

func TestRDMAFails(t *testing.T) {
	r := openRDMA(t, "", 20)
	l, at := listenRDMA(t, r, address{network: "rdma"}, "127.0.0.1")
	_, err := r.listen(t.Context(), address{"rdma", "", at.port})
	require.ErrorContains(t, err, "listen on rdma:"+strconv.Itoa(int(at.port)))
	require.NoError(t, l.Close())
	_, err = r.dial(t.Context(), at)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = r.dial(t.Context(), address{"rdma", "no-such-host.invalid", 1})
	require.ErrorContains(t, err, "no-such-host.invalid")
	_, err = r.listen(t.Context(), address{"rdma", "no-such-host.invalid", 1})
	require.ErrorContains(t, err, "no-such-host.invalid")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err = r.dial(ctx, at)
	require.ErrorIs(t, err, context.Canceled)

	_, err = openRDMA(t, "nothing0", 20).dial(t.Context(), at)
	require.ErrorContains(t, err, "nothing0")
	_, err = openRDMA(t, "soft-lo", 1<<30).dial(t.Context(), at)
	require.ErrorContains(t, err, "lower -max")
}

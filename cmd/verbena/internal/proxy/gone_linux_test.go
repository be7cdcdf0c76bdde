package proxy

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A client that closes is noticed while the target is silent: when its system has forgotten the
// connection, which it tells in response to a keepalive.
func TestGoneOverTCP(t *testing.T) {
	client, near := tcpPair(t)
	nearTarget, target := tcpPair(t)
	require.NoError(t, near.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second}))
	p := newPair(near, nearTarget, 0)
	p.ask = 10 * time.Millisecond
	result := make(chan error)
	go func() { result <- p.run(t.Context()) }()
	raw, err := client.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_LINGER2, 1) // it forgets soon
	}))
	require.NoError(t, err)
	require.NoError(t, client.Close())
	_, err = target.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, <-result)
}

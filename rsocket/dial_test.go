package rsocket

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// A DialContext takes the networks that clients name, and its errors come with a net.Conn that is nil.
func TestDialContext(t *testing.T) {
	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	for _, name := range []string{"tcp", "rdma"} {
		c, err := DialContext(context.Background(), name, l.Addr().String())
		require.NoError(t, err)
		far, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, far.Close())
	}
	c, err := DialContext(context.Background(), "unix", "/tmp/redis.sock")
	require.Equal(t, nil, c) // and not a nil *Conn
	var unknown net.UnknownNetworkError
	require.ErrorAs(t, err, &unknown)
	require.EqualError(t, err, "dial rdma: unknown network unix")
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	c, err = DialContext(context.Background(), "tcp", addr)
	require.Equal(t, nil, c)
	require.Error(t, err)
}

package rsocket

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket/internal/hosts"
	"github.com/verbena-rdma/verbena/soft"
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

// The first address of a name does not answer: the others still get a part of the time.
func TestFirstAddressDoesNotAnswer(t *testing.T) {
	deaf := open(t, soft.Config{Faults: soft.Faults{Loss: 1}}, Config{})
	silent, err := deaf.Listen("127.0.0.1:0")
	require.NoError(t, err)
	l, err := open(t, soft.Config{}, Config{}).Listen("127.0.0.1:0")
	require.NoError(t, err)
	client := open(t, soft.Config{}, Config{})
	const addresses = 30 // two seconds for each; a slow machine may need more than one of them
	var failures []error
	to := func(ctx context.Context, _, _ string) (*Conn, error) {
		addr := l.Addr()
		if len(failures) == 0 {
			addr = silent.Addr()
		}
		c, err := client.dial(ctx, addr.String())
		failures = append(failures, err)
		return c, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), addresses*2*time.Second)
	defer cancel()
	c, err := hosts.Dial(ctx, slices.Repeat([]string{"127.0.0.1"}, addresses), "", to)
	require.NoError(t, err)
	require.ErrorIs(t, failures[0], context.DeadlineExceeded)
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())
	require.NoError(t, silent.Close())
}

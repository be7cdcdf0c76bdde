package rsocket

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/soft"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// paths are the ways of packets between two software devices of one machine.
var paths = map[string]soft.Config{"shared memory": {}, "UDP": {DisableLocal: true}}

// open makes a stack on a device of its own.
func open(t testing.TB, dev soft.Config, cfg Config) *Stack {
	t.Helper()
	d, err := soft.Open(dev)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	cfg.Device = d
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// connect makes a connection of two stacks.
func connect(t testing.TB, client, server *Stack) (near, far *Conn) {
	t.Helper()
	l, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	near, err = client.Dial(context.Background(), l.Addr().String())
	require.NoError(t, err)
	c, err := l.Accept()
	require.NoError(t, err)
	return near, c.(*Conn)
}

var _ net.Conn = (*Conn)(nil)

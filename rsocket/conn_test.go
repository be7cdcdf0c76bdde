package rsocket

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// The contract of net.Conn, as package nettest checks it.
func TestConn(t *testing.T) {
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			client, server := open(t, dev, Config{}), open(t, dev, Config{})
			nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
				near, far := connect(t, client, server)
				return near, far, func() { _ = near.Close(); _ = far.Close() }, nil
			})
		})
	}
}

// Config.Path is that of every connection of the stack.
func TestPath(t *testing.T) {
	d, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	gids, err := d.GIDs(1)
	require.NoError(t, err)
	for _, wrong := range []rdma.PathConfig{{Port: 9}, {GIDIndex: new(len(gids))}} {
		_, err := New(Config{Device: d, Path: wrong})
		require.Error(t, err)
	}
	server := open(t, soft.Config{}, Config{})
	for _, e := range gids {
		if !e.GID.Addr().Unmap().Is4() {
			continue // connect dials an IPv4 address
		}
		client, err := New(Config{Device: d, Path: rdma.PathConfig{Port: 1, GIDIndex: &e.Index, MTU: verbs.MTU(512)}, MaxConnections: 1})
		require.NoError(t, err)
		near, far := connect(t, client, server)
		require.Equal(t, e.GID.Addr().Unmap(), near.LocalAddr().(*Addr).Addr().Unmap())
		require.Equal(t, verbs.MTU(512), near.conn.MTU())
		require.NoError(t, errors.Join(near.Close(), far.Close(), client.Close()))
	}
}

package rsocket_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
)

// ends are the ends of a connection, with the methods that *net.TCPConn and *rsocket.Conn share.
type socket interface {
	net.Conn
	CloseWrite() error
	SetLinger(sec int) error
}

// kindOf is what a program sees of an error.
func kindOf(err error) string {
	for name, kind := range map[string]error{
		"EPIPE": syscall.EPIPE, "closed": net.ErrClosed, "deadline": os.ErrDeadlineExceeded, "reset": syscall.ECONNRESET, "EOF": io.EOF,
	} {
		if errors.Is(err, kind) {
			return name
		}
	}
	if err != nil {
		return err.Error()
	}
	return "none"
}

// The results of calls are those of TCP.
func TestResultsAreThoseOfTCP(t *testing.T) {
	read := func(size int) func(c socket) error {
		return func(c socket) error { _, err := c.Read(make([]byte, size)); return err }
	}
	write := func(size int) func(c socket) error {
		return func(c socket) error { _, err := c.Write(make([]byte, size)); return err }
	}
	past := time.Now().Add(-time.Second)
	expired := func(c socket) error { return c.SetDeadline(past) }
	unlimited := func(c socket) error { return c.SetDeadline(time.Time{}) }
	cases := map[string][]func(c socket) error{
		"deadline":        {expired, read(0), read(1), write(0), write(1), unlimited, write(1)},
		"CloseWrite":      {write(1), socket.CloseWrite, write(0), write(1), read(0), socket.CloseWrite, expired, write(1), write(0)},
		"Close":           {socket.Close, read(0), read(1), write(0), write(1), socket.CloseWrite, expired, socket.Close},
		"end of data":     {read(1), read(1), read(0), expired, read(0), read(1)},
		"both directions": {socket.CloseWrite, read(1), read(1), read(0), write(1)},
	}
	server := open(t, soft.Config{}, rsocket.Config{})
	client := open(t, soft.Config{}, rsocket.Config{})
	overRDMA := listen(t, server)
	overTCP, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, overTCP.Close()) }()
	for name, calls := range cases {
		var results [2][]string
		for i, network := range []struct {
			l    net.Listener
			dial func(context.Context, string, string) (net.Conn, error)
		}{{overTCP, (&net.Dialer{}).DialContext}, {overRDMA, client.DialContext}} {
			c, err := network.dial(context.Background(), "tcp", network.l.Addr().String())
			require.NoError(t, err)
			far, err := network.l.Accept()
			require.NoError(t, err)
			if name == "end of data" || name == "both directions" {
				_, err = far.Write([]byte{1})
				require.NoError(t, err)
				require.NoError(t, far.(socket).CloseWrite())
			}
			for _, call := range calls {
				results[i] = append(results[i], kindOf(call(c.(socket))))
			}
			_ = c.Close()
			require.NoError(t, far.Close())
		}
		require.Equal(t, results[0], results[1], name)
	}
}

// Accept has a deadline, as that of a *net.TCPListener.
func TestAcceptDeadline(t *testing.T) {
	server, client := open(t, soft.Config{}, rsocket.Config{}), open(t, soft.Config{}, rsocket.Config{})
	overRDMA, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	overTCP, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	for _, network := range []struct {
		l interface {
			net.Listener
			SetDeadline(time.Time) error
		}
		dial func(context.Context, string, string) (net.Conn, error)
	}{{overTCP.(*net.TCPListener), (&net.Dialer{}).DialContext}, {overRDMA, client.DialContext}} {
		l := network.l
		require.NoError(t, l.SetDeadline(time.Now().Add(time.Millisecond)))
		_, err := l.Accept()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		c, err := network.dial(context.Background(), "tcp", l.Addr().String())
		require.NoError(t, err)
		_, err = l.Accept()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "though a connection is there")
		require.NoError(t, l.SetDeadline(time.Time{}))
		far, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, far.Close())

		waits := make(chan error)
		go func() {
			_, err := l.Accept()
			waits <- err
		}()
		require.NoError(t, l.SetDeadline(time.Now().Add(-time.Second)))
		require.ErrorIs(t, <-waits, os.ErrDeadlineExceeded)
		require.NoError(t, l.SetDeadline(time.Now().Add(time.Hour)))
		require.NoError(t, l.Close())
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, l.SetDeadline(time.Time{}), net.ErrClosed)
	}
}

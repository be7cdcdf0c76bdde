package rsocket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// echo sends what comes back, at the first connection.
func echo(t *testing.T, l *rsocket.Listener) {
	c, err := l.Accept()
	if assert.NoError(t, err) {
		_, err = io.Copy(c, c)
		assert.NoError(t, errors.Join(err, c.Close()))
	}
}

// addresses are those of the loopback interface and, in a network namespace of the test's own, one of
// each other kind. (Other programs of this machine may use the devices of other interfaces.)
func addresses(t *testing.T) (list []string) {
	seen := map[string]bool{}
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			p := netip.MustParsePrefix(a.String()).Addr()
			if p.IsLinkLocalUnicast() {
				p = p.WithZone(i.Name)
			}
			kind := fmt.Sprint(p.IsLoopback(), p.Zone() != "", p.Is4())
			if i.Flags&net.FlagUp != 0 && !seen[kind] && (p.IsLoopback() || os.Getenv(ownNamespace) != "") {
				seen[kind] = true
				list = append(list, p.String())
			}
		}
	}
	if list = append(list, "localhost"); os.Getenv(ownNamespace) != "" {
		list = append(list, "")
	}
	return list
}

// ownNamespace is the environment variable of a test that runs in a network namespace of its own.
const ownNamespace = "VERBENA_TEST_NAMESPACE"

func TestAddresses(t *testing.T) {
	for _, host := range addresses(t) {
		t.Run(host, func(t *testing.T) {
			l, err := rsocket.Listen(net.JoinHostPort(host, "0"))
			require.NoError(t, err)
			done := make(chan struct{})
			go func() { defer close(done); echo(t, l) }()
			to := l.Addr().String()
			if host == "" {
				_, port, err := net.SplitHostPort(to)
				require.NoError(t, err)
				to = "localhost:" + port
			}
			c, err := rsocket.Dial(context.Background(), to)
			require.NoError(t, err)
			_, err = io.WriteString(c, "Hello")
			require.NoError(t, err)
			require.NoError(t, c.CloseWrite())
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			assert.Equal(t, "Hello", string(got))
			assert.Equal(t, "rdma", c.RemoteAddr().Network())
			if host != "" && host != "localhost" {
				assert.Equal(t, to, c.RemoteAddr().String())
			}
			<-done
			require.NoError(t, errors.Join(c.Close(), l.Close()))
		})
	}
}

// While the last connection is closed and has data left to send, others can be made.
func TestDialWhileLastConnectionCloses(t *testing.T) {
	server := open(t, soft.Config{}, rsocket.Config{ReceiveBuffer: 64 << 10})
	l := listen(t, server)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	const size = 500_000 // more than the peer has room for, and less than Config.SendBuffer
	first, err := rsocket.Dial(ctx, l.Addr().String())
	require.NoError(t, err)
	_, err = first.Write(make([]byte, size))
	require.NoError(t, err)
	require.NoError(t, first.SetLinger(3600))
	closed := make(chan error)
	go func() { closed <- first.Close() }()
	far, err := l.Accept()
	require.NoError(t, err)
	for err == nil { // until Close has been called
		err = first.SetReadDeadline(time.Time{})
	}
	second, err := rsocket.Dial(ctx, l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, <-closed)
	n, err := io.Copy(io.Discard, far)
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	secondFar, err := l.Accept()
	require.NoError(t, err)
	for _, c := range []io.Closer{far, second, secondFar} {
		require.NoError(t, c.Close())
	}
}

// Errors are those that a program of package net expects, and say what is wrong.
func TestDialErrors(t *testing.T) {
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	_, err = rsocket.Listen(addr)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)

	ctx := context.Background()
	_, err = rsocket.Dial(ctx, addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "nobody listens")

	late, cancel := context.WithTimeout(ctx, time.Nanosecond)
	defer cancel()
	_, err = rsocket.Dial(late, addr)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	timeout, ok := errors.AsType[net.Error](err)
	require.True(t, ok)
	require.True(t, timeout.Timeout())

	for _, wrong := range []string{"", "127.0.0.1", "127.0.0.1:no-service", "127.0.0.1:65536", "[::1", "nowhere.invalid:1"} {
		_, err := rsocket.Dial(ctx, wrong)
		assert.Error(t, err, wrong)
		_, err = rsocket.Listen(wrong)
		assert.Error(t, err, wrong)
		op, ok := errors.AsType[*net.OpError](err)
		assert.True(t, ok)
		assert.Equal(t, "listen", op.Op)
	}
	_, err = rsocket.Dial(ctx, "127.0.0.1:65536")
	require.NotErrorIs(t, err, syscall.ENETUNREACH, "a mistake, which no later attempt mends")
	l, err = rsocket.Listen("127.0.0.1:") // as net.Listen
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = rsocket.New(rsocket.Config{})
	require.ErrorIs(t, err, rsocket.ErrInvalid)
}

// Stacks have settings, perhaps a device, and an end, which closes what is open.
func TestStacks(t *testing.T) {
	for _, device := range []string{"", "soft-lo"} {
		s := rsocket.NewStacks(device, rsocket.Config{MaxConnections: 3, Backlog: 1})
		l, err := s.Listen("127.0.0.1:0")
		require.NoError(t, err)
		addr := l.Addr().String()
		c, err := s.Dial(context.Background(), addr)
		require.NoError(t, err)
		far, err := l.Accept()
		require.NoError(t, err)
		_, err = s.Dial(context.Background(), addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, "there is room for one end")
		_, err = c.Write([]byte("Hello"))
		require.NoError(t, err)
		_, err = io.ReadFull(far, make([]byte, 5))
		require.NoError(t, err)

		require.NoError(t, s.Close())
		for _, end := range []net.Conn{c, far} {
			_, err = end.Read(make([]byte, 1))
			require.ErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, end.Close(), net.ErrClosed)
		}
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = s.DialContext(context.Background(), "tcp", addr)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = s.Listen(addr)
		require.ErrorIs(t, err, net.ErrClosed)
	}
	for device, want := range map[string]error{"nothing0": verbs.ErrNoDevice, "soft-lo": rsocket.ErrRange} {
		s := rsocket.NewStacks(device, rsocket.Config{MaxConnections: 1 << 30})
		_, err := s.Listen("127.0.0.1:0")
		require.ErrorIs(t, err, want)
		_, err = s.Dial(context.Background(), "127.0.0.1:1")
		require.ErrorIs(t, err, want)
		require.NoError(t, s.Close())
	}
}

package statsocket

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/unixsocket/lingertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Only listening sockets of the user count, with names as Serve makes them.
func TestNamesIn(t *testing.T) {
	const random = "ABCDEFGHIJKLMNOPQRSTUVWX27"
	const begin = "0000000000000000: 00000002 00000000 00010000 0001 01 4711 "
	text := "Num       RefCount Protocol Flags    Type St Inode Path\n" +
		begin + "@verbena-stat/7/" + random + "\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 4712 @verbena-stat/7/" + random + "\n" +
		begin + "@verbena-stat/70/" + random + "\n" +
		begin + "/run/x @verbena-stat/7/" + random + "\n" +
		begin + "@verbena-stat/7/\x1b" + random[1:] + "\n" +
		begin + "@verbena-stat/7/" + random + "A\n" +
		begin + "@verbena-stat/7/" + random[1:] + "\n" +
		begin + "@verbena-stat/7/a" + random[1:] + "\n" +
		begin + "@verbena-stat/7/AAA\x1bAAAA" + random[8:] + "\n" +
		begin + "@verbena-stat/7/" + random[:20] + "\u00e9" + random[22:] + "\n" +
		begin + "\n" +
		"short\n\n"
	require.Equal(t, []string{"@verbena-stat/7/" + random}, namesIn(text, "@verbena-stat/7/"))
	require.True(t, isRandom(rand.Text()))
}

func serve(t *testing.T, write func(io.Writer) error) *Server {
	s, err := Serve(write)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		s.work.Wait()
	})
	return s
}

func (s *Server) name() string { return s.listener.Addr().String() }

// linger sends a file that takes an hour to close to a server, and leaves.
func linger(t *testing.T, s *Server) (release func()) {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: s.name()})
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	file, hurry, err := lingertest.Open()
	require.NoError(t, err)
	_, _, err = c.WriteMsgUnix([]byte("x"), unix.UnixRights(int(file.Fd())), nil)
	if !errors.Is(err, unix.EPERM) { // Linux 6.16 refuses files
		assert.NoError(t, err)
	}
	closed := make(chan struct{})
	go func() { // the last holder to close it waits
		defer close(closed)
		_ = file.Close()
	}()
	return func() { hurry(); <-closed }
}

// Files that take long to close keep neither other clients waiting nor Close, even where a client is
// not accepted. On systems that refuse files they do not arrive.
func TestLingering(t *testing.T) {
	const n = 1_000_000
	s := serve(t, func(w io.Writer) error {
		_, err := w.Write(make([]byte, n))
		return err
	})
	release := linger(t, s)
	pid, data, err := Read(t.Context(), s.name(), 0)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), pid)
	require.Len(t, data, n)
	require.NoError(t, s.Close())
	release()

	asked, reply := make(chan struct{}), make(chan struct{})
	s = serve(t, func(io.Writer) error {
		asked <- struct{}{}
		<-reply
		return nil
	})
	first, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: s.name()})
	require.NoError(t, err)
	defer func() { _ = first.Close() }()
	<-asked
	release = linger(t, s)
	require.NoError(t, s.Close())
	release()
	close(reply)
}

// Read ends with its context, and reads nothing of another process.
func TestReadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reply := make(chan struct{})
	s := serve(t, func(io.Writer) error {
		cancel()
		<-reply
		return nil
	})
	_, _, err := Read(ctx, s.name(), os.Getpid())
	require.ErrorIs(t, err, context.Canceled)
	pid, data, err := Read(t.Context(), s.name(), os.Getpid()+1)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), pid)
	require.Empty(t, data)
	close(reply)
	require.NoError(t, s.Close())
	s.work.Wait()
	_, _, err = Read(t.Context(), s.name(), 0)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}

// A client that takes nothing holds up neither Close nor, for long, the program's goroutine.
func TestCloseEndsWriting(t *testing.T) {
	began := make(chan struct{})
	begin := sync.OnceFunc(func() { close(began) }) // verbena stat of another test may connect too
	failed := make(chan error, 1)
	s := serve(t, func(w io.Writer) error {
		begin()
		for {
			if _, err := w.Write(make([]byte, 3*piece)); err != nil {
				select {
				case failed <- err:
				default:
				}
				return err
			}
		}
	})
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: s.name()})
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	<-began
	require.NoError(t, s.Close())
	require.Error(t, <-failed)
	s.work.Wait()
}

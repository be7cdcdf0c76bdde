package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/unixsocket/lingertest"
)

// networks are those with connections.
var networks = []string{"unix", "unixpacket"}

// onOldSystem makes the system one that cannot refuse files.
func onOldSystem(t *testing.T) {
	const none = 0xffff
	known := passRights
	passRights = none
	t.Cleanup(func() { passRights = known })
}

// filesRefused skips the test on systems that cannot refuse files.
func filesRefused(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, passRights, 0); err == unix.ENOPROTOOPT {
		t.Skip("this system cannot refuse files: it takes Linux 6.16")
	}
}

// lingering returns a socket that takes long to close, until release is called.
func lingering(t *testing.T) (file *os.File, release func()) {
	t.Helper()
	file, release, err := lingertest.Open()
	require.NoError(t, err)
	return file, release
}

// pair returns a connection that was accepted, and its other end.
func pair(t *testing.T, network string) (accepted, other *net.UnixConn) {
	t.Helper()
	name := fmt.Sprintf("@verbena/test/unixsocket/%d/%s", os.Getpid(), t.Name())
	l, err := Listen(network, name)
	require.NoError(t, err)
	defer l.Close()
	other, err = net.DialUnix(network, nil, &net.UnixAddr{Name: name, Net: network})
	require.NoError(t, err)
	accepted, err = l.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close() })
	return accepted, other
}

func sendFile(conn *net.UnixConn, message string, f *os.File) error {
	_, _, err := conn.WriteMsgUnix([]byte(message), unix.UnixRights(int(f.Fd())), nil)
	return err
}

// Both ends refuse files, from the first message on, until they are allowed.
func TestFilesAreRefused(t *testing.T) {
	filesRefused(t)
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			name := fmt.Sprintf("@verbena/test/refused/%d/%s", os.Getpid(), network)
			l, err := Listen(network, name)
			require.NoError(t, err)
			defer l.Close()
			a, err := Dial(t.Context(), network, name)
			require.NoError(t, err)
			defer a.Close()
			require.ErrorIs(t, sendFile(a, "x", os.Stdin), unix.EPERM, "before it is accepted")
			b, err := l.AcceptUnix()
			require.NoError(t, err)
			defer b.Close()
			for _, ends := range [][2]*net.UnixConn{{a, b}, {b, a}} {
				require.ErrorIs(t, sendFile(ends[0], "x", os.Stdin), unix.EPERM)
				require.NoError(t, AllowFiles(ends[1]))
				require.NoError(t, sendFile(ends[0], "x", os.Stdin))
			}
		})
	}
}

// Systems that cannot refuse files take what they can.
func TestOldSystem(t *testing.T) {
	onOldSystem(t)
	a, b := pair(t, "unix")
	require.NoError(t, AllowFiles(a))
	require.NoError(t, sendFile(b, "x", os.Stdin))
	Close(a)
	_, err := b.Read(make([]byte, 1))
	require.True(t, errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET), "%v", err)
}

// A connection of which nothing is unread is closed before Close returns.
func TestCloseEmpty(t *testing.T) {
	onOldSystem(t)
	for _, network := range networks {
		for name, prepare := range map[string]func(a, b *net.UnixConn){
			"at once":               func(_, _ *net.UnixConn) {},
			"the peer has closed":   func(_, b *net.UnixConn) { _ = b.Close() },
			"data unread elsewhere": func(a, b *net.UnixConn) { _, _ = a.Write([]byte("x")); _ = b.Close() },
		} {
			t.Run(network+" "+name, func(t *testing.T) {
				a, b := pair(t, network)
				prepare(a, b)
				user, empty := end(a)
				require.EqualValues(t, os.Getuid(), user)
				require.True(t, empty)
				require.NoError(t, a.Close())
			})
		}
	}
}

// What is unread may have files, also behind messages without data.
func TestEndFindsMessages(t *testing.T) {
	onOldSystem(t)
	for _, network := range networks {
		for name, messages := range map[string][]string{"one": {"x"}, "empty": {""}, "behind an empty one": {"", "x"}} {
			if network == "unix" && messages[0] == "" {
				continue // streams have no messages
			}
			t.Run(network+" "+name, func(t *testing.T) {
				a, b := pair(t, network)
				defer a.Close()
				for _, m := range messages {
					_, err := b.Write([]byte(m))
					require.NoError(t, err)
				}
				_, empty := end(a)
				require.False(t, empty)
			})
		}
	}
}

// Urgent data may have files too.
func TestEndFindsUrgentData(t *testing.T) {
	onOldSystem(t)
	a, b := pair(t, "unix")
	defer a.Close()
	raw, err := b.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), []byte("x"), unix.UnixRights(0), nil, unix.MSG_OOB)
	}))
	if err == unix.EOPNOTSUPP {
		t.Skip("this system has no urgent data on Unix sockets")
	}
	require.NoError(t, err)
	_, empty := end(a)
	require.False(t, empty)
}

// Files that take long to close delay nobody: the peer sees the end, others are served, and
// closings of one user are bounded.
func TestCloseIsNotHeldUp(t *testing.T) {
	onOldSystem(t)
	const sockets = 10 * maxClosing
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			name := fmt.Sprintf("@verbena/test/lingering/%d/%s", os.Getpid(), network)
			l, err := Listen(network, name)
			require.NoError(t, err)
			served, sent := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(served)
				Serve(l, func(conn *net.UnixConn) {
					<-sent
					_, _ = conn.Write([]byte("served"))
					Close(conn)
				})
			}()
			dial := func(file *os.File, release func()) {
				conn, err := Dial(t.Context(), network, name)
				require.NoError(t, err)
				defer conn.Close()
				if file != nil {
					require.NoError(t, sendFile(conn, "x", file))
					closed := make(chan struct{})
					go func() {
						defer close(closed)
						_ = file.Close()
					}()
					t.Cleanup(func() { release(); <-closed })
				}
				sent <- struct{}{}
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Minute)))
				b := make([]byte, 10)
				n, err := conn.Read(b)
				if errors.Is(err, unix.ECONNRESET) { // which packets follow
					n, err = conn.Read(b)
				}
				require.NoError(t, err)
				require.Equal(t, "served", string(b[:n]))
				n, err = conn.Read(b)
				require.True(t, n == 0 && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)), "%v", err)
			}
			var release []func()
			for range sockets {
				file, let := lingering(t)
				release = append(release, let)
				dial(file, let)
				dial(nil, nil)
			}
			background.mu.Lock()
			assert.LessOrEqual(t, background.threads.Taken(), maxClosing)
			assert.Greater(t, background.open, maxClosing, "the files linger")
			// Another user's are closed at once.
			background.mu.Unlock()
			other, _ := pair(t, network)
			const anotherUser = 1<<32 - 2
			require.True(t, background.add(anotherUser, other))
			require.Eventually(t, func() bool {
				background.mu.Lock()
				defer background.mu.Unlock()
				return background.threads.Held(anotherUser)+len(background.waiting[anotherUser]) == 0
			}, 10*time.Minute, time.Millisecond)

			for _, let := range release {
				let()
			}
			require.Eventually(t, func() bool {
				background.mu.Lock()
				defer background.mu.Unlock()
				return background.open+background.threads.Taken()+len(background.waiting) == 0
			}, 10*time.Minute, time.Millisecond)
			require.NoError(t, l.Close())
			<-served
		})
	}
}

// Sockets that take long to close take at most a quarter of the files of the process.
func TestOpenIsBounded(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	c := closer{open: int(min(limit.Cur/4, 1<<62))}
	a, _ := pair(t, "unix")
	defer a.Close()
	require.False(t, c.add(0, a))
}

// Few users do not take all threads.
func TestThreadsAreShared(t *testing.T) {
	c := closer{waiting: make(map[uint32][]*net.UnixConn)}
	for user := range uint32(maxThreads / maxClosing) {
		for c.threads.Held(user) < maxClosing && c.threads.Fits(user, maxThreads) {
			c.threads.Take(user)
		}
	}
	a, b := pair(t, "unix")
	const another = 1 << 20
	require.True(t, c.add(another, a))
	_, err := b.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.threads.Held(another)+c.open == 0
	}, 10*time.Minute, time.Millisecond)
}

// A dial ends with its context.
func TestDialIsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Dial(ctx, "unix", "@verbena/test/nobody")
	require.ErrorIs(t, err, context.Canceled)
	_, err = Dial(t.Context(), "unix", "@verbena/test/nobody")
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}

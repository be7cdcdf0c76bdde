package roce

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/unixsocket/lingertest"
)

// lingering returns a socket that takes long to close before the end of the test.
func lingering(t *testing.T) *os.File {
	t.Helper()
	file, release, err := lingertest.Open()
	require.NoError(t, err)
	t.Cleanup(release)
	return file
}

// lingeringFiles returns n such sockets.
func lingeringFiles(t *testing.T, n int) (files []*os.File) {
	t.Helper()
	for range n {
		files = append(files, lingering(t))
	}
	return files
}

// sendFiles sends a message with files, unless the system refuses them for the receiver (Linux
// 6.16), and closes them. The last holder of a file waits when it closes it.
func sendFiles(t *testing.T, conn *net.UnixConn, message []byte, files ...*os.File) {
	t.Helper()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err := conn.WriteMsgUnix(message, unix.UnixRights(fds...), nil)
	mayBeRefused(t, err)
	for _, f := range files {
		closed := make(chan struct{})
		go func() {
			_ = f.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(100 * time.Millisecond): // the receiver was faster
		}
	}
}

// mayBeRefused checks the error of a message with files.
func mayBeRefused(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		require.ErrorIs(t, err, unix.EPERM)
	}
}

// Files from other processes do not delay the closing of a device.
func TestCloseIsNotHeldUp(t *testing.T) {
	address := func(s *side) *net.UnixAddr {
		return &net.UnixAddr{Name: "@verbena/local/" + s.localAddress().String(), Net: "unixpacket"}
	}
	// sendRequests sends n handshake requests to the device. They wait for its lock until all
	// have arrived.
	sendRequests := func(t *testing.T, x, y *side, n, files int) {
		found, err := net.ListenUnix("unixpacket", address(x))
		require.NoError(t, err)
		t.Cleanup(func() { _ = found.Close() })
		request := fmt.Appendf(nil, "verbena local 7 %v %v", x.localAddress(), y.localAddress())
		list := lingeringFiles(t, n*files)
		y.dev.mu.Lock()
		defer y.dev.mu.Unlock()
		for i := range n {
			conn, err := net.DialUnix("unixpacket", nil, address(y))
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			sendFiles(t, conn, request, list[i*files:][:files]...)
		}
	}
	for name, attack := range map[string]func(t *testing.T, x, y *side){
		"in a request":          func(t *testing.T, x, y *side) { sendRequests(t, x, y, 1, 1) },
		"more than fit":         func(t *testing.T, x, y *side) { sendRequests(t, x, y, 1, 20) },
		"before they are taken": func(t *testing.T, x, y *side) { sendRequests(t, x, y, 20, 1) },
		"in a message": func(t *testing.T, x, y *side) {
			i, f := intrude(t, x, y), lingering(t)
			y.dev.mu.Lock()
			sendFiles(t, i.conn, []byte{'s', 1, 0, 0, 0}, f)
			y.dev.mu.Unlock()
			t.Cleanup(func() { i.leave(t) })
		},
		"unread": func(t *testing.T, x, y *side) {
			i, f := intrude(t, x, y), lingering(t)
			y.dev.mu.Lock() // a message is not read while the one before waits for the lock
			_, err := i.conn.Write([]byte{'p', 1, 0, 0, 0})
			require.NoError(t, err)
			sendFiles(t, i.conn, []byte{'w', 0, 0, 0, 0}, f)
			y.dev.mu.Unlock()
			t.Cleanup(func() { i.leave(t) })
		},
		"in an answer": func(t *testing.T, x, y *side) {
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: "@verbena/local/" + x.localAddress().String(), Net: "unixpacket"})
			require.NoError(t, err)
			defer l.Close()
			f := lingering(t)
			y.connect(x)
			conn, err := l.AcceptUnix()
			require.NoError(t, err)
			sendFiles(t, conn, []byte("no"), f)
			t.Cleanup(func() { _ = conn.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := openAdaptive(t, Config{DisableLocal: true}, 1<<17), openAdaptive(t, Config{}, 1<<17)
			attack(t, x, y)
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				y.close()
			}()
			select {
			case <-closed:
			case <-time.After(10 * time.Minute):
				require.FailNow(t, "the device does not close")
			}
		})
	}
}

package statsocket

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/closers"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/internal/unixsocket"
)

const (
	// closeTimeout bounds how long other processes can delay Close.
	closeTimeout = time.Second
	// readTimeout is how long a client waits for the next bytes, and writeTimeout how long a server
	// waits until there is room for the next piece.
	readTimeout  = time.Minute
	writeTimeout = 5 * time.Second
	// busyTimeout is how long a client tries to connect while too many others wait, each busyPause.
	busyTimeout = 2 * time.Second
	busyPause   = 10 * time.Millisecond
	// piece is how many bytes a server writes at a time.
	piece = 64 << 10
	// refusedPause is how long a server waits after a client of another user, who could keep a
	// processor busy else.
	refusedPause = 10 * time.Millisecond
	// maxText bounds what a client reads, in bytes.
	maxText = 256 << 20
)

// prefix begins the names of all sockets of this user.
func prefix() string { return "@verbena-stat/" + strconv.Itoa(os.Geteuid()) + "/" }

// Server writes a text to each client.
type Server struct {
	listener *net.UnixListener
	write    func(io.Writer) error
	closing  chan struct{}
	work     sync.WaitGroup

	mu     sync.Mutex
	latest *net.UnixConn // that was written to; nil: none
	closed bool
}

// Serve makes a socket for this process. A goroutine of its own calls write for each client of this
// user, one after the other. Its Writer fails if the client takes nothing for 5 seconds, and once the
// server is closed.
func Serve(write func(io.Writer) error) (*Server, error) {
	l, err := unixsocket.Listen("unix", prefix()+rand.Text())
	if err != nil {
		return nil, err
	}
	s := &Server{listener: l, write: write, closing: make(chan struct{})}
	s.work.Go(func() {
		profiling.Label("statistics", "", "")
		unixsocket.Serve(l, s.serve)
	})
	return s, nil
}

// Close ends serving. It waits for at most a second, and continues in the background: before Linux
// 6.16, other processes can have sent files that take long to close, and write can take long.
func (s *Server) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
		if s.latest != nil {
			_ = s.latest.SetWriteDeadline(time.Unix(1, 0))
		}
		s.work.Go(func() { _ = s.listener.Close() })
	}
	s.mu.Unlock()
	closers.Wait(closeTimeout, s.work.Wait)
	return nil
}

// serve serves a client.
func (s *Server) serve(c *net.UnixConn) {
	defer unixsocket.Close(c)
	if _, err := peer(c); err != nil {
		select {
		case <-s.closing:
		case <-time.After(refusedPause):
		}
		return
	}
	w := bufio.NewWriterSize(client{s, c}, piece)
	if s.write(w) == nil {
		_ = w.Flush() // a client that has gone sees no answer
	}
}

// client is a client that is being served.
type client struct {
	server *Server
	conn   *net.UnixConn
}

// Write implements io.Writer.
func (c client) Write(b []byte) (n int, err error) {
	for p := range slices.Chunk(b, piece) {
		if err := c.server.next(c.conn); err != nil {
			return n, err
		}
		m, err := c.conn.Write(p)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// next lets a client take the next piece, unless the server is closed.
func (s *Server) next(c *net.UnixConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.latest = c
	return c.SetWriteDeadline(time.Now().Add(writeTimeout))
}

// peer returns the process at the other end, if it is one of this user. If it is another user's, the
// error matches os.ErrPermission.
func peer(c *net.UnixConn) (pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) { cred, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	switch {
	case err != nil:
		return 0, err
	case failure != nil:
		return 0, os.NewSyscallError("getsockopt SO_PEERCRED", failure)
	}
	if err := unixsocket.CheckUser(cred.Uid); err != nil {
		return 0, fmt.Errorf("process %d: %w: %w", cred.Pid, err, os.ErrPermission)
	}
	return int(cred.Pid), nil
}

// listening is the flag __SO_ACCEPTCON in /proc/net/unix: see proc_pid_net(5).
const listening = "00010000"

// Names are the names of the sockets that processes of this user in this network namespace listen at,
// and of those that other users' processes have named so.
func Names() ([]string, error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	return namesIn(string(b), prefix()), nil
}

// namesIn are the names with the prefix in the text of /proc/net/unix. Any user can have written
// anything there.
func namesIn(text, prefix string) (names []string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 8 || f[3] != listening {
			continue
		}
		if random, ok := strings.CutPrefix(f[7], prefix); ok && isRandom(random) {
			names = append(names, f[7])
		}
	}
	return names
}

// isRandom reports whether rand.Text can have made a text.
func isRandom(s string) bool {
	const length = 26
	return len(s) == length && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// Read returns what the server with that name sends, and its process, after a check that it is one of
// this user. Zero: the process is in another namespace. With another process than wanted, which may be
// 0, it reads nothing. The error matches os.ErrPermission if the process is another user's,
// ECONNREFUSED if it has ended, ErrBusy, ErrSilent, and the context's error if that has ended.
func Read(ctx context.Context, name string, wanted int) (pid int, text []byte, err error) {
	c, err := dial(ctx, name)
	if err != nil {
		return 0, nil, err
	}
	defer unixsocket.Close(c)
	if pid, err = peer(c); err != nil || wanted != 0 && pid != wanted {
		return pid, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.CloseRead() }) // a deadline would be replaced by the next
	defer stop()
	// The time for the begin is in slices, so that a pause of this program itself takes one only.
	const slice = 100 * time.Millisecond
	var all bytes.Buffer
	silent := time.Duration(0)
	for b := make([]byte, piece); err == nil; {
		timeout := slice
		if all.Len() > 0 {
			timeout = readTimeout
		}
		var n int
		if err = c.SetReadDeadline(time.Now().Add(timeout)); err == nil {
			n, err = c.Read(b)
		}
		if all.Len() == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			if silent += slice; silent < AnswerTimeout {
				err = nil
				continue
			}
			err = ErrSilent
		}
		all.Write(b[:n])
		if all.Len() > maxText {
			err = fmt.Errorf("process %d sends more than %d bytes", pid, maxText)
		}
	}
	switch {
	case ctx.Err() != nil:
		return pid, nil, ctx.Err()
	case errors.Is(err, io.EOF):
		err = nil
	}
	return pid, all.Bytes(), err
}

// dial connects to a socket. While too many others wait for that, it tries again.
func dial(ctx context.Context, name string) (c *net.UnixConn, err error) {
	for range busyTimeout / busyPause {
		if c, err = unixsocket.Dial(ctx, "unix", name); !errors.Is(err, unix.EAGAIN) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(busyPause):
		}
	}
	return nil, ErrBusy
}

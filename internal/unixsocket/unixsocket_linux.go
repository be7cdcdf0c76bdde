package unixsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passRights is the socket option that allows files. Tests replace it by one that no system has.
var passRights = unix.SO_PASSRIGHTS

// Listen makes a listening socket. The sockets that it accepts refuse files.
func Listen(network, name string) (*net.UnixListener, error) {
	cfg := net.ListenConfig{Control: refuseFiles}
	l, err := cfg.Listen(context.Background(), network, name)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Dial connects to a listening socket. The connection refuses files.
func Dial(ctx context.Context, network, name string) (*net.UnixConn, error) {
	d := net.Dialer{Control: refuseFiles}
	conn, err := d.DialContext(ctx, network, name)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Serve calls handle with each connection until the listener is closed. Calls that wait keep other
// processes waiting.
func Serve(l *net.UnixListener, handle func(*net.UnixConn)) {
	for {
		conn, err := l.AcceptUnix()
		switch {
		case err == nil:
			handle(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(10 * time.Millisecond) // such as for lack of file descriptors
		}
	}
}

// AllowFiles makes a connection take files from now on. The caller trusts its peer.
func AllowFiles(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return setPassRights(raw, 1)
}

func refuseFiles(_, _ string, raw syscall.RawConn) error { return setPassRights(raw, 0) }

func setPassRights(raw syscall.RawConn, value int) (err error) {
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, passRights, value) })
	if err == unix.ENOPROTOOPT { // before Linux 6.16
		err = nil
	}
	return errors.Join(failed, os.NewSyscallError("setsockopt SO_PASSRIGHTS", err))
}

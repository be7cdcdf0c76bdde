package statsocket

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// timeout is how long one exchange may take.
	timeout = time.Minute
	// maxText bounds what a client reads, in bytes.
	maxText = 256 << 20
)

// prefix begins the names of all sockets of this user.
func prefix() string { return "@verbena-stat/" + strconv.Itoa(os.Geteuid()) + "/" }

// Listen makes a socket for this process. Close frees it.
func Listen() (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: prefix() + rand.Text()})
}

// Send sends what write writes to a client, if that is a process of this user. It gives up after a
// minute, and closes the connection.
func Send(c *net.UnixConn, write func(io.Writer) error) error {
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := peer(c); err != nil {
		return err
	}
	w := bufio.NewWriter(c)
	return errors.Join(write(w), w.Flush())
}

// peer returns the process at the other end, if it is one of this user.
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
	case int(cred.Uid) != os.Geteuid():
		return 0, fmt.Errorf("the other end belongs to user %d, not to %d: %w", cred.Uid, os.Geteuid(), os.ErrPermission)
	}
	return int(cred.Pid), nil
}

// listening is the flag __SO_ACCEPTCON in /proc/net/unix: see proc_pid_net(5).
const listening = "00010000"

// Names are the names of the sockets that processes of this user in this network namespace listen at.
func Names() ([]string, error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	return namesIn(string(b), prefix()), nil
}

// namesIn are the names with the prefix in the text of /proc/net/unix.
func namesIn(text, prefix string) (names []string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 8 && f[3] == listening && strings.HasPrefix(f[7], prefix) {
			names = append(names, f[7])
		}
	}
	return names
}

// Read returns what the server with that name sends, and its process, after a check that it is one of
// this user. Zero: the process is in another namespace.
func Read(name string) (pid int, text []byte, err error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: name})
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, nil, err
	}
	if pid, err = peer(c); err != nil {
		return 0, nil, err
	}
	text, err = io.ReadAll(io.LimitReader(c, maxText+1))
	if len(text) > maxText {
		err = fmt.Errorf("process %d sends more than %d bytes", pid, maxText)
	}
	return pid, text, err
}

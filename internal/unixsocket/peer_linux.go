package unixsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CheckPeer checks that the process at the other end of a connection could read the memory of
// this one by ptrace(2): it has the same user, in the same user and PID namespaces. It returns
// the process ID. If both ends pass this check, they use process IDs of one PID namespace, so
// equal IDs are the same process. A child that has been forked does not stand for a process that has ended.
func CheckPeer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { pid, err = checkProcess(int(fd)) })
	return pid, errors.Join(err, failed)
}

func checkProcess(socket int) (pid int, err error) {
	cred, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	pid = int(cred.Pid)
	if err := CheckUser(cred.Uid); err != nil {
		return pid, fmt.Errorf("process %d: %w", pid, err)
	}
	if pid <= 0 {
		return pid, fmt.Errorf("the process is outside this PID namespace: %w", errors.ErrUnsupported)
	}
	handle, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch err {
	case nil:
		defer func() { _ = unix.Close(handle) }()
	case unix.ENOPROTOOPT: // before Linux 6.5 another process may have this process ID by now
		handle = -1
	default:
		return pid, fmt.Errorf("process %d: %w", pid, os.NewSyscallError("getsockopt SO_PEERPIDFD", err))
	}
	if err := checkNamespaces(pid); err != nil {
		return pid, err
	}
	if handle >= 0 && HasEnded(handle) {
		return pid, fmt.Errorf("process %d has ended: %w", pid, io.EOF)
	}
	return pid, nil
}

// checkNamespaces checks that a process is in the same namespaces as this one. The process ID
// alone does not show that: a process in a child namespace has an ID here, too.
func checkNamespaces(pid int) error {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("cannot look up process %d: /proc belongs to another PID namespace: %w", pid, errors.ErrUnsupported)
	}
	for _, kind := range []string{"pid", "user"} {
		var own, peer unix.Stat_t
		err := unix.Stat("/proc/self/ns/"+kind, &own)
		if err == nil {
			err = unix.Stat(fmt.Sprintf("/proc/%d/ns/%s", pid, kind), &peer)
		}
		switch {
		case err != nil:
			return fmt.Errorf("look up the %s namespace of process %d: %w: %w", kind, pid, err, errors.ErrUnsupported)
		case own.Dev != peer.Dev || own.Ino != peer.Ino:
			return fmt.Errorf("process %d is in another %s namespace: %w", pid, kind, errors.ErrUnsupported)
		}
	}
	return nil
}

// HasEnded reports whether the process of a pidfd has ended.
func HasEnded(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
}

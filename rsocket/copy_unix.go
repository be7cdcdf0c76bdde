//go:build unix

package rsocket

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// hasFiles: readFile and writeFile work.
const hasFiles = true

// mayWait reports whether system calls on a file descriptor may wait for another process: it is neither
// in non-blocking mode nor that of a regular file.
func mayWait(fd uintptr) bool {
	if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err == nil && flags&unix.O_NONBLOCK != 0 {
		return false
	}
	var stat unix.Stat_t
	return unix.Fstat(int(fd), &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG
}

// readFile reads from a file descriptor that does not block. At the end it returns io.EOF.
func readFile(fd uintptr, p []byte) (n int, err error) {
	n, err = retry(syscall.Read, fd, p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// waitsOrEnds returns EAGAIN if a socket that does not block has nothing to read yet, io.EOF at its end, and
// otherwise nil, as for files.
func waitsOrEnds(fd uintptr) error {
	n, err := retry(func(fd int, p []byte) (int, error) {
		n, _, err := syscall.Recvfrom(fd, p, syscall.MSG_PEEK)
		return n, err
	}, fd, make([]byte, 1))
	switch {
	case err == syscall.EAGAIN:
		return err
	case err == nil && n == 0:
		return io.EOF
	}
	return nil
}

// writeFile writes to a file descriptor that does not block.
func writeFile(fd uintptr, p []byte) (n int, err error) { return retry(syscall.Write, fd, p) }

// retry repeats a call that a signal interrupts.
func retry(call func(int, []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for err = syscall.EINTR; err == syscall.EINTR; {
		n, err = call(int(fd), p)
	}
	return max(n, 0), err
}

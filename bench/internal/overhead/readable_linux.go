package overhead

import "golang.org/x/sys/unix"

// awaitReadable sleeps until a file descriptor is readable, or a signal has come.
func awaitReadable(fd int) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
	if err == unix.EINTR {
		return nil
	}
	return err
}

// Package readable sleeps until the file descriptor of an engine is readable.
package readable

import (
	"time"

	"golang.org/x/sys/unix"
)

// Await sleeps until a file descriptor is readable, a signal has come, or the limit is over.
func Await(fd int, limit time.Duration) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(limit.Milliseconds())+1)
	if err == unix.EINTR {
		return nil
	}
	return err
}

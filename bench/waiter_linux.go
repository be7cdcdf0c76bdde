package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// waiter is an epoll set with one file descriptor.
type waiter struct {
	ep     int
	events [1]unix.EpollEvent
}

func newWaiter(fd int) (*waiter, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an epoll set: %w", err)
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("add the engine's descriptor to an epoll set: %w", err)
	}
	return &waiter{ep: ep}, nil
}

// wait waits until the descriptor is readable, at most for limit; a negative limit waits for
// ever.
func (w *waiter) wait(limit time.Duration) error {
	milliseconds := -1
	if limit >= 0 {
		milliseconds = int(limit.Milliseconds()) + 1
	}
	for {
		_, err := unix.EpollWait(w.ep, w.events[:], milliseconds)
		if err != unix.EINTR {
			return err
		}
	}
}

func (w *waiter) close() { _ = unix.Close(w.ep) }

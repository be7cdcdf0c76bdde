package link

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

type waiter struct {
	mu          sync.Mutex
	waiting     bool
	interrupted bool
	deadline    time.Time // of the current or the next wait

	// Used by the waiter.
	ready  func(uintptr) bool // k.ready, bound once
	disarm func(uintptr)      // k.disarm, bound once
	armed  bool
	event  unix.EpollEvent
	err    error
}

func (k *kernel) openEpoll() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	none := unix.EpollEvent{}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, k.sock, &none); err != nil {
		unix.Close(fd)
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	if k.sendSock != k.sock {
		none.Fd = int32(k.sendSock)
		if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, k.sendSock, &none); err != nil {
			unix.Close(fd)
			return fmt.Errorf("epoll_ctl: %w", err)
		}
	}
	// Only a non-blocking descriptor goes to the runtime's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return fmt.Errorf("fcntl: %w", err)
	}
	k.epoll = os.NewFile(uintptr(fd), "link gate")
	if err := k.epoll.SetReadDeadline(time.Time{}); err != nil {
		k.epoll.Close()
		return fmt.Errorf("the runtime cannot poll the socket: %w", err)
	}
	if k.raw, err = k.epoll.SyscallConn(); err != nil {
		k.epoll.Close()
		return err
	}
	k.waiter.ready, k.waiter.disarm = k.ready, k.disarm
	return nil
}

func (k *kernel) wait(deadline time.Time) error {
	s := &k.waiter
	s.mu.Lock()
	if s.interrupted {
		s.interrupted = false
		s.deadline = time.Time{}
		s.mu.Unlock()
		if k.closed.Load() {
			return net.ErrClosed
		}
		return nil
	}
	s.waiting = true
	s.deadline = earlier(s.deadline, deadline)
	err := k.epoll.SetReadDeadline(s.deadline)
	s.mu.Unlock()

	if err == nil {
		s.err = nil
		err = k.raw.Read(s.ready)
	}
	if s.armed {
		_ = k.raw.Control(s.disarm)
	}

	s.mu.Lock()
	s.waiting = false
	s.interrupted = false
	s.deadline = time.Time{}
	s.mu.Unlock()
	switch {
	case k.closed.Load():
		return net.ErrClosed
	case err == nil:
		return s.err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return fmt.Errorf("link: wait: %w", err)
}

// ready arms the gate on its first call, and checks whether it is open.
func (k *kernel) ready(epoll uintptr) bool {
	s := &k.waiter
	if !s.armed {
		s.event = unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
		if _, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, epoll, unix.EPOLL_CTL_MOD, uintptr(k.sock), uintptr(unsafe.Pointer(&s.event)), 0, 0); errno != 0 {
			s.err = fmt.Errorf("link: wait: epoll_ctl: %w", errno)
			return true
		}
		if !k.armGroups(epoll, unix.EPOLLIN|unix.EPOLLONESHOT) {
			return true
		}
		s.armed = true
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&s.event)), 1, 0, 0, 0)
	switch {
	case errno != 0:
		s.err = fmt.Errorf("link: wait: epoll_pwait: %w", errno)
		return true
	case n > 0:
		// The event is one-shot. With more than one socket, those without an event must be
		// disarmed.
		s.armed = k.groups.set.Load() != 0 || s.event.Fd != 0
		if s.event.Events&unix.EPOLLERR != 0 {
			k.errors.system(0)
		}
	}
	return n > 0
}

// disarm keeps packets from opening the gate until the next wait.
func (k *kernel) disarm(epoll uintptr) {
	s := &k.waiter
	s.armed = false
	s.event = unix.EpollEvent{}
	unix.RawSyscall6(unix.SYS_EPOLL_CTL, epoll, unix.EPOLL_CTL_MOD, uintptr(k.sock), uintptr(unsafe.Pointer(&s.event)), 0, 0)
	k.armGroups(epoll, 0)
}

// armGroups sets which events of the groups open the gate, if there are groups.
func (k *kernel) armGroups(epoll uintptr, events uint32) bool {
	s, set := &k.waiter, k.groups.set.Load()
	if set == 0 {
		return true
	}
	s.event = unix.EpollEvent{Events: events}
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, epoll, unix.EPOLL_CTL_MOD, uintptr(set), uintptr(unsafe.Pointer(&s.event)), 0, 0)
	if errno != 0 {
		s.err = fmt.Errorf("link: wait: epoll_ctl: %w", errno)
	}
	return errno == 0
}

func (k *kernel) interrupt() {
	s := &k.waiter
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = true
	if s.waiting {
		_ = k.epoll.SetReadDeadline(time.Unix(1, 0))
	}
}

func (k *kernel) setDeadline(t time.Time) {
	s := &k.waiter
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := earlier(s.deadline, t)
	if moved.Equal(s.deadline) {
		return
	}
	s.deadline = moved
	if s.waiting && !s.interrupted {
		_ = k.epoll.SetReadDeadline(moved)
	}
}

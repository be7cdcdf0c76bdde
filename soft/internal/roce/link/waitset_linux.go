package link

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NewWaitSet returns a set for sockets with that value of Config.Portable.
func NewWaitSet(portable bool) (WaitSet, error) {
	if portable {
		return newPortableWaitSet(), nil
	}
	return newEpollSet()
}

// epollSet is the WaitSet of Linux sockets.
//
// The sockets themselves are not in the runtime's poller: there every packet would wake a thread even
// while the program polls. Instead the poller has the set's epoll descriptor. A socket opens it once
// for each time that it is armed.
type epollSet struct {
	epoll *os.File
	raw   syscall.RawConn

	mu          sync.Mutex
	members     map[int32]*setMember
	sockets     []*setMember // the members that are armed
	unarmed     bool         // one of them may have to be armed
	waiting     bool
	interrupted bool
	closed      bool
	deadline    time.Time // of the current or the next wait
	applied     time.Time // what the runtime's poller has

	// Used by the waiter.
	ready  func(uintptr) bool // s.poll, bound once
	look   func(uintptr)      // the same
	event  unix.EpollEvent
	events [16]unix.EpollEvent
	count  int
	err    error
}

// setMember is a file in a set.
type setMember struct {
	fd int
	// socket is set for a file that opens the set once for each time that it is armed. The mutex of the
	// set guards armed.
	socket *kernel
	armed  bool
	ready  func(events uint32)
}

func newEpollSet() (*epollSet, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("link: make a set of sockets: epoll_create1: %w", err)
	}
	// Only a non-blocking descriptor goes to the runtime's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("link: make a set of sockets: fcntl: %w", err)
	}
	s := &epollSet{epoll: os.NewFile(uintptr(fd), "link wait set"), members: make(map[int32]*setMember)}
	s.ready = s.poll
	s.look = func(epoll uintptr) { s.poll(epoll) }
	if err = s.epoll.SetReadDeadline(time.Time{}); err == nil {
		s.raw, err = s.epoll.SyscallConn()
	}
	if err != nil {
		s.epoll.Close()
		return nil, fmt.Errorf("link: make a set of sockets: the runtime cannot poll it: %w", err)
	}
	return s, nil
}

// add adds a file, for events. A wait in progress arms it.
func (s *epollSet) add(m *setMember, events uint32) (err error) {
	event := unix.EpollEvent{Events: events, Fd: int32(m.fd)}
	s.mu.Lock()
	s.members[int32(m.fd)] = m // before the first event
	s.mu.Unlock()
	if s.raw.Control(func(epoll uintptr) { err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, m.fd, &event) }) != nil {
		err = net.ErrClosed
	}
	if err != nil {
		s.forget(m.fd)
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	if m.socket == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sockets, s.unarmed = append(s.sockets, m), true
	if s.waiting {
		s.interrupt()
	}
	return nil
}

// remove removes a file that is still open.
func (s *epollSet) remove(fd int) {
	s.forget(fd)
	_ = s.raw.Control(func(epoll uintptr) { _ = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_DEL, fd, nil) })
}

func (s *epollSet) forget(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, int32(fd))
	s.sockets = slices.DeleteFunc(s.sockets, func(m *setMember) bool { return m.fd == fd })
}

// Watch implements WaitSet. Edge-triggered: the reader need not empty the socket at once.
func (s *epollSet) Watch(fd int, ready func()) error {
	if err := s.add(&setMember{fd: fd, ready: func(uint32) { ready() }}, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET); err != nil {
		return fmt.Errorf("link: watch a file: %w", err)
	}
	return nil
}

// Unwatch implements WaitSet.
func (s *epollSet) Unwatch(fd int) { s.remove(fd) }

// Wait implements WaitSet.
func (s *epollSet) Wait(deadline time.Time) error {
	s.mu.Lock()
	var err error
	interrupted := s.interrupted
	if !interrupted {
		s.waiting = true
		s.deadline = earlier(s.deadline, deadline)
		err = s.apply(s.deadline)
	}
	s.mu.Unlock()

	s.count, s.err = 0, nil
	if !interrupted && err == nil {
		err = s.raw.Read(s.ready)
	}

	s.mu.Lock()
	s.waiting, s.interrupted = false, false
	s.deadline = time.Time{}
	closed := s.closed
	s.mu.Unlock()
	s.callReady()
	switch {
	case closed:
		return net.ErrClosed
	case err == nil:
		return s.err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return fmt.Errorf("link: wait: %w", err)
}

// Poll implements WaitSet.
func (s *epollSet) Poll() error {
	s.count, s.err = 0, nil
	if s.raw.Control(s.look) != nil {
		return net.ErrClosed
	}
	s.callReady()
	return s.err
}

// apply sets the deadline in the runtime's poller. s.mu is held.
func (s *epollSet) apply(t time.Time) error {
	if t.Equal(s.applied) {
		return nil
	}
	s.applied = t
	return s.epoll.SetReadDeadline(t)
}

// poll arms the members, and reports whether one has something. A socket that is no longer wanted
// stays armed, since it opens the set once at most.
func (s *epollSet) poll(epoll uintptr) bool {
	if !s.arm(epoll) {
		return true
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&s.events)), uintptr(len(s.events)), 0, 0, 0)
	if errno != 0 {
		s.err = fmt.Errorf("link: wait: epoll_pwait: %w", errno)
		return true
	}
	s.count = int(n)
	return n > 0
}

// arm arms the sockets that are wanted. It reports false after an error.
func (s *epollSet) arm(epoll uintptr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.unarmed {
		return true
	}
	s.unarmed = false
	for _, m := range s.sockets {
		switch {
		case m.armed:
			continue
		case m.socket.unwanted.Load():
			s.unarmed = true
			continue
		}
		s.event = unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(m.fd)}
		if _, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, epoll, unix.EPOLL_CTL_MOD, uintptr(m.fd), uintptr(unsafe.Pointer(&s.event)), 0, 0); errno != 0 {
			s.err = fmt.Errorf("link: wait: epoll_ctl: %w", errno)
			return false
		}
		m.armed = true
	}
	return true
}

// callReady calls the functions of the files that have ended a wait.
func (s *epollSet) callReady() {
	for i := range s.count {
		e := &s.events[i]
		s.mu.Lock()
		m := s.members[e.Fd]
		if m != nil && m.socket != nil {
			m.armed, s.unarmed = false, true
		}
		s.mu.Unlock()
		if m != nil {
			m.ready(e.Events)
		}
	}
}

// Interrupt implements WaitSet.
func (s *epollSet) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt()
}

// ClearInterrupt implements WaitSet.
func (s *epollSet) ClearInterrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = false
}

// interrupt is Interrupt. s.mu is held.
func (s *epollSet) interrupt() {
	s.interrupted = true
	if s.waiting {
		_ = s.apply(time.Unix(1, 0))
	}
}

// SetDeadline implements WaitSet.
func (s *epollSet) SetDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = earlier(s.deadline, t)
	if s.waiting && !s.interrupted {
		_ = s.apply(s.deadline)
	}
}

// Close implements WaitSet.
func (s *epollSet) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.epoll.Close()
}

package link

import "time"

// WaitSet is where a goroutine waits for the packets of several sockets, and for other files. One
// goroutine at a time may wait; any goroutine may call the other methods.
type WaitSet interface {
	// Wait blocks until an armed socket has a packet or a report for Unreachable, a watched file has
	// something to read, the deadline passes (zero: never), or another goroutine calls Interrupt;
	// it returns nil then. Sockets that end it are Ready. After Close it returns net.ErrClosed. It
	// occupies no thread.
	Wait(deadline time.Time) error
	// Poll does what a Wait does that has something to return for, or whose deadline has passed: it
	// finds out which sockets are Ready, and calls the functions of watched files. It does not block,
	// and leaves deadlines and interruptions to Wait. It counts as a wait: one goroutine at a time.
	Poll() error
	// Interrupt makes the current Wait return, or the next one if there is none.
	Interrupt()
	// ClearInterrupt undoes Interrupt. The goroutine that is going to wait calls it before it looks
	// for what the interruption may have announced.
	ClearInterrupt()
	// SetDeadline makes the current Wait, or the next one if there is none, return at t at the
	// latest. It never postpones a deadline.
	SetDeadline(t time.Time)
	// Watch makes Wait call ready, on its goroutine, when something more has come to a file that is
	// a socket. The caller keeps the file open until it calls Unwatch. It fails where the system
	// has no epoll.
	Watch(fd int, ready func()) error
	Unwatch(fd int)
	Close() error
}

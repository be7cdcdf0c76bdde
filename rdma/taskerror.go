package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// TaskError is the error of a task that was submitted and failed. It matches the sentinel of
// its status with errors.Is. The error of a flushed task also matches its Cause, so that every
// task of a connection says why the connection ended.
type TaskError struct {
	Op     Operation    // the task's kind
	Status verbs.Status // never StatusSuccess
	// Connection is the connection that the task ran on. It is nil for a receive that was
	// flushed before a message came.
	Connection  *Connection
	Peer        *Peer  // that the task went to; nil if it ran on a connection
	VendorError uint32 // the device's own code; zero if it has none
	// Cause is why the connection of a flushed task ended (Connection.Err), or else its
	// context (pe.Core.Err). It is nil if this program closed the connection or stopped the
	// context. It is also nil for a task that failed by itself, unless the device could not
	// reach the address of the Peer, or reported ErrPeerDead.
	Cause error

	advice string // what to do, if that depends on more than operation and status
}

// Error names the operation, the connection and the status, and says what to do
// about it.
func (e *TaskError) Error() string {
	switch {
	case e.Connection != nil:
		return "rdma: " + e.describe(" on "+e.Connection.String())
	case e.Peer != nil:
		return "rdma: " + e.describe(" to "+e.Peer.String())
	}
	return "rdma: " + e.describe("")
}

func (e *TaskError) describe(where string) string {
	s := e.Op.String() + where + ": " + e.Status.String()
	if e.VendorError != 0 {
		s += fmt.Sprintf(" (vendor code %#x)", e.VendorError)
	}
	switch {
	case e.Cause != nil:
		return s + ": " + e.Connection.withoutName(e.Cause).Error()
	case e.advice != "":
		return s + "; " + e.advice
	}
	if advice := adviceFor(e.Op, e.Status); advice != "" {
		s += "; " + advice
	}
	return s
}

// Unwrap returns the sentinel of the status, and the cause if there is one.
func (e *TaskError) Unwrap() []error {
	if e.Cause != nil {
		return []error{statusOf(e.Status).err, e.Cause}
	}
	return []error{statusOf(e.Status).err}
}

// connectionError is why a connection has ended.
type connectionError struct {
	conn   *Connection
	name   string // of the connection when it ended
	reason error
}

func (e *connectionError) Error() string { return "rdma: " + e.name + ": " + e.reason.Error() }
func (e *connectionError) Unwrap() error { return e.reason }

// withName returns the error of a connection that ends for the reason given.
func (conn *Connection) withName(reason error) error {
	if e, ok := reason.(*TaskError); ok && e.Connection == conn {
		return e // names it
	}
	return &connectionError{conn, conn.String(), reason}
}

// withoutName returns the error without the connection's name, for texts that have it already.
func (conn *Connection) withoutName(err error) error {
	switch e := err.(type) {
	case *connectionError:
		if e.conn == conn {
			return e.reason
		}
	case *TaskError:
		if conn != nil && e.Connection == conn {
			return unnamedError{e}
		}
	}
	return err
}

// unnamedError is the error of a task in a text that names the connection.
type unnamedError struct{ *TaskError }

func (e unnamedError) Error() string   { return e.describe("") }
func (e unnamedError) Unwrap() []error { return []error{e.TaskError} }

// causeOf is why the tasks of a connection are flushed or, with a nil conn, those of the
// context. It is nil if the program closed or stopped it.
func (c *core) causeOf(conn *Connection) error {
	if conn != nil && conn.err != nil {
		return conn.err
	}
	return c.Err()
}

// notUsable is the error of a request on a connection that has ended.
func (conn *Connection) notUsable() error {
	if conn.err != nil {
		return fmt.Errorf("%w: %v is %v: %w", ErrNotReady, conn, conn.state(), conn.withoutName(conn.err))
	}
	return fmt.Errorf("%w: %v is %v", ErrNotReady, conn, conn.state())
}

func (conn *Connection) deviceError(err error) error {
	return fmt.Errorf("%w: %w", ErrDevice, err)
}

// checkReads fails if the ends have agreed on no reads and atomics.
func (conn *Connection) checkReads() error {
	if conn.path.maxReads == 0 && conn.path.mtu != 0 {
		return conn.noReadsError()
	}
	return nil
}

func (conn *Connection) noReadsError() error {
	return fmt.Errorf("%w: one end of %v accepts no reads, atomics or atomic writes", ErrNotSupported, conn)
}

package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/sibling"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// HoldStarting keeps a context that is Starting from becoming Running until release is
// called, or the context stops. It is for packages that build on contexts, beside
// WatchConnections: a context waits by itself for the connections that exist while it is
// Starting, and not for those that are still to be made. In other states it does nothing.
// Calling release again does nothing. Both belong to the goroutine that drives the engine.
func (c *Connections) HoldStarting() (release func()) {
	if c.State() != pe.Starting || c.phase != phaseUp {
		return func() {}
	}
	run, released := c.run, false
	c.awaited++
	return func() {
		if released || c.run != run {
			return
		}
		released = true
		c.awaited--
		c.poke()
	}
}

// hold is what keeps a connection from the program: see DialConfig.Held.
type hold struct {
	changed   func(conn *Connection, state ConnectionState, err error)
	up        bool            // the connection manager is done
	announced bool            // the program knows of the connection
	done      func(err error) // of the write under way
	source    *mmap.Map       // of that
}

func newHold(changed func(*Connection, ConnectionState, error)) *hold {
	if changed == nil {
		return nil
	}
	return &hold{changed: changed}
}

// hidden reports whether the program does not know of the connection.
func (conn *Connection) hidden() bool { return conn.hold != nil && !conn.hold.announced }

// establishing reports whether the connection manager is still at work on a connection that
// it makes.
func (conn *Connection) establishing() bool {
	return conn.state == Connecting && (conn.hold == nil || !conn.hold.up)
}

// heldUp reports, of a held connection, that the connection manager is done.
func (conn *Connection) heldUp() {
	if h := conn.hold; !h.up {
		h.up = true
		conn.publish()
		conn.ctx.changed(conn, Ready, nil)
	}
}

// messageBeforeReady handles a message that has come to a connection that is not Ready, and
// reports whether it is for the program. The peer sends only when it is Ready.
func (conn *Connection) messageBeforeReady() bool {
	if conn.hidden() {
		conn.fail(fmt.Errorf("%w: the peer has sent a message before this program had agreed to the connection", ErrMismatch))
		return false
	}
	if conn.state == Connecting {
		conn.establishment.received()
		if conn.hold != nil && conn.state == Connecting {
			conn.becomeReady()
		}
	}
	return true
}

// Announce makes a connection that is held the program's: the functions of OnConnection and
// WatchConnections get Connecting, and whatever comes after it. It is legal once, while the
// connection is Connecting (ErrNotReady).
func (conn *Connection) Announce() error {
	const op = "announce a connection"
	if err := conn.owned(op); err != nil {
		return err
	}
	if !conn.hidden() || conn.state != Connecting {
		return fmt.Errorf("rdma: %s: %v: %w: it is %v, and only one that is held can be announced, once, while it is %v", op, conn, ErrNotReady, conn.state, Connecting)
	}
	c := conn.ctx
	conn.hold.announced = true
	c.usable++
	c.cutOff = nil // another connection follows
	c.changed(conn, Connecting, nil)
	return nil
}

// WriteHeld writes the n bytes of m from off on to memory of the peer, on a connection that
// is held: once the connection manager is done, until Established. It takes no task, and
// one write is possible at a time (ErrNotReady otherwise). done is called on the engine's
// goroutine, inside Progress, not inside another callback, with nil when the peer's device
// has taken the bytes; a failure ends the connection too. Until then, or until the
// connection is Closed, m must neither be changed nor closed. m has to be of the context's
// protection domain.
func (conn *Connection) WriteHeld(m *mmap.Map, off, n int, addr uint64, rkey uint32, done func(err error)) error {
	const op = "write on a held connection"
	if err := conn.owned(op); err != nil {
		return err
	}
	h := conn.hold
	if h == nil || conn.state != Connecting || !h.up || conn.signal.purpose != signalNone {
		return fmt.Errorf("rdma: %s: %v: %w: it is %v, and one write is possible at a time, when the connection manager is done and before Established", op, conn, ErrNotReady, conn.state)
	}
	if m == nil || m.Remote() || off < 0 || n < 1 || off > m.Len() || n > m.Len()-off {
		return fmt.Errorf("rdma: %s: %v: %w: %d bytes from offset %d are not in the memory map", op, conn, ErrRange, n, off)
	}
	key, err := m.LKey(conn.ctx.set.PD)
	if err != nil {
		return fmt.Errorf("rdma: %s: %v: %w", op, conn, err)
	}
	h.done, h.source = done, m
	conn.signal.write(verbs.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: key}, addr, rkey)
	return nil
}

// heldWritten ends the write of WriteHeld.
func (conn *Connection) heldWritten(status verbs.Status, vendor uint32) {
	done, source := conn.hold.done, conn.hold.source
	conn.hold.done, conn.hold.source = nil, nil
	var err error
	if status != verbs.StatusSuccess {
		failure := &TaskError{Op: OpWrite, Status: status, Connection: conn, VendorError: vendor}
		conn.failedTask(status, failure)
		if status == verbs.StatusFlushed {
			failure.Cause = conn.ctx.causeOf(conn)
		}
		if kept := conn.signal.send.Kept(); kept != nil {
			failure.Cause = kept
			source.Siblings(sibling.Pass{}).Keep(conn.ctx.dev, kept)
		}
		err = failure
	}
	if done != nil {
		done(err)
	}
}

// establishHeld makes a connection that is held Ready.
func (conn *Connection) establishHeld(op string) error {
	switch h := conn.hold; {
	case conn.state == Ready:
		return nil // a message has come already
	case conn.state == Connecting && h.up && h.announced:
		conn.becomeReady()
		return nil
	}
	return fmt.Errorf("rdma: %s: %v: %w: it is %v; one that is held can be established when its function has got %v, after Announce", op, conn, ErrNotReady, conn.state, Ready)
}

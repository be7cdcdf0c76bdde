package valkey

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/rdma"
)

const (
	network = "rdma"   // in addresses and errors
	maxCopy = 64 << 10 // bytes that Read and Write copy at a time, with the lock
)

// Addr is the address of one end of a connection.
type Addr struct{ netip.AddrPort }

// Network returns "rdma".
func (Addr) Network() string { return network }

// Conn is a connection: a net.Conn. All methods may be called from any goroutine, and several at the same
// time; concurrent calls of Write do not mix their data.
type Conn struct {
	stack      *Stack
	conn       *rdma.Connection
	server     bool
	work       func()      // pump
	isReadable func() bool // readable
	writing    sync.Mutex  // a call of Write has its turn

	mu                          sync.Mutex
	changed                     sync.Cond // any of the fields below
	readDeadline, writeDeadline deadline
	closed                      bool  // by Close
	ended                       bool  // nothing of the connection is left at the device
	failure                     error // io.EOF: the peer has closed the connection

	in            *mmap.Map // into which the peer writes
	read, arrived int       // bytes of in, since it was registered
	registerDue   bool      // in is to be registered again

	out *mmap.Map // the send buffer, which is a ring, and behind it a command of each opcode
	// Positions in all data of this end: Write has copied it up to reserved, the device has it up to posted,
	// and the peer's device has acknowledged it up to acked.
	reserved, posted, acked uint64
	remote                  *remote // nil: none is registered yet

	// These belong to the engine's goroutine.
	listener *Listener // to which the connection is to be given; nil: it was, or it was dialled
	key      uint32    // of in
	asked    bool      // the client waits for the answer to GetServerFeature
	writes   int       // at the device
	commands [opcodes]outgoing
}

// newConn makes the connection of an established one, or of one that becomes so. It runs on the engine's
// goroutine. listener is nil at the client.
func (s *Stack) newConn(conn *rdma.Connection, listener *Listener) (c *Conn, err error) {
	c = &Conn{stack: s, conn: conn, server: listener != nil, listener: listener}
	c.changed.L, c.work, c.isReadable = &c.mu, c.pump, c.readable
	if c.in, err = mmap.Alloc(s.cfg.Device, s.cfg.ReceiveBuffer, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return nil, err
	}
	if c.key, err = c.in.ExportKey(s.rdma.PD()); err == nil {
		c.out, err = mmap.Alloc(s.cfg.Device, s.cfg.SendBuffer+opcodes*commandSize, mmap.LocalReadOnly)
	}
	if err != nil {
		return nil, errors.Join(err, c.in.Close())
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errors.Join(net.ErrClosed, c.in.Close(), c.out.Close())
	}
	s.conns[c] = true
	s.mu.Unlock()
	conn.SetUserData(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked = !c.server; c.asked {
		c.send(command{opcode: opGetServerFeature})
	}
	c.register()
	return c, nil
}

// Read reads what the peer has written: at least a byte, unless p is empty. When the peer has closed the
// connection, it returns io.EOF behind the peer's data. Other errors are *net.OpError, and match
// net.ErrClosed, os.ErrDeadlineExceeded, syscall.ECONNRESET when the connection has failed (what arrived
// before that is read first), and ErrProtocol.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for drive := true; ; {
		err := c.usable(&c.readDeadline)
		if err == nil && c.read == c.arrived {
			err = c.failure
		}
		if err != nil {
			return 0, c.opError("read", err)
		}
		if c.read < c.arrived || len(p) == 0 {
			break
		}
		drive = c.wait(drive)
	}
	n := copy(p[:min(len(p), maxCopy)], c.in.Bytes()[c.read:c.arrived])
	if c.read += n; c.read == c.in.Len() {
		c.read, c.arrived, c.registerDue = 0, 0, true
		_ = c.stack.engine.Do(c.work) // a closed engine has no connections
	}
	return n, nil
}

// wait waits for a change. With drive, and if no other call of the stack waits, it drives the engine meanwhile: the packet
// then wakes this goroutine, and not the engine's before it. It returns false if it tried and could not. c.mu is held.
func (c *Conn) wait(drive bool) (waited bool) {
	s := c.stack
	if drive = s.waiting.Add(1) == 1 && drive; drive {
		c.mu.Unlock()
		waited = s.engine.DriveUntil(c.isReadable)
		c.mu.Lock()
	} else {
		c.changed.Wait()
	}
	if s.waiting.Add(-1) > 0 && drive {
		_ = s.engine.Do(func() {}) // the engine's goroutine drives it for the others
	}
	return waited || !drive
}

// readable reports whether Read need not wait.
func (c *Conn) readable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read < c.arrived || c.failure != nil || c.usable(&c.readDeadline) != nil
}

// wake wakes the calls that wait. It runs on the engine, where it ends a call of DriveUntil.
func (c *Conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed.Broadcast()
}

// Write writes p. It returns when all of p has been copied to the send buffer, and waits while the peer's memory is
// full. After an error, n bytes of p have been copied, and are sent unless the connection has failed. Errors are
// those of Read, but syscall.EPIPE when the peer has closed the connection.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for n < len(p) || n == 0 {
		m, err := c.copy(p[n:])
		if err != nil || m == 0 {
			return n, c.opError("write", err)
		}
		n += m
		_ = c.stack.engine.Dispatch(c.work) // a closed engine has no connections
	}
	return n, nil
}

// copy waits for room, and copies as much of p as fits.
func (c *Conn) copy(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		err := c.usable(&c.writeDeadline)
		if err == nil && c.failure != nil {
			err = c.failure
			if err == io.EOF {
				err = syscall.EPIPE
			}
		}
		if err != nil || len(p) == 0 {
			return 0, err
		}
		if r := c.remote; r != nil {
			size := c.stack.cfg.SendBuffer
			off := int(c.reserved % uint64(size))
			n := min(len(p), maxCopy, size-off, size-int(c.reserved-c.acked), r.memory.Len()-r.reserved)
			if n > 0 {
				copy(c.out.Bytes()[off:off+n], p)
				c.reserved += uint64(n)
				r.reserved += n
				return n, nil
			}
		}
		c.wait(false)
	}
}

// usable is why nothing can be read or written at this end. c.mu is held.
func (c *Conn) usable(d *deadline) error {
	switch {
	case c.closed:
		return net.ErrClosed
	case !d.at.IsZero() && !time.Now().Before(d.at):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// Close closes the connection. It does not wait: what was written is still sent, for ten seconds at most.
// Data that has not been read is lost. Closing again fails with an error that matches net.ErrClosed.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.readDeadline.set(c, time.Time{})
	c.writeDeadline.set(c, time.Time{})
	c.changed.Broadcast()
	c.freeIfDone()
	c.mu.Unlock()
	_ = c.stack.engine.Dispatch(c.work) // a closed engine has no connections
	return nil
}

// LocalAddr is the address of this end.
func (c *Conn) LocalAddr() net.Addr { return Addr{c.conn.LocalAddr()} }

// RemoteAddr is the address of the peer.
func (c *Conn) RemoteAddr() net.Addr { return Addr{c.conn.PeerAddr()} }

// SetDeadline is SetReadDeadline and SetWriteDeadline. Zero: none.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline sets the time at which Read fails with os.ErrDeadlineExceeded, even one that waits.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline sets the time at which Write fails with os.ErrDeadlineExceeded, even one that waits.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeDeadline) }

func (c *Conn) setDeadlines(t time.Time, list ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range list {
		d.set(c, t)
	}
	return nil
}

// deadline is the deadline of Read or Write. The lock of the connection guards it.
type deadline struct {
	at    time.Time   // zero: none
	timer *time.Timer // nil: there was none yet
}

func (d *deadline) set(c *Conn, t time.Time) {
	left := time.Until(t)
	d.at = time.Now().Add(left) // by the clock of timers
	switch {
	case t.IsZero():
		if d.at = t; d.timer != nil {
			d.timer.Stop()
		}
	case d.timer == nil:
		d.timer = time.AfterFunc(left, func() { _ = c.stack.engine.Dispatch(c.wake) })
	default:
		d.timer.Reset(left)
	}
}

// fail ends the connection with an error, unless it has failed already. What has arrived can still be read.
// c.mu is held.
func (c *Conn) fail(err error) {
	if c.failure != nil {
		return
	}
	for seen, rule := range map[error]Rule{rdma.ErrLocalLength: RuleCommandSize, rdma.ErrRemoteAccess: RuleKey, rdma.ErrPeerRefused: RuleAccess} {
		if errors.Is(err, seen) { // by a device
			err = violation(rule, "%w", err)
		}
	}
	c.failure = fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
	c.changed.Broadcast()
	if r, ok := errors.AsType[Rule](err); ok {
		c.stack.mu.Lock()
		c.stack.counters.Violations[r]++
		c.stack.mu.Unlock()
	}
	_ = c.conn.Close() // it is legal here in every state
}

// gone is called when nothing of the connection is left at the device. err is why it ended; nil: Close.
func (c *Conn) gone(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.listener; l != nil {
		c.listener, c.closed = nil, true // the program never gets it
		l.opening--
	}
	c.ended = true
	if errors.Is(err, rdma.ErrPeerClosed) {
		err = io.EOF
	} else if err != nil {
		err = fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
	}
	c.failure = cmp.Or(c.failure, err)
	c.changed.Broadcast()
	c.freeIfDone()
}

// freeIfDone releases the memory when neither the device nor the program uses it. c.mu is held.
func (c *Conn) freeIfDone() {
	if !c.ended || !c.closed {
		return
	}
	_, _ = c.in.Close(), c.out.Close() // if a device has failed and may still use them, its Close has the error
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.forgot.Broadcast()
}

// opError is the error of a method.
func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

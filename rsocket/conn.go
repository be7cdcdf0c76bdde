package rsocket

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/buffers"
	"github.com/verbena-rdma/verbena/rsocket/internal/deadline"
	"github.com/verbena-rdma/verbena/rsocket/internal/neterr"
	"github.com/verbena-rdma/verbena/rsocket/internal/shared"
)

// Conn is a connection: a net.Conn. All methods may be called from any goroutine, and several at
// the same time; concurrent calls of Write do not mix their data.
type Conn struct {
	stack    *Stack
	place    fifo.Node[*Conn]    // in the list of the stack
	listener *listening          // nil: it was dialled, or has been settled
	source   netip.Addr          // of an accepted connection: the peer's quota.Network
	shared   *shared.Ref[*Stack] // nil: the program has made the stack

	giveUp    context.CancelCauseFunc // ends a Dial that waits; nil: the connection was accepted
	work      func()                  // pump, to be run on the engine's goroutine
	scheduled atomic.Bool             // work is on its way there

	isReadable func() bool // Read need not wait

	mu                          sync.Mutex
	readable, writable          sync.Cond // for Read, and for Write
	released                    sync.Cond // for Wait
	readDeadline, writeDeadline deadline.Deadline
	reading, writing            bool // a call has its turn, and may use memory without the lock
	driving                     bool // a call of Read drives the engine, or is about to
	in                          buffers.Inbound
	out                         buffers.Outbound
	linger                      time.Duration // of Close; 0: it resets the connection
	closed                      bool          // by Close
	writeClosed                 bool          // by CloseWrite or Close
	readClosed                  bool          // the peer sends no more data
	peerGone                    bool          // the peer takes no more data
	failure                     error
	ended                       bool // gone was called
	freed                       bool // its memory has been released

	transfer // belongs to the engine's goroutine
}

// newConn makes a connection without a peer.
func (s *Stack) newConn(giveUp context.CancelCauseFunc) (*Conn, error) {
	c := &Conn{stack: s, giveUp: giveUp, linger: s.cfg.Linger}
	c.readable.L, c.writable.L, c.released.L = &c.mu, &c.mu, &c.mu
	c.work = c.pump
	c.isReadable = func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		wait, err := c.readState(1)
		return !wait || err != nil
	}
	c.out.Pool = s.chunks
	if err := c.open(); err != nil {
		return nil, err
	}
	if err := register(s, &s.conns, &c.place, c, s.cfg.MaxConnections); err != nil {
		return nil, errors.Join(err, s.memory.CloseBase(c.base))
	}
	return c, nil
}

// Read reads what the peer has written: at least a byte, unless p is empty. At the end of the
// peer's data it returns io.EOF. Other errors are *net.OpError, and match net.ErrClosed,
// os.ErrDeadlineExceeded, syscall.ECONNRESET when the connection has failed (data that arrived
// before that is read first), and ErrProtocol.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for {
		wait, err := c.readState(len(p))
		if err != nil {
			c.mu.Unlock()
			return 0, err
		}
		if !wait {
			break
		}
		c.waitReadable()
	}
	if len(p) == 0 { // another call may have its turn
		c.mu.Unlock()
		return 0, nil
	}
	c.reading = true
	n, emptied := 0, false
	for n < len(p) && c.in.Available() > 0 {
		from := c.in.Unread()
		c.mu.Unlock()
		m := copy(p[n:], from)
		c.mu.Lock()
		n += m
		emptied = c.in.Consume(m) || emptied
	}
	c.endRead(emptied)
	return n, nil
}

// endRead ends the turn of a call of Read, and releases the lock. emptied: a buffer has become free.
func (c *Conn) endRead(emptied bool) {
	c.reading = false
	if c.closed {
		c.discard()
		emptied = true
	}
	c.readable.Signal()
	c.wakeDriver()
	c.freeIfDone()
	c.mu.Unlock()
	if emptied {
		c.kick() // the peer can have another buffer
	}
}

// waitReadable waits until the state of the connection may have changed, as Read sees it. If no other
// goroutine of the stack waits for data or room, it drives the engine meanwhile, so that the packet wakes it
// and no other goroutine. c.mu is held.
func (c *Conn) waitReadable() {
	s := c.stack
	if s.waiting.Add(1) == 1 && s.host.Scheduler() == nil {
		e := s.engine.Friends(friend.Package{})
		c.driving = true
		c.mu.Unlock()
		drove := e.DriveUntil(c.isReadable)
		c.mu.Lock()
		c.driving = false
		if wait, err := c.readState(1); drove || !wait || err != nil {
			if s.waiting.Add(-1) > 0 {
				e.Wake() // Run drives for those that wait
			}
			return
		}
	}
	host.Wait(s.host, &c.readable)
	s.waiting.Add(-1)
}

// waitWritable waits until the state of the connection may have changed, as Write sees it. c.mu is held.
func (c *Conn) waitWritable() {
	c.stack.waiting.Add(1)
	host.Wait(c.stack.host, &c.writable)
	c.stack.waiting.Add(-1)
}

// wakeDriver wakes a call of Read that drives the engine. c.mu is held.
func (c *Conn) wakeDriver() {
	if c.driving {
		c.stack.engine.Friends(friend.Package{}).Wake()
	}
}

// readState reports whether a call of Read waits, or why it fails. size is that of its buffer.
func (c *Conn) readState(size int) (wait bool, err error) {
	switch {
	case c.closed:
		return false, c.opError("read", net.ErrClosed)
	case size == 0: // as over TCP, whatever has happened
		return false, nil
	case c.readDeadline.Expired:
		return false, c.opError("read", os.ErrDeadlineExceeded)
	case c.reading:
		return true, nil
	case c.in.Available() > 0:
		return false, nil
	case c.readClosed:
		return false, io.EOF
	case c.failure != nil:
		return false, c.opError("read", c.failure)
	}
	return true, nil
}

// Write writes p. It returns when all of p has been copied to send memory; the peer may not have
// it yet. After an error, n bytes of p have been copied, and are sent unless the connection has
// failed. Errors are *net.OpError, and match net.ErrClosed, os.ErrDeadlineExceeded,
// syscall.EPIPE after CloseWrite and when the peer has closed the connection, and
// syscall.ECONNRESET when it has failed.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing {
		if err := c.writeError(); err != nil {
			return 0, err
		}
		c.waitWritable()
	}
	c.writing = true
	defer c.endWrite()
	err = c.writeError()
	for err == nil && n < len(p) {
		var room []byte
		switch room, err = c.out.Room(len(p)-n, c.stack.cfg.SendBuffer); {
		case err != nil:
			err = c.opError("write", err)
		case len(room) == 0:
			c.waitWritable()
			err = c.writeError()
		default:
			c.mu.Unlock()
			m := copy(room, p[n:])
			c.mu.Lock()
			if c.writeClosed { // the end of the data may have been sent meanwhile
				err = c.writeError()
				continue
			}
			c.out.Commit(m)
			n += m
			c.mu.Unlock()
			c.kick()
			c.mu.Lock()
			if n < len(p) { // otherwise the peer may have closed since it has all
				err = c.writeError()
			}
		}
	}
	return n, err
}

// endWrite ends the turn of a call of Write. c.mu is held.
func (c *Conn) endWrite() {
	c.writing = false
	c.out.Release(false)
	c.writable.Broadcast()
	c.freeIfDone()
}

// writeError is why nothing can be written.
func (c *Conn) writeError() error {
	switch {
	case c.closed:
		return c.opError("write", net.ErrClosed)
	case c.writeDeadline.Expired:
		return c.opError("write", os.ErrDeadlineExceeded)
	case c.failure != nil && !c.writeClosed:
		return c.opError("write", c.failure)
	case c.writeClosed || c.peerGone:
		return c.opError("write", &neterr.Error{Kind: syscall.EPIPE})
	}
	return nil
}

// CloseWrite ends the data of this end: the peer reads io.EOF behind what was written. Reading goes
// on. It does not wait. It fails with an error that matches net.ErrClosed after Close.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	if c.closed {
		defer c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.writeClosed = true
	c.writable.Broadcast()
	c.mu.Unlock()
	c.kick()
	return nil
}

// Close closes the connection. It does not wait: what was written is still sent, for Config.Linger
// at most, unless SetLinger has changed that. (Only the last listener or connection of the functions
// Listen and Dial waits for that, so that the program may exit; it goes on as soon as there is
// another one.) Data that has not been read is
// lost. Closing again fails with an error that matches net.ErrClosed.
func (c *Conn) Close() error {
	if !c.close() {
		return c.opError("close", net.ErrClosed)
	}
	return c.shared.Release()
}

// Wait waits until the program has closed the connection and nothing of it is left: its peer has all
// of the data, or Config.Linger is over, or the connection has failed.
func (c *Conn) Wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.freed {
		host.Wait(c.stack.host, &c.released)
	}
}

// SetLinger sets what Close does with data that has not been sent, as that of net.TCPConn does. If
// sec < 0, the default, or sec > 0, it is still sent, for Config.Linger or for sec seconds at most.
// If sec == 0, Close drops it and resets the connection: the peer fails with syscall.ECONNRESET, and
// does not take what has arrived for all of the data.
func (c *Conn) SetLinger(sec int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.opError("set", net.ErrClosed)
	case sec < 0:
		c.linger = c.stack.cfg.Linger
	default:
		c.linger = time.Duration(min(sec, math.MaxInt32)) * time.Second
	}
	return nil
}

// close is Close. It reports false if that was called before.
func (c *Conn) close() bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	c.closed, c.writeClosed = true, true
	c.stack.closedInPlace.Add(1)
	if c.giveUp != nil {
		c.giveUp(net.ErrClosed)
	}
	h := c.stack.host
	c.readDeadline.Reset(h, &c.mu, time.Time{}, nil)
	c.writeDeadline.Reset(h, &c.mu, time.Time{}, nil)
	c.discard()
	c.wakeAll()
	c.freeIfDone()
	c.mu.Unlock()
	c.kick()
	return true
}

// discard drops what has arrived for a closed connection. The peer can then send the rest of its
// data: it may be waiting for that before it reads what this end has still to send.
func (c *Conn) discard() {
	for !c.reading && c.in.Available() > 0 {
		c.in.Consume(c.in.Available())
	}
}

// LocalAddr is the address of this end, an *Addr.
func (c *Conn) LocalAddr() net.Addr { return c.stack.addr(c.conn.LocalAddr()) }

// RemoteAddr is the address of the peer, an *Addr.
func (c *Conn) RemoteAddr() net.Addr { return c.stack.addr(c.conn.PeerAddr()) }

// SetDeadline is SetReadDeadline and SetWriteDeadline. Zero: none.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline sets the time at which Read fails with os.ErrDeadlineExceeded, even one that waits.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline sets the time at which Write fails with os.ErrDeadlineExceeded, even one that waits.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeDeadline) }

func (c *Conn) setDeadlines(t time.Time, list ...*deadline.Deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range list {
		d.Reset(c.stack.host, &c.mu, t, c.wakeAll)
	}
	return nil
}

// wakeAll wakes the calls of Read and Write that wait. c.mu is held.
func (c *Conn) wakeAll() {
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.wakeDriver()
}

// kick has pump run on the engine's goroutine. c.mu is not held.
func (c *Conn) kick() {
	if c.scheduled.CompareAndSwap(false, true) {
		_ = c.stack.engine.Dispatch(c.work) // a closed engine has no connections
	}
}

// abandon closes a connection that the program never gets.
func (c *Conn) abandon() {
	c.close()
	_ = c.stack.engine.Do(func() {
		if c.conn == nil { // no callback will come
			c.gone(nil)
		}
	})
}

// fail ends the connection with an error. What has arrived can still be read.
func (c *Conn) fail(err error) {
	if c.failed {
		return
	}
	c.failed = true
	c.mu.Lock()
	c.failure = err
	c.wakeAll()
	c.mu.Unlock()
	c.disconnect()
}

// gone is called when nothing of the connection is left at the device. err is why it ended.
func (c *Conn) gone(err error) {
	for _, t := range []host.Timer{c.lingering, c.idle} {
		if t != nil {
			t.Stop()
		}
	}
	if l := c.listener; l != nil {
		c.listener = nil
		l.settled(c.source, nil)
		c.close() // the program never gets it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	if c.failure == nil && !c.closed && !(c.readClosed && c.peerGone) {
		c.failure = neterr.Reset(err)
	}
	c.wakeAll()
	c.freeIfDone()
}

// freeIfDone releases the memory when neither the device nor the program uses it. c.mu is held.
func (c *Conn) freeIfDone() {
	if c.freed || !c.ended || !c.closed || c.reading || c.writing {
		return
	}
	c.freed = true
	c.stack.closedInPlace.Add(-1)
	c.released.Broadcast()
	c.out.Free()
	if err := errors.Join(c.in.Release(), c.stack.memory.CloseBase(c.base), c.peer.Close()); err != nil {
		c.stack.cfg.Log.Warn().Err(err).Msg("memory of a connection")
	}
	forget(c.stack, &c.stack.conns, &c.place)
}

// connectionChanged is called for each change of a connection's state.
func connectionChanged(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	c, ok := conn.UserData().(*Conn)
	if !ok {
		return // a dial that has no response yet
	}
	switch state {
	case rdma.Ready:
		if l := c.listener; l != nil {
			c.listener = nil
			c.stack.accepted.Add(1)
			l.settled(c.source, c)
		}
	case rdma.Failed:
		c.fail(neterr.Reset(err))
	case rdma.Closed:
		c.gone(err)
	}
}

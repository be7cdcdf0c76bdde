package oob

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/oob/internal/frame"
)

const (
	dialInterval = 50 * time.Millisecond
	// helloTimeout is how long a connection may take to send its first frame, the hello.
	helloTimeout = 10 * time.Second
	// acceptPause is how long to wait after a failed accept.
	acceptPause = 50 * time.Millisecond
	// maxPending is how many connections without a first frame are kept; a new connection
	// replaces the oldest.
	maxPending = 64
)

// tcp exchanges frames over a TCP connection. The requester sends first, so the responder sends
// its keys only to a program that claims to be its peer.
type tcp struct {
	address string
	ends    Ends
	conn    net.Conn
	in      *bufio.Reader
}

// TCP exchanges over a TCP connection to HOST:PORT, where the responder listens. The requester
// tries again until the responder has started. Programs other than the peer are
// rejected, and noted. The connection stays open until the end, for the requester's report.
// Nothing is encrypted, and names are not passwords: use it only on trusted networks.
func TCP(address string) (Way, error) {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return Way{}, fmt.Errorf("tcp:%s: %w: %w", address, ErrInvalid, err)
	}
	return Way{carrier: &tcp{address: address}, address: address}, nil
}

func (t *tcp) String() string { return "tcp:" + t.address }

func (t *tcp) frame() frame.Frame {
	return frame.Frame{From: t.ends.Name, To: t.ends.Peer, Responder: t.ends.Role == Responder}
}

func (t *tcp) Exchange(ctx context.Context, ends Ends, ours []byte) ([]byte, error) {
	t.ends = ends
	f := t.frame()
	f.Body = ours
	hello, err := f.Encode()
	if err != nil {
		return nil, err
	}
	if ends.Role == Requester {
		return t.dial(ctx, hello)
	}
	return t.accept(ctx, hello)
}

// dial connects to the responder, which may not have started yet, or may be about to end. It
// notes the reason of a retry when the reason changes, and adds the last one to its error.
func (t *tcp) dial(ctx context.Context, hello []byte) ([]byte, error) {
	var last error
	note := t.ends.noteChanges()
	retry := func(err error) {
		last = err
		// Leave out the addresses of the attempt: they would make each text different.
		if system, ok := errors.AsType[*net.OpError](err); ok {
			last = system.Err
		}
		note(fmt.Sprintf("%s does not answer at %v yet, trying again: %v", t.ends.Peer, t, last))
	}
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.address)
		var unknown *net.DNSError
		if errors.As(err, &unknown) && unknown.IsNotFound {
			return nil, err
		}
		if err == nil {
			var theirs []byte
			var again bool
			if theirs, again, err = t.sendHello(ctx, conn, hello); !again && (err == nil || ctx.Err() == nil) {
				return theirs, err
			}
		}
		if ctx.Err() == nil {
			retry(err)
		}
		select {
		case <-time.After(dialInterval):
		case <-ctx.Done():
			if last == nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), last)
		}
	}
}

// sendHello sends the requester's hello, and reads the answer. It keeps the connection if that
// succeeds. again means that the responder closed the connection before it answered.
func (t *tcp) sendHello(ctx context.Context, conn net.Conn, hello []byte) (theirs []byte, again bool, err error) {
	defer func() {
		if t.conn == nil {
			_ = conn.Close()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	in := bufio.NewReaderSize(conn, frame.MaxSize)
	if _, err := conn.Write(hello); err != nil {
		if ctx.Err() != nil {
			return nil, false, context.Cause(ctx)
		}
		return nil, true, err
	}
	f, err := frame.Read(in)
	switch {
	case ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case connectionClosed(err):
		return nil, true, fmt.Errorf("the responder closed the connection: %w", err)
	case err != nil:
		return nil, false, fmt.Errorf("wrong answer at %v: %w", t, err)
	case f.From != t.ends.Peer || f.To != t.ends.Name:
		return nil, false, notFrom(t.ends, f.From, f.To)
	case !f.Responder:
		return nil, false, sameRole(t.ends)
	case f.Outcome == frame.Failed:
		return nil, false, fmt.Errorf("%s: %w: %q", t.ends.Peer, ErrRejected, f.Body)
	}
	if !stop() {
		return nil, false, context.Cause(ctx) // ctx ended, and the connection has a deadline in the past
	}
	t.conn, t.in = conn, in
	return f.Body, false, nil
}

// connectionClosed reports whether the other end has closed the connection.
func connectionClosed(err error) bool {
	var system *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &system)
}

// clientConn is a connection whose first frame has arrived, or failed to arrive.
type clientConn struct {
	conn  net.Conn
	in    *bufio.Reader
	hello frame.Frame
	err   error // of reading the hello
}

// check refuses a program that is not the peer, or has the same role.
func (c *clientConn) check(ends Ends) error {
	switch {
	case c.hello.From != ends.Peer || c.hello.To != ends.Name:
		return notFrom(ends, c.hello.From, c.hello.To)
	case c.hello.Responder:
		return sameRole(ends)
	}
	return nil
}

// acceptor accepts the connections to a listener, and reads their first frames concurrently:
// silent or slow connections do not block others.
type acceptor struct {
	listener net.Listener
	arrived  chan clientConn // connections whose hello was read
	done     chan struct{}   // closed by close

	mu      sync.Mutex
	closed  bool
	pending []net.Conn // connections without a hello, the oldest first
	wg      sync.WaitGroup
}

// acceptClients starts accepting connections. failed is called if Accept fails, for example
// with too many open files, and returns whether to try again.
func acceptClients(listener net.Listener, failed func(err error) (again bool)) *acceptor {
	a := &acceptor{listener: listener, arrived: make(chan clientConn), done: make(chan struct{})}
	a.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err == nil {
				a.add(conn)
				continue
			}
			select {
			case <-a.done:
				return
			case <-time.After(acceptPause):
			}
			if !failed(err) {
				return
			}
		}
	})
	return a
}

// add reads the first frame of a connection, on a goroutine of its own.
func (a *acceptor) add(conn net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		_ = conn.Close()
		return
	}
	if len(a.pending) == maxPending {
		_ = a.pending[0].Close() // this ends its goroutine
		a.pending = slices.Delete(a.pending, 0, 1)
	}
	a.pending = append(a.pending, conn)
	a.wg.Go(func() {
		in := bufio.NewReaderSize(conn, frame.MaxSize)
		_ = conn.SetDeadline(time.Now().Add(helloTimeout))
		hello, err := frame.Read(in)
		a.mu.Lock()
		a.pending = slices.DeleteFunc(a.pending, func(c net.Conn) bool { return c == conn })
		a.mu.Unlock()
		select {
		case a.arrived <- clientConn{conn, in, hello, err}:
		case <-a.done:
			_ = conn.Close()
		}
	})
}

// close closes the listener, and the connections that nobody received from arrived.
func (a *acceptor) close() error {
	a.mu.Lock()
	a.closed = true
	for _, c := range a.pending {
		_ = c.Close()
	}
	a.mu.Unlock()
	close(a.done)
	err := a.listener.Close()
	a.wg.Wait()
	return err
}

// accept waits for the requester. It rejects other programs.
func (t *tcp) accept(ctx context.Context, hello []byte) ([]byte, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", t.address)
	if err != nil {
		return nil, err
	}
	failed := make(chan error, 1)
	acceptor := acceptClients(listener, func(err error) bool {
		failed <- err
		return false
	})
	defer func() { _ = acceptor.close() }()
	note := t.ends.noteChanges()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case err := <-failed:
			return nil, err
		case c := <-acceptor.arrived:
			if c.err == nil {
				c.err = t.answer(c, hello)
			}
			if c.err == nil {
				t.conn, t.in = c.conn, c.in
				return c.hello.Body, nil
			}
			note(fmt.Sprintf("a connection from %v to %v was rejected: %v", c.conn.RemoteAddr(), t, c.err))
			_ = c.conn.Close()
		}
	}
}

// answer sends our bundle to the requester, and only our name to another program.
func (t *tcp) answer(c clientConn, hello []byte) (err error) {
	if err = c.check(t.ends); err == nil {
		// Keep the connection only if Peer can decode the bundle.
		var b *descriptor.Bundle
		if b, err = descriptor.DecodeBundle(c.hello.Body); err == nil && (b.From != t.ends.Peer || b.To != t.ends.Name) {
			err = notFrom(t.ends, b.From, b.To)
		}
	}
	if err != nil {
		f := t.frame()
		if refusal, e := f.Encode(); e == nil {
			_, _ = c.conn.Write(refusal)
		}
		return err
	}
	if _, err := c.conn.Write(hello); err != nil {
		return err
	}
	return c.conn.SetDeadline(time.Time{})
}

func (t *tcp) Done(ctx context.Context) error {
	if err := t.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = t.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	f, err := frame.Read(t.in)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%s did not report whether it succeeded: %w", t.ends.Peer, err)
	case f.From != t.ends.Peer || f.To != t.ends.Name:
		return notFrom(t.ends, f.From, f.To)
	case f.Outcome != frame.Succeeded:
		return peerFailed(t.ends.Peer)
	}
	return nil
}

func (t *tcp) Close(ok bool) error {
	if t.conn == nil {
		return nil
	}
	if t.ends.Role == Requester {
		f := t.frame()
		f.Outcome = frame.OutcomeOf(ok)
		b, err := f.Encode()
		if err == nil {
			err = t.conn.SetDeadline(time.Now().Add(helloTimeout))
		}
		if err != nil {
			return errors.Join(err, t.conn.Close())
		}
		// A responder that has ended does not need the report.
		_, _ = t.conn.Write(b)
	}
	return t.conn.Close()
}

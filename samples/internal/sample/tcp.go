package sample

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rs/zerolog"
)

const (
	dialInterval = 50 * time.Millisecond
	// helloTimeout is how long a connection has to introduce itself.
	helloTimeout = 10 * time.Second
)

// tcp exchanges messages over a TCP connection, one a line.
type tcp struct {
	program Program
	address string
	log     zerolog.Logger
	conn    net.Conn
	lines   *bufio.Reader
}

func newTCP(s *Session, address string) (*tcp, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("-oob tcp:%s: %w", address, err)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return nil, fmt.Errorf("-oob tcp:%s: %w", address, err)
	}
	if host == "" && s.program.Role == Requester {
		return nil, fmt.Errorf("-oob tcp:%s: name the host that %s runs on", address, s.program.Peer)
	}
	return &tcp{program: s.program, address: address, log: s.Log}, nil
}

func (t *tcp) String() string { return "tcp:" + t.address }

func (t *tcp) byHand() bool { return false }

func (t *tcp) exchange(ctx context.Context, ours Descriptors) (Descriptors, error) {
	m := newMessage(t.program, ours)
	hello, err := m.encode()
	if err != nil {
		return Descriptors{}, err
	}
	if t.program.Role == Requester {
		return t.dial(ctx, hello)
	}
	return t.accept(ctx, hello)
}

// dial connects to the responder, which may not be there yet.
func (t *tcp) dial(ctx context.Context, hello []byte) (Descriptors, error) {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.address)
		if err == nil {
			return t.greet(ctx, conn, hello)
		}
		var unknown *net.DNSError
		if errors.As(err, &unknown) && unknown.IsNotFound {
			return Descriptors{}, err
		}
		t.log.Debug().Err(err).Msg("trying again")
		select {
		case <-time.After(dialInterval):
		case <-ctx.Done():
			return Descriptors{}, context.Cause(ctx)
		}
	}
}

// accept waits for the requester. Others that connect are rejected.
func (t *tcp) accept(ctx context.Context, hello []byte) (Descriptors, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", t.address)
	if err != nil {
		return Descriptors{}, err
	}
	defer func() { _ = listener.Close() }()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return Descriptors{}, context.Cause(ctx)
		}
		if err != nil {
			return Descriptors{}, err
		}
		theirs, err := t.greet(ctx, conn, hello)
		if err == nil || ctx.Err() != nil {
			return theirs, err
		}
		t.log.Warn().Stringer("from", conn.RemoteAddr()).Err(err).Msg("connection rejected")
	}
}

// greet exchanges descriptors. The connection is kept if that succeeds.
func (t *tcp) greet(ctx context.Context, conn net.Conn, hello []byte) (theirs Descriptors, err error) {
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	lines := bufio.NewReaderSize(conn, maxMessage)
	if err := conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return Descriptors{}, err
	}
	// Both write first: a message is far smaller than the buffers in between.
	if _, err := conn.Write(hello); err != nil {
		return Descriptors{}, err
	}
	m, err := t.receive(ctx, conn, lines)
	if err != nil {
		return Descriptors{}, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return Descriptors{}, err
	}
	t.conn, t.lines = conn, lines
	return m.descriptors(), nil
}

func (t *tcp) receive(ctx context.Context, conn net.Conn, lines *bufio.Reader) (message, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := lines.ReadSlice('\n')
	switch {
	case ctx.Err() != nil:
		return message{}, context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return message{}, fmt.Errorf("%s has closed the connection: %w", t.program.Peer, io.ErrUnexpectedEOF)
	case errors.Is(err, bufio.ErrBufferFull):
		return message{}, fmt.Errorf("%w: a line of more than %d bytes", errMessage, maxMessage)
	case err != nil:
		return message{}, err
	}
	return decodeMessage(line, t.program.Peer)
}

func (t *tcp) peerDone(ctx context.Context) error {
	m, err := t.receive(ctx, t.conn, t.lines)
	if err != nil {
		return fmt.Errorf("%s has not said how it ended: %w", t.program.Peer, err)
	}
	return m.Outcome.err(t.program.Peer)
}

func (t *tcp) close(ok bool) error {
	if t.conn == nil {
		return nil
	}
	if t.program.Role == Requester {
		m := newMessage(t.program, Descriptors{})
		m.Outcome = outcomeOf(ok)
		b, err := m.encode()
		if err == nil {
			err = t.conn.SetWriteDeadline(time.Now().Add(helloTimeout))
		}
		if err != nil {
			return errors.Join(err, t.conn.Close())
		}
		// A responder that has gone does not need to know.
		_, _ = t.conn.Write(b)
	}
	return t.conn.Close()
}

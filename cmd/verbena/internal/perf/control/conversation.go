package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"
)

// Stream carries frames.
type Stream interface {
	io.ReadWriteCloser
	SetWriteDeadline(t time.Time) error
}

// writeTimeout is how long a write may block because the peer does not read.
const writeTimeout = time.Minute

// Conversation is one end of a stream of frames. A goroutine reads, so that the end of the
// stream is noticed at once. It reads at most one frame ahead of Receive.
type Conversation struct {
	stream Stream
	in     chan Message
	ctx    context.Context // ends with the stream; the cause says why
	cancel context.CancelCauseFunc
	reader sync.WaitGroup
	buf    []byte
}

// NewConversation begins a conversation. It ends with ctx, or with Close.
func NewConversation(ctx context.Context, s Stream) *Conversation {
	c := &Conversation{stream: s, in: make(chan Message)}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.reader.Go(c.read)
	return c
}

// ErrPeerClosed: the other end has closed the stream.
var ErrPeerClosed = errors.New("the other end has closed the connection")

func (c *Conversation) read() {
	for {
		m, err := Read(c.stream)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				err = fmt.Errorf("%w: %w", ErrPeerClosed, err)
			}
			c.cancel(err)
			return
		}
		if f, ok := m.(*Fault); ok {
			// The text will be printed: make it one line of printable characters.
			c.cancel(&Fault{Reason: printable(f.Reason)})
			return
		}
		select {
		case c.in <- m:
		case <-c.ctx.Done():
			return
		}
	}
}

// maxReason bounds the text of a fault.
const maxReason = 1000

func printable(s string) string {
	s = s[:min(len(s), maxReason)]
	q := strconv.QuoteToGraphic(s)
	return q[1 : len(q)-1]
}

// Context ends when the other end has closed the stream, or has sent something wrong.
func (c *Conversation) Context() context.Context { return c.ctx }

// Send sends a message. Only one goroutine may call it.
func (c *Conversation) Send(m Message) error {
	var err error
	if c.buf, err = Append(c.buf[:0], m); err != nil {
		return err
	}
	_ = c.stream.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err = c.stream.Write(c.buf); err != nil {
		if cause := context.Cause(c.ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("%w: %w", ErrPeerClosed, err)
	}
	return nil
}

// Receive returns the next message. It waits until ctx or the conversation ends.
func (c *Conversation) Receive(ctx context.Context) (Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Await is Receive for a message of one kind. Another kind is an error.
func Await[M Message](ctx context.Context, c *Conversation) (M, error) {
	m, err := c.Receive(ctx)
	want, ok := m.(M)
	if err == nil && !ok {
		err = fmt.Errorf("%w: received %v, want %v", ErrProtocol, m.kind(), want.kind())
	}
	return want, err
}

// Refuse tells the other end why this one ends the conversation.
func (c *Conversation) Refuse(err error) {
	_ = c.Send(&Fault{Reason: err.Error()}) // fails if the other end has gone
}

// Close ends the conversation.
func (c *Conversation) Close() error {
	c.cancel(errors.New("the control connection is closed"))
	err := c.stream.Close()
	c.reader.Wait()
	return err
}

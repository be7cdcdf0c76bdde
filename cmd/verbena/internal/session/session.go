// Package session implements the two ends of a transfer over the connection of a Link:
// handshake, time-outs, rate limit, resuming. Package proto documents the messages and their
// order.
package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/link"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/proto"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/tree"
)

// Fault is why a transfer has ended, if neither its connection nor its context.Context ended
// it.
type Fault struct {
	Code proto.Code
	Text string
	Peer bool // the peer reported it
}

// Error describes the fault, and whether the peer reported it.
func (f *Fault) Error() string {
	if f.Peer {
		return "the peer reports: " + tree.Show(f.Text)
	}
	return f.Text
}

func faultf(code proto.Code, format string, args ...any) *Fault {
	return &Fault{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Entry is the outcome of a file, directory or link.
type Entry struct {
	Path string
	Type proto.EntryType
	Size uint64
	Code proto.Code // OK: the receiver has it
	Text string     // unless Code is OK
	Had  bool       // the receiver had it before
}

// Events receives the progress of a transfer. The methods may be called from several
// goroutines, and must not block for long.
type Events interface {
	Moved(bytes int64) // the receiver has that many more bytes
	Entry(Entry)       // an entry was concluded
	Text(string) error // a plain message has arrived; an error is reported to the sender
}

// Summary is the outcome of a transfer over one connection.
type Summary struct {
	Transfer [16]byte // identifies the sender's run; zero at a receiver: the handshake failed
	Entries  int      // files, directories and links that the receiver has
	Had      int      // of these, how many it had before
	Failed   int      // entries that it does not have
	NoSpace  bool     // one of them failed for lack of space
	Bytes    int64    // moved over this connection
	Text     bool     // it was a plain message
	ID, Key  string   // exchanged at the end
	Complete bool     // the transfer is complete
}

func (s *Summary) count(e Entry) {
	switch {
	case e.Code != proto.OK:
		s.Failed++
		s.NoSpace = s.NoSpace || e.Code == proto.NoSpace
	case e.Had:
		s.Had++
		fallthrough
	default:
		s.Entries++
	}
}

const (
	// handshakeTimeout is how long a peer may take for the handshake.
	handshakeTimeout = 30 * time.Second
	// pingInterval is the time between two pings. A peer that is silent for longer than
	// silence counts as dead.
	pingInterval, silenceTimeout = 10 * time.Second, 3 * time.Minute
	// refuseTimeout is how long an end waits for the peer to read why it is refused.
	refuseTimeout = 2 * time.Second
)

// next returns the next message. If the peer refuses, the error is a *Fault.
func next(ctx context.Context, l *link.Link) (proto.Message, error) {
	b, err := l.Receive(ctx)
	if err != nil {
		return nil, err
	}
	m, err := proto.Decode(b)
	if err != nil {
		return nil, faultf(proto.BadProtocol, "%v", err)
	}
	if r, ok := m.(*proto.Refuse); ok {
		return nil, &Fault{r.Code, r.Text, true}
	}
	return m, nil
}

// expect returns the next message, which must be of type T.
func expect[T proto.Message](ctx context.Context, l *link.Link) (T, error) {
	var zero T
	m, err := next(ctx, l)
	if err != nil {
		return zero, err
	}
	t, ok := m.(T)
	if !ok {
		return zero, faultf(proto.BadProtocol, "the peer sent a %T, want a %T", m, zero)
	}
	return t, nil
}

// refuse reports to the peer an error that this end has found.
func refuse(l *link.Link, err error) {
	ctx, stop := context.WithTimeout(context.Background(), refuseTimeout)
	defer stop()
	r := &proto.Refuse{Code: proto.Failed, Text: "the program was interrupted"}
	var f *Fault
	switch {
	case errors.Is(err, link.ErrBroken) || errors.As(err, &f) && f.Peer:
		return
	case f != nil:
		r.Code, r.Text = f.Code, proto.Cut(f.Text, proto.MaxNote)
	case errors.Is(err, context.Canceled):
		r.Code = proto.Stopped
	default:
		r.Code, r.Text = proto.Stopped, proto.Cut(err.Error(), proto.MaxNote)
	}
	if l.Send(ctx, r) == nil {
		l.WaitClosed(ctx) // the peer closes it after reading the reason
	}
}

// watch sends pings, and ends the session when the peer has been silent for too long.
func watch(ctx context.Context, l *link.Link, fail func(error)) {
	t := time.NewTicker(pingInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if quiet := time.Since(l.LastReceived()); quiet > silenceTimeout {
				fail(fmt.Errorf("%w: the peer has sent nothing for %v", link.ErrBroken, quiet.Round(time.Second)))
				return
			}
			// A peer that takes no messages must not keep this loop from noticing that it is silent.
			send, stop := context.WithTimeout(ctx, pingInterval)
			_ = l.Send(send, &proto.Ping{}) // other goroutines notice the error
			stop()
		}
	}
}

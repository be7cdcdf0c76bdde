// Package session has the two ends of a transfer over the connection of a Link.
// docs/transfer.md has their messages, in order.
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

// Fault is why a transfer has ended, other than by its connection or its context.Context.
type Fault struct {
	Code proto.Code
	Text string
	Peer bool // the peer has found it
}

// Error says what was wrong, and whether the peer found it.
func (f *Fault) Error() string {
	if f.Peer {
		return "the peer says: " + tree.Show(f.Text)
	}
	return f.Text
}

func faultf(code proto.Code, format string, args ...any) *Fault {
	return &Fault{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Entry is what became of a file, directory or link.
type Entry struct {
	Path string
	Type proto.EntryType
	Size uint64
	Code proto.Code // OK: it is there
	Text string     // unless Code is OK
	Had  bool       // it was there before
}

// Events is what a transfer reports while it goes on. The methods may be called from
// several goroutines, and should not block.
type Events interface {
	Moved(bytes int64) // so many more bytes are at the receiver
	Entry(Entry)       // concluded
	Text(string) error // a plain message has come; an error is told to the sender
}

// Summary is how a transfer went.
type Summary struct {
	Transfer [16]byte // of the sender's run; zero at a receiver: the handshake did not succeed
	Entries  int      // files, directories and links that are at the receiver
	Had      int      // of these: that were there before
	Failed   int      // that are not there
	NoSpace  bool     // one of them for lack of space
	Bytes    int64    // moved in this connection
	Text     bool     // it was a plain message
	ID, Key  string   // that the ends have given each other
	Complete bool     // it was brought to its end
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
	pingInterval, silence = 10 * time.Second, 3 * time.Minute
	// refusePatience is how long an end waits for the peer to read why it is refused.
	refusePatience = 2 * time.Second
)

// next returns the next message. What a peer refuses with becomes a *Fault.
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

// expect returns the next message, which has to be of one type.
func expect[T proto.Message](ctx context.Context, l *link.Link) (T, error) {
	var zero T
	m, err := next(ctx, l)
	if err != nil {
		return zero, err
	}
	t, ok := m.(T)
	if !ok {
		return zero, faultf(proto.BadProtocol, "the peer sent a %T where a %T belongs", m, zero)
	}
	return t, nil
}

// refuse tells the peer of an error that this end has found.
func refuse(l *link.Link, err error) {
	ctx, stop := context.WithTimeout(context.Background(), refusePatience)
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
		l.WaitClosed(ctx) // by the peer, which has read it then
	}
}

// watch sends pings, and ends the session when the peer has gone silent.
func watch(ctx context.Context, l *link.Link, fail func(error)) {
	t := time.NewTicker(pingInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if quiet := time.Since(l.Heard()); quiet > silence {
				fail(fmt.Errorf("%w: the peer has said nothing for %v", link.ErrBroken, quiet.Round(time.Second)))
				return
			}
			if err := l.Send(ctx, &proto.Ping{}); err != nil {
				return // others notice
			}
		}
	}
}

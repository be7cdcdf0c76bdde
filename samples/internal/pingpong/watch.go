package pingpong

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The C programs close the TCP connection after the handshake. These programs keep it open, to
// notice when the peer dies. The server announces that first, after the client's "done", since
// a C server could not read more from the client; the client replies with the same message.
// The message has the service and the number of messages, which have to be equal at both ends.
// A side that has exchanged all messages says bye; all its packets have left by then.
const (
	keepOpen = "verbena" // begins the announcement that the connection stays open
	bye      = "bye\x00"
	// maxMessage bounds a message of the peer, in bytes.
	maxMessage = 64
	// lossTimeout bounds the wait for packets in flight once the peer has sent everything.
	lossTimeout = 10 * time.Second
)

// parameters describe the exchange of messages: both ends need the same values.
type parameters struct {
	service string
	iters   int
}

func (o *Options) parameters() parameters { return parameters{o.program.Service.String(), o.Iters} }

func (g parameters) encode() []byte {
	return fmt.Appendf(nil, "%s:%s:%d\x00", keepOpen, g.service, g.iters)
}

// decodeParameters decodes an announcement. ok is false if the text is something else.
func decodeParameters(text string) (g parameters, ok bool) {
	fields := strings.Split(strings.TrimSuffix(text, "\x00"), ":")
	if len(fields) != 3 || fields[0] != keepOpen {
		return g, false
	}
	iters, err := strconv.ParseUint(fields[2], 10, 31)
	return parameters{fields[1], int(iters)}, err == nil
}

// watchConnection starts to watch the TCP connection after the handshake. The returned context
// ends if the peer, keeping the connection, ends before all messages are exchanged.
func (p *Peer) watchConnection(parent context.Context) (context.Context, error) {
	ctx, cancel := context.WithCancelCause(parent)
	p.cancel, p.announced, p.ended = cancel, make(chan struct{}), make(chan struct{})
	err := p.conn.SetDeadline(time.Time{})
	if !p.o.Client() && err == nil {
		_ = p.send(p.o.parameters().encode()) // fails for a C program, which has closed the connection
	}
	if parent.Err() != nil {
		err = context.Cause(parent)
	}
	go p.readMessages()
	return ctx, err
}

// readMessages reads the peer's messages until it has said bye or the connection has ended.
func (p *Peer) readMessages() {
	defer close(p.ended)
	r := bufio.NewReaderSize(p.conn, maxMessage)
	keeps := p.readAnnouncement(r)
	close(p.announced)
	switch {
	case !keeps: // a C program, whose death nothing shows
		return
	case p.mismatch != nil:
		p.cancel(p.mismatch)
		return
	}
	text, err := r.ReadSlice(0)
	if err != nil || string(text) != bye {
		p.cancel(errors.New("the peer ended before all messages were exchanged"))
		return
	}
	p.lossTimer = time.AfterFunc(lossTimeout, func() {
		p.cancel(fmt.Errorf("the peer has sent all its messages, but %v later some had not arrived", lossTimeout))
	})
}

// readAnnouncement reports whether the peer keeps the connection open. A client replies that it
// does too. If the parameters of the ends differ, it sets mismatch.
func (p *Peer) readAnnouncement(r *bufio.Reader) bool {
	text, err := r.ReadSlice(0) // fails if it is longer than maxMessage
	theirs, ok := decodeParameters(string(text))
	if err != nil || !ok {
		return false
	}
	if p.o.Client() && p.send(p.o.parameters().encode()) != nil {
		return false
	}
	p.keepsOpen = true
	if mine := p.o.parameters(); theirs != mine {
		p.mismatch = fmt.Errorf("the peer exchanges %d messages over %.10q, this program %d over %q: start the same program with the same -n at both ends", theirs.iters, theirs.service, mine.iters, mine.service)
	}
	return true
}

// Finish is called when this end has exchanged all messages. It says bye, and waits for the peer,
// which may still need an acknowledgement. It returns err, or why the ends do not go together: a
// few messages may have been exchanged before that was known.
func (p *Peer) Finish(err error) error {
	select {
	case <-p.announced:
	case <-time.After(answerTimeout):
		return err
	}
	if p.keepsOpen {
		_ = p.send([]byte(bye)) // the peer may have gone
		select {
		case <-p.ended:
		case <-time.After(answerTimeout):
		}
	}
	if err == nil {
		err = p.mismatch
	}
	return err
}

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
	keep = "verbena" // begins the announcement that the connection stays open
	bye  = "bye\x00"
	// longest bounds a message of the peer, in bytes.
	longest = 64
	// silence is for a peer that has closed the connection, as the C programs do: it may have
	// died. The program ends when nothing has completed for so long.
	silence = time.Minute
	// lossPatience bounds the wait for packets in flight once the peer has sent everything.
	lossPatience = 10 * time.Second
)

// game is the exchange to agree on: both ends need the same values.
type game struct {
	service string
	iters   int
}

func (o *Options) game() game { return game{o.program.Service.String(), o.Iters} }

func (g game) encode() []byte { return fmt.Appendf(nil, "%s:%s:%d\x00", keep, g.service, g.iters) }

// decodeGame decodes an announcement. ok is false if the text is something else.
func decodeGame(text string) (g game, ok bool) {
	fields := strings.Split(strings.TrimSuffix(text, "\x00"), ":")
	if len(fields) != 3 || fields[0] != keep {
		return g, false
	}
	iters, err := strconv.ParseUint(fields[2], 10, 31)
	return game{fields[1], int(iters)}, err == nil
}

// hold starts to watch the TCP connection after the handshake. The context that it returns
// ends if the peer, keeping the connection, ends before all messages are exchanged.
func (p *Peer) hold(parent context.Context) (context.Context, error) {
	ctx, cancel := context.WithCancelCause(parent)
	p.cancel, p.gone = cancel, make(chan struct{})
	err := p.conn.SetDeadline(time.Time{})
	if !p.o.Client() && err == nil {
		_ = p.send(p.o.game().encode()) // fails for a C program, which has closed the connection
	}
	if parent.Err() != nil {
		err = context.Cause(parent)
	}
	go p.watch(ctx)
	return ctx, err
}

// watch reads the peer's messages until it has said bye or the connection has ended.
func (p *Peer) watch(ctx context.Context) {
	defer close(p.gone)
	r := bufio.NewReaderSize(p.conn, longest)
	text, err := r.ReadString(0)
	theirs, ok := decodeGame(text)
	if err != nil || !ok {
		p.watchSilence(ctx)
		return
	}
	if !p.keeps() {
		return // this end has exchanged all messages
	}
	if mine := p.o.game(); theirs != mine {
		p.cancel(fmt.Errorf("the peer exchanges %d messages over %.10q, and this program %d over %q: start the same program with the same -n", theirs.iters, theirs.service, mine.iters, mine.service))
		return
	}
	if text, err = r.ReadString(0); err != nil || text != bye {
		p.cancel(errors.New("the peer has ended before the game was over"))
		return
	}
	p.late = time.AfterFunc(lossPatience, func() {
		p.cancel(fmt.Errorf("the peer has sent all its messages, and %v later not all of them had come", lossPatience))
	})
}

// watchSilence ends the program when nothing has completed for some time.
func (p *Peer) watchSilence(ctx context.Context) {
	t := time.NewTicker(silence)
	defer t.Stop()
	for before := int64(-1); ; {
		now := p.o.completed.Load()
		if now == before {
			p.cancel(fmt.Errorf("nothing has come from the peer for %v: it may have died", silence))
			return
		}
		before = now
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// keeps notes that the peer keeps the connection. A client replies that it does too, unless it
// has exchanged all messages.
func (p *Peer) keeps() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.through {
		return false
	}
	p.kept = true
	return !p.o.Client() || p.send(p.o.game().encode()) == nil
}

// Finish is called when this end has exchanged all messages. It says bye, and waits for the
// peer, which may still need an acknowledgement. It returns its argument.
func (p *Peer) Finish(err error) error {
	p.mu.Lock()
	p.through = true
	kept := p.kept
	if kept || !p.o.Client() {
		_ = p.send([]byte(bye)) // the peer may have gone
	}
	p.mu.Unlock()
	if kept {
		select {
		case <-p.gone:
		case <-time.After(answerTimeout):
		}
	}
	return err
}

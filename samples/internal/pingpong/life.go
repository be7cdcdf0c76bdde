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

// The C programs close the TCP connection behind the handshake. These keep it, and so know
// when the peer has died. The server says first that it does, since a C server could not read
// what comes behind the client's "done"; the client answers in kind. The message names the
// game, which has to be the same at both ends. A peer whose game is over says bye: whatever
// it has sent is on its way by then.
const (
	keep = "verbena" // begins the message that the connection is kept
	bye  = "bye\x00"
	// longest bounds what the peer says at a time, bytes.
	longest = 64
	// silence ends a game whose peer has closed the connection, as the C programs do, when
	// nothing has come for so long: it may have died.
	silence = time.Minute
	// lossPatience is for what was on its way when the peer had sent everything.
	lossPatience = 10 * time.Second
)

// game is what both ends have to play.
type game struct {
	service string
	iters   int
}

func (o *Options) game() game { return game{o.program.Service.String(), o.Iters} }

func (g game) encode() []byte { return fmt.Appendf(nil, "%s:%s:%d\x00", keep, g.service, g.iters) }

// decodeGame takes a message that the connection is kept. ok: it is one.
func decodeGame(text string) (g game, ok bool) {
	fields := strings.Split(strings.TrimSuffix(text, "\x00"), ":")
	if len(fields) != 3 || fields[0] != keep {
		return g, false
	}
	iters, err := strconv.ParseUint(fields[2], 10, 31)
	return game{fields[1], int(iters)}, err == nil
}

// hold begins to watch the connection, behind the handshake. The context that it returns ends
// when the peer does before the game is over, if the peer keeps the connection.
func (p *Peer) hold(parent context.Context) (context.Context, error) {
	ctx, cancel := context.WithCancelCause(parent)
	p.cancel, p.gone = cancel, make(chan struct{})
	err := p.conn.SetDeadline(time.Time{})
	if !p.o.Client() && err == nil {
		_ = p.send(p.o.game().encode()) // a C program has closed it
	}
	if parent.Err() != nil {
		err = context.Cause(parent)
	}
	go p.watch(ctx)
	return ctx, err
}

// watch reads what the peer says until it has said bye, or the connection has ended.
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
		return // this end is through
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

// watchSilence ends the game when nothing has completed for some time.
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

// keeps notes that the peer keeps the connection, and has a client say so, too, unless its
// game is over.
func (p *Peer) keeps() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.through {
		return false
	}
	p.kept = true
	return !p.o.Client() || p.send(p.o.game().encode()) == nil
}

// Finish ends a game that is over at this end: it says so, and gives the peer time to end,
// too, which may still wait for an acknowledgement. It returns the error that it is given.
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

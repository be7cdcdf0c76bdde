package oob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/oob/internal/greeting"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// attemptTimeout is how long one attempt of a requester takes at most, from the dial to
	// the responder's answer.
	attemptTimeout = time.Minute
	// longestPause is the time between two attempts, after the first few.
	longestPause = 250 * time.Millisecond
	// answerNote is when the requester notes that nobody answers.
	answerNote = 2 * time.Second
)

// asking is the requester's end. It makes one attempt after the other until the responder
// has answered: the responder may not be there yet, or about to go, or without room.
type asking struct {
	making
	fail  func(err error)
	now   *attempt
	last  error // of the last attempt
	noted int
	pause time.Duration
}

func (a *asking) prepare(context.Context) error { return nil }

func (a *asking) begin(fail func(err error)) {
	a.fail, a.pause = fail, time.Millisecond
	time.AfterFunc(answerNote, func() {
		a.x.call.later(func() {
			if !a.x.call.ended && a.last == nil && a.now.up == 0 {
				why := "nobody has answered so far"
				if err := a.now.dialError(); err != nil {
					why = reason(err)
				}
				a.note(why)
			}
		})
	})
	a.attempt()
}

func (a *asking) note(why string) {
	if a.noted < maxRejections {
		a.noted++
		p := a.x.peer
		p.ends.Note(fmt.Sprintf("%s does not answer at %v yet, trying again: %s", p.cfg.Peer, a.way, why))
	}
}

// attempt makes the next attempt.
func (a *asking) attempt() {
	t := &attempt{a: a, token: greeting.NewToken()}
	a.now = t
	l, err := newLanding(a.x.connections, maxBundle, t.check)
	if err != nil {
		a.fail(err)
		return
	}
	t.landing = l
	t.dial((&greeting.Request{
		Token: t.token, Connections: uint16(a.connections), Landing: l.place(), Length: uint32(len(a.ours)),
	}).Encode())
}

// giveUp implements meeting.
func (a *asking) giveUp(err error) {
	last := a.last
	if dialing := a.now.dialError(); dialing != nil {
		last = dialing
	}
	if last != nil && !errors.Is(err, last) {
		err = fmt.Errorf("%w; the last attempt: %w", err, last)
	}
	if t := a.now; t != nil {
		t.landing.close()
		a.x.conns = t.conns
	}
	a.x.fail(err)
}

// again makes another attempt after one that has failed, or gives up.
func (a *asking) again(t *attempt) {
	err := t.lost
	if !t.mayRetry() {
		a.last = nil
		a.fail(err)
		return
	}
	if a.last == nil || a.last.Error() != err.Error() {
		a.note(reason(err))
	}
	a.last = err
	a.pause = min(2*a.pause, longestPause)
	time.AfterFunc(a.pause, func() {
		a.x.call.later(func() {
			if !a.x.call.ended {
				a.attempt()
			}
		})
	})
}

// reason is what an error says without its attempt, which is another each time.
func reason(err error) string {
	var failure *verbs.CMError
	if errors.As(err, &failure) && failure.Err != nil {
		err = failure.Err
	}
	return err.Error()
}

// attempt is one attempt to meet the responder.
type attempt struct {
	a       *asking
	token   greeting.Token
	landing *landing
	conns   []*rdma.Connection
	up      int  // of them
	closed  int  // of them
	sent    bool // our bundle, and the word behind it
	peer    greeting.Acceptance
	lost    error // why it has failed
}

// dialError is why the connection that is being dialled does not come about so far.
func (t *attempt) dialError() error {
	if t == nil || len(t.conns) == 0 {
		return nil
	}
	return t.conns[len(t.conns)-1].DialError()
}

// errBusy is that of a responder that has no room now.
var errBusy = errors.New("it cannot take this program yet")

// dial makes the next connection.
func (t *attempt) dial(data []byte) {
	a := t.a
	conn, err := a.x.connections.Dial(a.way.address, rdma.DialConfig{PrivateData: data, Timeout: attemptTimeout, Held: t.changed})
	if err != nil {
		t.lose(err)
		return
	}
	t.conns = append(t.conns, conn)
}

// changed follows the connections until the program has them.
func (t *attempt) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	switch state {
	case rdma.Ready:
		if t.lost != nil || t.a.x.call.ended {
			return
		}
		t.up++
		if conn == t.conns[0] {
			err = t.introduce(conn)
		} else {
			err = greeting.CheckFurtherAcceptance(conn.AcceptData())
		}
		if err != nil {
			t.lose(fmt.Errorf("what answers at %v: %w", t.a.way, err))
			return
		}
		t.check()
	case rdma.Failed:
		t.check() // the reason may have landed
		t.lose(t.refused(err))
		_ = conn.Close() // on the engine's goroutine it does not fail
	case rdma.Closed:
		t.closed++
		t.check() // likewise
		if err == nil {
			err = ErrClosed
		}
		t.lose(err)
		t.end()
	}
}

// refused is the error of a connection that has failed, with the responder's reason for
// rejecting it.
func (t *attempt) refused(err error) error {
	var failure *verbs.CMError
	if !errors.Is(err, rdma.ErrRejected) || !errors.As(err, &failure) || failure.Reason != verbs.CMRejectConsumer {
		return err
	}
	if !slices.ContainsFunc(failure.PrivateData, func(b byte) bool { return b != 0 }) {
		return fmt.Errorf("%w: %w", errBusy, err) // as where a program ends, or goes before it is up
	}
	r, unknown := greeting.ReadRefusal(failure.PrivateData)
	switch {
	case unknown != nil:
		return fmt.Errorf("what answers at %v: %w: %w", t.a.way, err, unknown)
	case r.Busy:
		return fmt.Errorf("%w: %q", errBusy, r.Text)
	}
	return fmt.Errorf("%s: %w: %q", t.a.x.peer.cfg.Peer, ErrRejected, r.Text)
}

// mayRetry reports whether another attempt may succeed.
func (t *attempt) mayRetry() bool {
	err := t.lost
	return t.up == 0 && errors.Is(err, rdma.ErrTimeout) || errors.Is(err, errBusy) || errors.Is(err, rdma.ErrPeerClosed) ||
		errors.Is(err, rdma.ErrRetryExceeded) || errors.Is(err, rdma.ErrNotListening) || errors.Is(err, rdma.ErrUnreachable)
}

// introduce gives the responder what this end offers, and dials the other connections.
func (t *attempt) introduce(conn *rdma.Connection) error {
	acceptance, err := greeting.ReadAcceptance(conn.AcceptData())
	if err != nil {
		return err
	}
	t.peer = *acceptance
	if err := t.landing.send(conn, t.peer.Landing, greeting.Complete, t.a.ours, func(err error) {
		if t.sent = err == nil; t.sent { // otherwise the connection ends with it
			t.check()
		}
	}); err != nil {
		return err
	}
	for i := 1; i < t.a.connections && t.lost == nil; i++ {
		t.dial((&greeting.Further{Token: t.token, Index: uint16(i)}).Encode())
	}
	return nil
}

// lose gives up the attempt, once.
func (t *attempt) lose(err error) {
	if t.lost != nil || t.a.x.call.ended {
		return
	}
	t.lost = err
	t.landing.close()
	for _, conn := range t.conns {
		_ = conn.Close() // on the engine's goroutine it does not fail
	}
	if len(t.conns) == 0 {
		_ = t.a.x.r.Engine().Do(t.end)
	}
}

// end ends the attempt when the places of its connections are free again.
func (t *attempt) end() {
	if t.closed == len(t.conns) && !t.a.x.call.ended {
		t.a.again(t)
	}
}

// check looks for the responder's answer.
func (t *attempt) check() {
	a := t.a
	if t.lost != nil || a.x.call.ended {
		return
	}
	w, err := t.landing.word(greeting.AnswerWord)
	if err == nil && (w == greeting.Word{} || w.Kind == greeting.Complete && (t.up < a.connections || !t.sent)) {
		return
	}
	var content []byte
	if err == nil {
		content, err = t.landing.landed(w)
	}
	if err == nil {
		switch w.Kind {
		case greeting.Complete:
			err = t.succeed(content)
		case greeting.Refused:
			err = fmt.Errorf("%s: %w: %q", a.x.peer.cfg.Peer, ErrRejected, greeting.Cut(string(content), maxRefusal))
		case greeting.Names:
			err = t.otherNames(content)
		default:
			err = fmt.Errorf("%w: the word %v is not expected here", descriptor.ErrFormat, w)
		}
	}
	if err != nil {
		t.lose(err)
	}
}

// otherNames is the error of a responder that is another program than the one that is meant.
func (t *attempt) otherNames(content []byte) error {
	b, err := descriptor.DecodeBundle(content)
	if err != nil {
		return err
	}
	return notFrom(t.a.x.peer.ends, b.From, b.To)
}

// succeed takes what the responder offers, and hands over to the program.
func (t *attempt) succeed(theirs []byte) error {
	a, x := t.a, t.a.x
	answer, err := x.acceptMade(theirs, t.conns)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(t.conns, func(conn *rdma.Connection) bool { return conn.State() != rdma.Connecting }) {
		err = rdma.ErrPeerClosed
	}
	if err == nil {
		err = t.landing.confirm(t.conns[0], t.peer.Landing)
	}
	for _, conn := range t.conns {
		if err == nil {
			err = conn.Announce()
		}
	}
	if err != nil {
		closeImports(answer.Maps, answer.Events)
		return err
	}
	a.end()
	if t.peer.Reports {
		a.way.willReport(x.connections, t.conns[0], t.token)
	}
	x.watch(answer)
	x.answer(answer, nil)
	for _, conn := range t.conns {
		_ = conn.Established() // fails where the program has closed it
	}
	a.release()
	return nil
}

package transfer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

type linkState int

const (
	linkDown   linkState = iota
	linkQueued           // the engine's goroutine will dial
	linkDialing
	linkReady
	linkClosing
)

const (
	maxFailures = 5                // in a row, of connections over which no piece got done
	lasting     = time.Second      // how long a connection lasts that is no reason to wait before the next
	maxBackOff  = 10 * time.Second // between two connections
	maxDials    = 16               // at a time, of an agent; half are for peers that could be reached
	windowBytes = 4 << 20          // at a device for one peer, if more than one piece
)

// link is a peer as one device of the agent reaches it: by one connection at a time. The agent's mutex guards
// it.
type link struct {
	peer       *Peer
	rail       *rail // its own device, or another one when that fails
	home       *rail
	target     string // the address that is dialled
	dials      uint32
	slot       *int // of Agent.dialing, while it dials
	tries      int  // that failed, one after the other
	state      linkState
	conn       *rdma.Connection
	attempt    int
	notes      uint64 // that the peer has got by earlier connections and this one
	acceptance        // of whom the connection has reached
	inFlight   int    // pieces
	bytes      int
	active     [levels]bool // in the queue of the rail
	failures   int          // since a piece got done
	short      int          // connections that did not last, one after the other
	asked      time.Time    // to dial
	ready      time.Time    // since when the connection is; zero: it was not
	retryAt    time.Time
	err        error // why the connection failed
	// fenced are writes that the device had when the connection ended. Packets of them may still be on their
	// way. The peer accepts the next connection when it has ended the old one: then they can be repeated.
	fenced *piece
}

// room reports whether the device takes another piece. Peers that do not answer hold what was posted to them:
// so each gets less while the device has many.
func (l *link) room() bool {
	depth := l.rail.agent.cfg.Depth
	if l.rail.inFlight > poolSize/2 {
		depth = min(depth, 2)
	}
	return l.inFlight < depth && (l.inFlight == 0 || l.bytes < windowBytes)
}

// activate puts the link into the queues of its rail for which there is work, if it can take some.
func (l *link) activate() {
	for level := range levels {
		if l.state == linkReady && !l.active[level] && l.peer.work[level].Len() > 0 && l.room() {
			l.active[level] = true
			l.rail.active[level].Push(l)
			l.rail.wake()
		}
	}
}

// dial connects by its own device or, if that has failed, on the path of a link that is connected: now, or when
// it is time to.
func (l *link) dial() {
	a := l.peer.agent
	now := a.host.Now()
	switch {
	case l.state != linkDown:
		return
	case now.Before(l.retryAt):
		l.peer.later(l.retryAt)
		return
	}
	l.state, l.rail, l.asked = linkQueued, l.home, now
	class := 0
	if l.failures >= maxFailures-1 { // the latest attempt has failed
		class = 1
	}
	a.toDial[class].Push(l)
	a.dialNext()
}

// dialNext lets links dial, as many as may.
func (a *Agent) dialNext() {
	for class, most := range [...]int{maxDials, maxDials / 2} {
		for q := &a.toDial[class]; q.Len() > 0 && a.dialing[class] < most && a.dialing[0]+a.dialing[1] < maxDials; {
			if l := q.Pop(); l.state == linkQueued && l.slot == nil {
				l.slot = &a.dialing[class]
				*l.slot++
				l.start()
			}
		}
	}
}

// release lets the next link dial. It is called whenever a link has dialled, or need no longer.
func (l *link) release() {
	if l.slot != nil {
		*l.slot--
		l.slot = nil
		l.peer.agent.dialNext()
	}
}

// start chooses the path, and has the engine's goroutine dial.
func (l *link) start() {
	l.rail, l.target, l.active = l.home, l.peer.addr, [levels]bool{}
	acc, rails := &l.peer.reached, l.peer.agent.rails
	if n := int(acc.Devices); n > 1 {
		l.target = acc.Addrs[(l.home.index+l.attempt)%n].addrPort().String()
	}
	for i := 0; l.rail.dead != nil && i < len(rails); i++ {
		l.rail = rails[i]
	}
	for _, other := range l.peer.links {
		if other.state == linkReady && (l.tries > 0 || l.home.dead != nil) {
			l.rail, l.target = other.rail, acc.Addrs[other.Device].addrPort().String()
		}
	}
	_ = l.rail.engine.Do(l.begin)
}

func (l *link) close() {
	if l.state == linkQueued {
		l.state = linkDown
		l.release()
	}
	if l.state == linkDialing || l.state == linkReady {
		l.state = linkClosing
		conn := l.conn
		_ = l.rail.engine.Do(func() { _ = conn.Close() })
	}
}

// begin dials. It runs on the engine's goroutine.
func (l *link) begin() {
	a := l.rail.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if l.state != linkQueued {
		return
	}
	l.state, l.err, l.ready = linkDialing, nil, time.Time{}
	a.counters.Dials++
	l.dials++
	who := request{Magic: magic, End: end{l.peer.id, uint8(l.home.index)}, Dials: l.dials}
	timeout := max(a.cfg.DialTimeout-a.host.Now().Sub(l.asked), a.cfg.DialTimeout/10)
	conn, err := l.rail.rdma.Dial(l.target, rdma.DialConfig{PrivateData: encode(who), Timeout: timeout, OnReject: rejected})
	if err != nil {
		l.failures, l.tries = maxFailures, l.tries+1
		l.down(err)
		return
	}
	conn.SetUserData(l)
	l.conn = conn
}

// rejected says why a rejection is final, if it is.
func rejected(data []byte) error {
	data = bytes.TrimRight(data, "\x00")
	if bytes.Equal(data, busy) {
		return nil
	}
	return fmt.Errorf("%w, which says %q", rdma.ErrRejected, data)
}

// changed follows the connection.
func (l *link) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	a := l.peer.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if conn != l.conn {
		return
	}
	switch state {
	case rdma.Ready:
		l.release()
		acc, err := decodeAcceptance(conn.AcceptData())
		if err != nil {
			a.counters.Refused++
			l.err, l.failures = err, maxFailures
			l.close()
			return
		}
		if l.state != linkDialing {
			return
		}
		same := l.Epoch == acc.Epoch && acc.Known == 1
		l.tries = 0
		l.state, l.acceptance, l.err, l.ready = linkReady, acc, nil, a.host.Now()
		a.cfg.Log.Debug().Stringer("connection", conn).Str("peer", l.peer.addr).Msg("connected")
		l.peer.found(acc)
		l.releaseFenced(same)
		if l.rail != l.home && l.home.dead == nil { // all that was wanted is the end of its writes
			l.close()
		}
		l.peer.connect()
		l.activate()
	case rdma.Failed:
		l.err = err
		a.counters.Lost++
		a.cfg.Log.Debug().Stringer("connection", conn).Str("peer", l.peer.addr).Err(err).Msg("lost")
		if l.state == linkDialing {
			l.attempt++
			l.failures, l.tries = maxFailures, l.tries+1
		}
		l.state = linkClosing
		_ = conn.Close() // this is the engine's goroutine
	case rdma.Closed:
		if l.err == nil {
			l.err = err // by the peer
		}
		l.down(l.err)
	}
}

// down notes the end of the connection, of which the device has nothing any more.
func (l *link) down(err error) {
	if err == nil {
		err = rdma.ErrPeerClosed
	}
	l.state, l.conn = linkDown, nil
	l.release()
	l.failures++
	now := l.peer.agent.host.Now()
	if l.short++; !l.ready.IsZero() && now.Sub(l.ready) >= lasting {
		l.short = 0
	}
	if l.short > 1 { // after the first, the next may come at once
		l.retryAt = now.Add(min(50*time.Millisecond<<min(l.short-1, 8), maxBackOff))
	}
	l.peer.lost(l, err)
}

// take takes the next piece of work of a level for the link, or none.
func (l *link) take(level int) *piece {
	w := &l.peer.work[level]
	for w.Len() > 0 {
		u := w.Front()
		pc := u.nextPiece()
		if pc == nil {
			u.queued = false
			w.Pop()
			continue
		}
		var m *mmap.Map
		var err error
		if pc.item.op != rdma.OpWriteImm {
			m, err = pc.item.remote.through(l)
		} else if u.epoch != 0 && u.epoch != l.Epoch {
			err = ErrStale // the peer with the data is no more
		}
		if err == nil {
			pc.link, pc.remote = l, m
			return pc
		}
		l.peer.agent.pieceEnded(pc, err)
	}
	return nil
}

// ended takes a piece back from the device, or one that it did not take.
func (l *link) ended(pc *piece, original uint64, posted bool, err error) {
	a, h, it := l.peer.agent, pc.run.h, pc.item
	l.inFlight--
	l.bytes -= pc.length
	l.rail.inFlight--
	dead := cmp.Or(a.closed, l.peer.closed)
	if err != nil && l.state == linkReady && repeatable(err, posted) {
		l.state = linkClosing // which changed will report
	}
	switch {
	case err == nil:
		l.failures = 0
		it.original = original
		if it.op == rdma.OpWriteImm {
			l.notes++
		}
		a.pieceEnded(pc, nil)
	case !repeatable(err, posted):
		a.pieceEnded(pc, err)
	case posted && it.atomic():
		a.pieceEnded(pc, fmt.Errorf("%w: %w", ErrUnknown, err))
	case dead != nil && posted && it.op != rdma.OpRead:
		a.pieceEnded(pc, fmt.Errorf("%w: %w", ErrUnknown, dead))
	case dead != nil:
		a.pieceEnded(pc, dead)
	case posted && it.op != rdma.OpRead:
		pc.next, l.fenced = l.fenced, pc
	case h.canceled:
		a.pieceEnded(pc, ErrCanceled)
	default:
		pc.repeat()
	}
	l.activate()
}

// repeatable reports whether a piece failed because its connection or device ended, and not by itself: of what the
// device had, only the peer's refusals and the checks here say that.
func repeatable(err error, posted bool) bool {
	if !posted {
		return errors.Is(err, rdma.ErrNotReady) || errors.Is(err, pe.ErrBadState)
	}
	var e *rdma.TaskError
	if !errors.As(err, &e) {
		return true
	}
	switch e.Status { // not errors.Is: the error of what was flushed also matches why
	case verbs.StatusLocalLengthError, verbs.StatusLocalQPOperationError, verbs.StatusLocalProtectionError, verbs.StatusLocalAccessError,
		verbs.StatusRemoteInvalidRequest, verbs.StatusRemoteAccessError, verbs.StatusRemoteOperationError:
		return false
	}
	return true
}

// repeat puts a piece back into the work for its peer.
func (pc *piece) repeat() {
	u := pc.run
	u.peer.agent.counters.Repeated++
	pc.next, u.again = u.again, pc
	u.peer.enqueue(u)
}

// releaseFenced lets the writes of the earlier connection go on, which has ended at both ends. Of its notes, the
// latest are those that the peer has not got; it has counted them. The latest are the first in the list.
func (l *link) releaseFenced(same bool) {
	missing := 0 // notes
	for pc := l.fenced; pc != nil; pc = pc.next {
		if pc.item.op == rdma.OpWriteImm {
			missing++
		}
	}
	got := l.acceptance.Notes - l.notes
	same = same && got <= uint64(missing)
	missing -= int(got)
	l.notes = l.acceptance.Notes
	for pc := l.fenced; pc != nil; pc = l.fenced {
		l.fenced, pc.next = pc.next, nil
		if pc.item.op == rdma.OpWriteImm {
			if !same {
				l.peer.agent.pieceEnded(pc, fmt.Errorf("%w: the peer was opened again, or knows nothing of the connection", ErrUnknown))
				continue
			}
			if missing--; missing < 0 {
				l.peer.agent.pieceEnded(pc, nil)
				continue
			}
		}
		if pc.run.h.canceled {
			l.peer.agent.pieceEnded(pc, ErrCanceled)
		} else {
			pc.repeat()
		}
	}
}

func (l *link) endFenced(err error) {
	for pc := l.fenced; pc != nil; pc = l.fenced {
		l.fenced = pc.next
		l.peer.agent.pieceEnded(pc, err)
	}
}

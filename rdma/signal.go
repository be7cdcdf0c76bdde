package rdma

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// purpose is what a connection's signal is used for.
type purpose uint8

const (
	signalNone purpose = iota
	signalReady
	signalKeepalive
	signalDisconnect
	signalDrain // an empty write behind all tasks: when it has completed, so have they
)

var purposes = [...]string{"", "ready signal", "keepalive", "disconnect notice", "last write"}

// String names the purpose in errors.
func (p purpose) String() string { return purposes[p] }

// signalRequest is the one request that a connection makes for itself. It is ready signal,
// keepalive and disconnect notice, one after the other. All are writes: of 8 bytes to the
// connection's word at the peer, or of no bytes.
type signalRequest struct {
	send           lane.Request
	conn           *Connection
	purpose        purpose
	disconnectNext bool // to be posted when the request under way has completed
}

// post submits the request, which must not be in use. The value is written to the
// peer's word. A keepalive writes nothing, which takes neither a receive nor a key
// (IBTA 9.7.4.1.5, C9-88), and so does any signal to a peer that has no word.
func (s *signalRequest) post(p purpose, value uint64) {
	conn := s.conn
	c := conn.ctx
	s.purpose = p
	wr := verbs.SendWR{ID: s.send.WR.ID, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: s.send.WR.SGL[:0]}
	if p == signalDisconnect || p == signalDrain {
		wr.Flags |= verbs.FlagFence // the peer's answers to reads end with its connection
	}
	if p != signalKeepalive && p != signalDrain && conn.peer.readyAddr != 0 {
		words := &c.scratch.signals
		binary.BigEndian.PutUint64(words.bytes(conn.slot), value)
		wr.SGL = append(wr.SGL, words.entry(conn.slot))
		wr.RemoteAddr, wr.RKey = conn.peer.readyAddr, conn.peer.readyKey
	}
	s.send.WR = wr
	conn.lane.Push(&s.send)
	c.wake()
}

// Completed implements lane.Completer.
func (s *signalRequest) Completed(status verbs.Status, vendor uint32) {
	conn, p := s.conn, s.purpose
	s.purpose = signalNone
	if conn.state == Closed {
		if s.disconnectNext && status == verbs.StatusSuccess {
			s.disconnectNext = false
			conn.establishment.postDisconnect()
			return
		}
		if status == verbs.StatusSuccess {
			conn.establishment.ended()
			if p == signalDisconnect && conn.answered() && !conn.peerDisconnected {
				conn.limitClose(answerTimeout)
				conn.awaitConfirmation()
			}
		}
		if !conn.unconfirmed { // until then the queue pair serves the peer's requests
			conn.shut()
		}
		return
	}
	if p == signalReady && conn.state == Connecting {
		conn.establishment.signalCompleted(status, vendor)
		return
	}
	if status != verbs.StatusSuccess {
		err := fmt.Errorf("%v: %w; %s", p, statusOf(status).err, conn.adviceFor(OpWrite, status))
		if conn.peerDead {
			err = fmt.Errorf("%v: %w: %w", p, statusOf(status).err, ErrPeerDead)
		}
		conn.failedTask(status, err)
	}
}

// closePoll is how often a connection that is being closed is checked.
const closePoll = 50 * time.Millisecond

// startDisconnect begins to notify the peer that a connection is Closed. It reports false if
// there is nothing to wait for.
func (conn *Connection) startDisconnect() bool {
	wait := conn.ctx.set.CloseTimeout
	if wait < 0 || conn.loopback {
		return false
	}
	conn.lane.StopPosting(&conn.signal.send) // what the disconnect notice has to follow
	now := conn.ctx.host.Now()
	conn.closeBy = now.Add(wait)
	conn.scheduleCloseCheck(now)
	if conn.signal.purpose != signalNone {
		conn.signal.disconnectNext = true
		return true
	}
	conn.establishment.postDisconnect()
	return true
}

// limitClose shortens the time of a connection that is being closed.
func (conn *Connection) limitClose(d time.Duration) {
	now := conn.ctx.host.Now()
	if by := now.Add(d); by.Before(conn.closeBy) {
		conn.closeBy = by
	}
	conn.scheduleCloseCheck(now)
}

// due is called at the connection's deadline.
func (conn *Connection) due(now time.Time) {
	switch conn.state {
	case Connecting:
		conn.establishment.due(now)
	case Ready:
		if conn.ctx.set.Transport == verbs.UC {
			conn.establishment.due(now)
			return
		}
		conn.keepalive(now)
	case Closed:
		switch over := !now.Before(conn.closeBy); {
		case !conn.closing() && !conn.unconfirmed:
		case over && conn.unconfirmed:
			conn.confirmed()
		case over, conn.disconnectArrived() && !conn.answered():
			conn.shut()
		default:
			if conn.disconnectArrived() {
				conn.ctx.peerDisconnected(conn)
			}
			conn.scheduleCloseCheck(now)
		}
		conn.tryDestroy()
	}
}

// awaitConfirmation keeps a closed connection until the peer has confirmed that it knows, at most
// until closeBy. When the connection is destroyed, the message to the peer is not repeated.
func (conn *Connection) awaitConfirmation() {
	if conn.state == Closed && conn.ctx.host.Now().Before(conn.closeBy) {
		conn.unconfirmed = true
		conn.scheduleCloseCheck(conn.ctx.host.Now())
	}
}

// confirmed ends awaitConfirmation.
func (conn *Connection) confirmed() {
	if conn.unconfirmed {
		conn.unconfirmed = false
		if conn.closing() {
			conn.shut()
		}
		conn.tryDestroy()
	}
}

// scheduleCloseCheck sets the next check of a connection that is being closed. The peer's notice
// ends the wait for the acknowledgement of this end's, and devices without watches do not
// report it.
func (conn *Connection) scheduleCloseCheck(now time.Time) {
	at := now.Add(closePoll)
	if conn.closeBy.Before(at) {
		at = conn.closeBy
	}
	conn.ctx.setDeadline(&conn.deadline, at)
}

// timeoutError is the error of a connection whose peer did not connect.
func (conn *Connection) timeoutError(limit time.Duration) error {
	if err := conn.transition.last; err != nil {
		return fmt.Errorf("%w after %v: the last attempt failed: %w", ErrTimeout, limit, err)
	}
	if why := conn.ctx.pathProblem(conn.port, conn.LocalAddr().Addr()); why != "" {
		return fmt.Errorf("%w: the peer did not connect within %v: %s", ErrTimeout, limit, why)
	}
	return fmt.Errorf("%w: the peer did not connect within %v; check that the peer runs, that it has this end's descriptor, and that UDP packets get through%s",
		ErrTimeout, limit, conn.ctx.portAdvice())
}

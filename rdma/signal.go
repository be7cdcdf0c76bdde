package rdma

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// purpose is what a connection's own request is in use for.
type purpose uint8

const (
	signalNone purpose = iota
	signalReady
	signalKeepalive
	signalGoodbye
)

var purposes = [...]string{"", "ready signal", "keepalive", "goodbye"}

// String names the purpose in errors.
func (p purpose) String() string { return purposes[p] }

// signalRequest is the one request that a connection makes for itself, in turn for the
// ready signal, keepalives and the goodbye. All are writes: of 8 bytes to a word
// that is the connection's at the peer, or of nothing.
type signalRequest struct {
	send    lane.Request
	conn    *Connection
	purpose purpose
	goodbye bool // to be said when the keepalive under way is back
}

// post submits the request. The value is written to the peer's word; a keepalive
// writes nothing, which takes neither a receive nor a key (IBTA 9.7.4.1.5, C9-88).
func (s *signalRequest) post(p purpose, value uint64) {
	conn := s.conn
	c := conn.ctx
	s.purpose = p
	wr := verbs.SendWR{ID: s.send.WR.ID, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: s.send.WR.SGL[:0]}
	if p != signalKeepalive {
		off := 8 * conn.slot
		binary.BigEndian.PutUint64(c.scratch.Bytes()[off:], value)
		sg := c.scratchSG
		sg.Addr += uint64(off)
		wr.SGL = append(wr.SGL, sg)
		wr.RemoteAddr, wr.RKey = conn.peer.readyAddr, conn.peer.readyKey
	}
	s.send.WR = wr
	conn.lane.Push(&s.send)
	c.poke()
}

// Completed implements lane.Completer.
func (s *signalRequest) Completed(status verbs.Status, vendor uint32) {
	conn, p := s.conn, s.purpose
	s.purpose = signalNone
	if conn.state == Closed {
		if s.goodbye && status == verbs.StatusSuccess {
			s.goodbye = false
			conn.establishment.sayGoodbye()
			return
		}
		conn.shut()
		return
	}
	if p == signalReady && conn.state == Connecting {
		conn.establishment.sent(status, vendor)
		return
	}
	if status != verbs.StatusSuccess {
		conn.failedTask(status, fmt.Errorf("rdma: %v: %v: %w; %s", conn, p, statusOf(status).err, statusOf(status).advice))
	}
}

// keepaliveSlots is how many times in a keepalive's time the peers are looked at: as
// many connections as there may be, the timer goes off no more often.
const keepaliveSlots = 64

// startKeepalive sets the time of the next look at the peer.
func (conn *Connection) startKeepalive(now time.Time) {
	d := conn.ctx.set.Keepalive
	if d < 0 || conn.toItself() {
		conn.ctx.setDeadline(conn, time.Time{})
		return
	}
	slot := max(d/keepaliveSlots, 1)
	base := conn.ctx.deadlines.base
	conn.ctx.setDeadline(conn, base.Add((now.Sub(base)+d)/slot*slot+slot))
}

// keepalive finds out whether the peer is still there, where nothing else has shown
// it. Requests in flight do: the device repeats them until it gives up.
func (conn *Connection) keepalive(now time.Time) {
	conn.startKeepalive(now)
	if conn.establishment.goodbyeArrived() { // nobody may have called for it
		conn.peerClosed()
		return
	}
	if !conn.heard && conn.lane.Posted() == 0 && conn.signal.purpose == signalNone {
		conn.signal.post(signalKeepalive, 0)
	}
	conn.heard = false
}

// sayGoodbye has a Ready connection, which is Closed from now on, tell its peer. It
// reports false if there is nothing to wait for.
func (conn *Connection) sayGoodbye() bool {
	wait := conn.ctx.set.CloseTimeout
	if wait < 0 || conn.toItself() {
		return false
	}
	conn.lane.Seal()
	conn.ctx.setDeadline(conn, time.Now().Add(wait))
	if conn.signal.purpose != signalNone {
		conn.signal.goodbye = true
		return true
	}
	conn.establishment.sayGoodbye()
	return true
}

func (conn *Connection) toItself() bool { return conn.local.compare(&conn.peer) == 0 }

// due does what the connection's deadline was set for.
func (conn *Connection) due(now time.Time) {
	switch conn.state {
	case Connecting:
		conn.establishment.due(now)
	case Ready:
		conn.keepalive(now)
	case Closed:
		if !conn.lane.IsShut() {
			conn.shut() // the goodbye has taken long enough
		}
	}
}

// timeoutError is that of a connection whose peer did not come.
func (conn *Connection) timeoutError(limit time.Duration) error {
	return fmt.Errorf("rdma: %v: %w: the peer did not answer for %v; check that it has this end's descriptor, that it runs, and that UDP packets get through",
		conn, ErrTimeout, limit)
}

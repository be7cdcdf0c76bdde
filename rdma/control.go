package rdma

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// purpose is what a connection's control request is in use for.
type purpose uint8

const (
	controlIdle purpose = iota
	controlReady
	controlKeepalive
	controlGoodbye
)

var purposes = [...]string{"", "ready signal", "keepalive", "goodbye"}

// String names the purpose in errors.
func (p purpose) String() string { return purposes[p] }

// control is the one request that a connection makes for itself, in turn for the
// ready signal, keepalives and the goodbye. All are writes: of 8 bytes to a word
// that is the connection's at the peer, or of nothing.
type control struct {
	send    lane.Request
	conn    *Connection
	purpose purpose
	goodbye bool // to be said when the keepalive under way is back
}

// post submits the request. The value is written to the peer's word; a keepalive
// writes nothing, which takes neither a receive nor a key (IBTA 9.7.4.1.5, C9-88).
func (ct *control) post(p purpose, value uint64) {
	conn := ct.conn
	c := conn.ctx
	ct.purpose = p
	wr := verbs.SendWR{ID: ct.send.WR.ID, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: ct.send.WR.SGL[:0]}
	if p != controlKeepalive {
		off := 8 * conn.slot
		binary.BigEndian.PutUint64(c.scratch.Bytes()[off:], value)
		sg := c.scratchSG
		sg.Addr += uint64(off)
		wr.SGL = append(wr.SGL, sg)
		wr.RemoteAddr, wr.RKey = conn.peer.readyAddr, conn.peer.readyKey
	}
	ct.send.WR = wr
	conn.lane.Push(&ct.send)
	c.poke()
}

// Completed implements lane.Completer.
func (ct *control) Completed(status verbs.Status, vendor uint32) {
	conn, p := ct.conn, ct.purpose
	ct.purpose = controlIdle
	if conn.state == Closed {
		if ct.goodbye && status == verbs.StatusSuccess {
			ct.goodbye = false
			conn.establishment.sayGoodbye()
			return
		}
		conn.shut()
		return
	}
	if p == controlReady && conn.state == Connecting {
		conn.establishment.sent(status, vendor)
		return
	}
	if status != verbs.StatusSuccess {
		conn.failedTask(status, fmt.Errorf("rdma: %v: %v: %w; %s", conn, p, statusOf(status).err, statusOf(status).advice))
	}
}

// startKeepalive sets the time of the next look at the peer.
func (conn *Connection) startKeepalive(now time.Time) {
	if d := conn.ctx.set.Keepalive; d > 0 && !conn.toItself() {
		conn.ctx.setDeadline(conn, now.Add(d))
	}
}

// keepalive finds out whether the peer is still there, where nothing else has shown
// it. Requests in flight do: the device repeats them until it gives up.
func (conn *Connection) keepalive(now time.Time) {
	conn.startKeepalive(now)
	if conn.establishment.goodbyeArrived() { // nobody may have called for it
		conn.peerClosed()
		return
	}
	if !conn.heard && conn.lane.Posted() == 0 && conn.control.purpose == controlIdle {
		conn.control.post(controlKeepalive, 0)
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
	if conn.control.purpose != controlIdle {
		conn.control.goodbye = true
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

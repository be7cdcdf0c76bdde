package rdma

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/rdma/internal/deviceport"
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
	send    lane.Request
	conn    *Connection
	purpose purpose
}

// post submits the request, which must not be in use. The value is written to the
// peer's word. A keepalive writes nothing, which takes neither a receive nor a key
// (IBTA 9.7.4.1.5, C9-88), and so does any signal to a peer that has no word.
func (s *signalRequest) post(p purpose, value uint64) {
	conn := s.conn
	c := conn.ctx
	s.purpose = p
	wr := verbs.SendWR{ID: s.send.WR.ID, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: s.send.WR.SGL[:0]}
	if p != signalKeepalive && p != signalDrain && conn.peer.readyAddr != 0 {
		words := &c.scratch.signals
		binary.BigEndian.PutUint64(words.bytes(conn.slot), value)
		wr.SGL = append(wr.SGL, words.SGE(conn.slot))
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
	if conn.state() == Closed {
		conn.signalEnded(p, status)
		return
	}
	if p == signalReady && conn.state() == Connecting {
		conn.establishment.handle(event{kind: signalCompleted, status: status, vendor: vendor})
		return
	}
	if status != verbs.StatusSuccess {
		err := fmt.Errorf("%v: %w; %s", p, statusOf(status).err, conn.adviceFor(OpWrite, status))
		if conn.life.Dead() {
			err = fmt.Errorf("%v: %w: %w", p, statusOf(status).err, ErrPeerDead)
		}
		conn.failedTask(status, err)
	}
}

// timeoutError is the error of a connection whose peer did not connect.
func (conn *Connection) timeoutError(limit time.Duration) error {
	if err := conn.transition.last; err != nil {
		return fmt.Errorf("%w after %v: the last attempt failed: %w", ErrTimeout, limit, err)
	}
	if why := deviceport.Problem(conn.ctx.dev, conn.path.port, conn.LocalAddr().Addr()); why != "" {
		return fmt.Errorf("%w: the peer did not connect within %v: %s", ErrTimeout, limit, why)
	}
	return fmt.Errorf("%w: the peer did not connect within %v; check that the peer runs, that it has this end's descriptor, and that UDP packets get through%s",
		ErrTimeout, limit, conn.ctx.portAdvice())
}

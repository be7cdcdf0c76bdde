package rsocket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/buffers"
	"github.com/verbena-rdma/verbena/rsocket/internal/neterr"
	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
)

const (
	// receiveQueue is how many data messages a peer may have under way, and reservedReceives how
	// many control messages beside them.
	receiveQueue     = 64
	reservedReceives = 4
	// maxDataUnderWay is how many data messages of a connection are at the device at a time. While
	// that many are, further writes are put together to larger messages.
	maxDataUnderWay = 16
	// An SGL message, a shutdown message, a disconnect message, and a withdraw message or an answer
	// to one can be under way beside them.
	maxUnderWay = maxDataUnderWay + 4
	// openTimeout is how long a connection waits for the peer's confirmation.
	openTimeout = 10 * time.Second
	// idleTime is how long no data must have arrived before receive memory is taken back.
	idleTime = 5 * time.Second
	// maxMessage is the largest data message in bytes, as with rsockets.
	maxMessage = 64 << 10
)

// transfer is the part of a connection that belongs to the engine's goroutine.
type transfer struct {
	end       protocol.End
	conn      *rdma.Connection // nil: not connected yet
	failed    bool             // fail was called
	base      buffers.Base
	lingering host.Timer // nil: the program has not closed the connection
	idle      host.Timer // calls shrink; nil: the peer has only the first receive buffer

	order                           binary.ByteOrder // of the entries in the peer's target SGL
	peer                            buffers.Remote
	underWay                        fifo.Queue[message]
	dataMoving                      int  // data messages at the device
	sglMoving                       bool // an SGL message is
	withdrawalMoving, withdrawalDue bool // a withdraw message or an answer to one; a withdraw message is to be sent
}

// message is a message of this end at the device.
type message struct {
	op         protocol.Op
	chunk      *buffers.Chunk // of a data message
	length     int
	filled     *buffers.Target // by the message
	withdrawal bool            // a withdraw message, or the answer to one
}

// open allocates the base memory.
func (c *Conn) open() (err error) {
	c.end = protocol.NewEnd(receiveQueue)
	if c.base, err = c.stack.memory.NewBase(); err == nil {
		c.in = c.stack.memory.NewInbound(c.base)
	}
	return err
}

// hello is the private data of this end.
func (c *Conn) hello() []byte {
	bigEndian := binary.NativeEndian.Uint16([]byte{0, 1}) == 1
	h := protocol.Hello{BigEndian: bigEndian, Withdrawals: true, Credits: receiveQueue, Target: c.base.SGL(), Buffer: c.base.FirstBuffer().Entry()}
	return h.Encode()
}

// meet takes the private data of the peer, or why it is not valid.
func (c *Conn) meet(h protocol.Hello, err error) error {
	if err != nil {
		return fmt.Errorf("%w: private data with %w", ErrProtocol, err)
	}
	c.order = binary.LittleEndian
	if h.BigEndian {
		c.order = binary.BigEndian
	}
	c.end.Meet(&h)
	if err := c.peer.Meet(c.stack.cfg.Device, &h); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}

// bind joins the two connections. Messages of the peer may come from now on.
func (c *Conn) bind(conn *rdma.Connection) {
	c.mu.Lock()
	c.conn = conn // Counters may read it on another goroutine
	c.mu.Unlock()
	conn.SetUserData(c)
}

// received handles a message of the peer.
func received(m *rdma.Message) {
	c, ok := m.Connection().UserData().(*Conn)
	if !ok || c.failed {
		return
	}
	if err := c.take(m); err != nil {
		c.stack.protocolErrors.Add(1)
		c.fail(fmt.Errorf("%w: %w", ErrProtocol, err))
		return
	}
	c.pump()
}

func (c *Conn) take(m *rdma.Message) error {
	if m.Opcode() != rdma.ReceivedWriteImm {
		return fmt.Errorf("a %v came; only writes with immediate data are allowed", m.Opcode())
	}
	imm, _ := m.Imm()
	c.mu.Lock()
	defer c.mu.Unlock()
	event, err := c.end.Take(protocol.Imm(imm), m.Length(), c.in.Room())
	if err != nil {
		return err
	}
	switch event {
	case protocol.Arrived:
		c.in.Fill(m.Length(), c.stack.host.Now)
		if c.closed {
			c.discard()
		}
		c.readable.Signal()
	case protocol.Announced:
		e := c.base.Read(c.end.Target())
		if err := c.end.Announce(e); err != nil {
			return err
		}
		return c.peer.Add(e)
	case protocol.Returned:
		c.in.Withdrawn()
	case protocol.Ended:
		c.in.Withdrawn()
		c.readClosed, c.peerGone = c.end.Ended(), c.end.Gone()
		c.wakeAll()
	}
	return nil
}

// pump does what can be done now: it announces receive buffers, grants credits, sends data and, at
// last, the end of the data.
func (c *Conn) pump() {
	c.scheduled.Store(false)
	if c.conn == nil || c.failed {
		return
	}
	if s := c.conn.State(); s != rdma.Ready && s != rdma.Connecting {
		return
	}
	if err := errors.Join(c.withdraw(), c.grant(), c.sendData(), c.finish()); err != nil {
		c.fail(neterr.Reset(err))
	}
	c.stack.rdma.Flush()
}

// grant sends an SGL message if credits or a receive buffer are due.
func (c *Conn) grant() error {
	if c.sglMoving || c.end.Ended() {
		return nil
	}
	var b *buffers.Buffer
	if !c.end.Withdrawing() {
		c.mu.Lock()
		b = c.in.Next(c.stack.cfg.ReceiveBuffer)
		if c.idle == nil && c.end.Withdraws() && c.in.Grown() {
			c.in.Mark()
			c.awaitIdle()
		}
		c.mu.Unlock()
	}
	if b == nil && !c.end.GrantDue() {
		return nil
	}
	imm, index := c.end.Grant(b != nil)
	c.sglMoving = true
	m := message{op: protocol.OpSGL}
	if b == nil {
		return c.post(m, nil, nil, imm)
	}
	return c.post(m, bufinv.Source(c.base.Map, c.base.Put(index, b.Entry(), c.order), protocol.EntrySize), bufinv.Target(c.peer.SGL, index*protocol.EntrySize, protocol.EntrySize), imm)
}

// withdraw sends a withdraw message, or the answer to the peer's, if one is due.
func (c *Conn) withdraw() error {
	if c.withdrawalMoving {
		return nil
	}
	m := message{op: protocol.OpControl, withdrawal: true}
	var imm protocol.Imm
	if c.end.AnswerDue() {
		imm = c.end.Answer()
		c.peer.Withdraw()
	} else {
		due := c.withdrawalDue
		if c.withdrawalDue = false; due {
			imm, due = c.end.Withdraw()
		}
		if !due {
			return nil
		}
	}
	c.withdrawalMoving = true
	return c.post(m, nil, nil, imm)
}

// awaitIdle has shrink called in a while.
func (c *Conn) awaitIdle() {
	c.idle = c.stack.host.AfterFunc(idleTime, func() { _ = c.stack.engine.Do(c.shrink) })
}

// shrink takes back receive memory if no data has arrived for some time. The peer can write to the
// buffers that it was told of until it has answered, so only then are they released. C programs do
// not answer: they keep them.
func (c *Conn) shrink() {
	c.idle = nil
	if c.failed {
		return
	}
	c.mu.Lock()
	grown, idle := c.in.Grown() && !c.ended && !c.end.Withdrawing(), c.in.Idle()
	if grown && !idle {
		c.in.Mark()
		c.awaitIdle()
	}
	c.mu.Unlock()
	if grown && idle { // grant waits again when there are buffers again
		c.withdrawalDue = true
		c.pump()
	}
}

// sendData posts data messages while the peer has room for them.
func (c *Conn) sendData() error {
	for c.dataMoving < maxDataUnderWay && c.end.Room() > 0 {
		c.mu.Lock()
		chunk, offset, n := c.out.Post(min(c.end.Room(), maxMessage))
		c.mu.Unlock()
		if n == 0 {
			break
		}
		t := c.peer.Front()
		m := message{op: protocol.OpData, chunk: chunk, length: n}
		src, dst := bufinv.Source(chunk.Memory, offset, n), bufinv.Target(t.Memory, t.Offset, n)
		imm, full := c.end.Send(n)
		if t.Offset += n; full {
			m.filled = t
		}
		if err := c.post(m, src, dst, imm); err != nil {
			return err
		}
		if c.dataMoving++; full {
			c.peer.Pop()
		}
	}
	return nil
}

// finish sends the end of the data when all data was posted, and closes the connection when the
// program has done so and nothing is under way.
func (c *Conn) finish() error {
	c.mu.Lock()
	last, closed, linger := c.writeClosed && c.out.Unsent() == 0, c.closed, c.linger
	c.mu.Unlock()
	if closed && linger == 0 { // without the end of the data, the peer's connection fails
		c.disconnect()
		return nil
	}
	if last {
		if imm, due := c.end.Finish(closed); due {
			if err := c.post(message{op: protocol.OpControl}, nil, nil, imm); err != nil {
				return err
			}
		}
	}
	switch {
	case !closed:
	case c.end.Gone() || last && c.underWay.Len() == 0 || linger == None:
		c.disconnect()
	case c.lingering == nil:
		c.lingering = c.stack.host.AfterFunc(linger, func() { _ = c.stack.engine.Do(c.disconnect) })
	}
	return nil
}

// disconnect closes the connection, whatever has not been sent.
func (c *Conn) disconnect() { _ = c.conn.Close() } // it is legal here in every state

// post gives a message to the device. There is always a task: the pool has as many as all
// connections can have under way.
func (c *Conn) post(m message, src, dst *bufinv.Buf, imm protocol.Imm) error {
	t, err := c.stack.tasks.WriteImm(c.conn, src, dst, uint32(imm))
	if err != nil {
		return err
	}
	t.SetUserData(c)
	if err := t.Submit(pe.Aggregate); err != nil {
		return errors.Join(err, t.Free())
	}
	c.underWay.Push(m)
	return nil
}

// sent is called when the peer's device has a message.
func sent(t *rdma.Task) {
	c := t.UserData().(*Conn)
	c.completed(t)
	c.pump()
}

// sendFailed is called for a message that was not sent. The connection has the reason.
func sendFailed(t *rdma.Task, _ error) { t.UserData().(*Conn).completed(t) }

// completed takes back what the oldest message under way has used.
func (c *Conn) completed(t *rdma.Task) {
	_ = t.Free() // cannot fail in its callback
	switch m := c.underWay.Pop(); m.op {
	case protocol.OpSGL:
		c.sglMoving = false
	case protocol.OpControl:
		if m.withdrawal {
			c.withdrawalMoving = false
			_ = c.peer.CloseWithdrawn() // the data messages before it are not under way any more
		}
	case protocol.OpData:
		c.dataMoving--
		c.mu.Lock()
		c.out.Acknowledge(m.chunk, m.length)
		c.out.Release(c.writing)
		c.writable.Broadcast()
		c.mu.Unlock()
		if m.filled != nil {
			_ = m.filled.Memory.Close() // nothing uses it any more
		}
	}
}

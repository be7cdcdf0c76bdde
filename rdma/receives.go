package rdma

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

// receives is the part of a context that posts receives, and gives them to their receivers when
// they have completed.
type receives struct {
	receiving.Receives
	core     *core
	messages *messages // nil unless Receive or ReceivePerConnection was called
	arrival  arrival   // the one that is being handled
}

// depth is the most receives at the device, which follows from the pools.
func (r *receives) depth() int { return min(r.Total(), r.core.set.caps.MaxReceives) }

// most is how many receives can complete at a time.
func (r *receives) most() int {
	return r.Total() + r.Each()*r.core.set.MaxConnections
}

// open implements part.
func (r *receives) open() error {
	c, s := r.core, r.core.set
	connections, depth := s.caps.connections(), r.depth()
	if r.Total() > 0 && connections && !s.receivesShared && depth < s.MaxConnections {
		return fmt.Errorf("%w: the device takes %d receives at a time, which is less than Config.MaxConnections, %d; connections of %v on %s have no shared receive queue, so each needs a receive of its own: use larger pools of receives, or more buffers in Receive, or lower Config.MaxConnections",
			ErrRange, depth, s.MaxConnections, s.Transport, c.dev.Name())
	}
	return r.Open(receiving.Config{
		PD: s.PD, Depth: depth, Connections: s.MaxConnections, Shared: connections && s.receivesShared,
		MaxSGE: s.recvSGE, Poller: c.Engine(), Headers: s.Transport == verbs.UD,
	})
}

// work implements part: receives are posted with requests.
func (r *receives) work() int { return 0 }

// busy implements part: it reports whether a receive is to be posted and there is room for it.
func (r *receives) busy() bool { return r.Busy() }

// post posts waiting receives while the receive queues have room.
func (r *receives) post() {
	if err := r.Post(); err != nil {
		c := r.core
		c.control.Fail(fmt.Errorf("rdma: %w: post receives of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
	}
}

// closeShared destroys the shared receive queue. Its error says that the device may still use
// the memory of receives.
func (r *receives) closeShared() error {
	err := r.CloseShared()
	if err == nil {
		return nil
	}
	r.core.control.Log().Warn().Err(err).Msg("failed to close the shared receive queue")
	if errors.Is(err, verbs.ErrNoDevice) {
		return nil
	}
	return lane.Kept("the shared receive queue", err)
}

// close implements part.
func (r *receives) close() error { return r.Close(r.core.kept != nil) }

// Message is a message received through Connections.Receive. It and its bytes are valid until
// the function of Receive returns; then its buffer takes another message.
type Message struct {
	data []byte
	arrival
}

// Bytes is what was sent, in the memory of the receive. For a write with immediate it is
// nil: that data is in the memory that the peer wrote to.
func (m *Message) Bytes() []byte { return m.data }

// messages is the receiver of Receive and ReceivePerConnection: it passes messages to the
// program's function, and posts their receives again.
type messages struct {
	receives *receives
	method   string // that the program has called
	size     int    // of a buffer; zero: none have one
	handle   func(*Message)
	msg      Message // the message that the function has
}

// Receive makes the context receive the messages of all its connections into n buffers of size
// bytes, and pass each to f, on the engine's goroutine, inside Progress. The context owns the
// buffers: one piece of memory, outside the Go heap where the system allows. Start posts them,
// before the first connection is made; each is posted again when f has returned. (With UC, and on
// a device without shared receive queues, each connection has an equal share of them: see
// ReceivePool.) So a message finds no receive only while f is n messages behind; the peer's device
// then repeats it. f may submit tasks to the connection that the message came from. Nothing is
// allocated per message.
//
// A message without bytes of its own, such as a write with immediate, uses no buffer: its
// receive is posted again before any answer of f leaves. So n receives are enough for a peer
// that has at most n such messages unanswered, as with credits. A message with bytes keeps its
// buffer while f runs: there n + 1 are needed.
//
// n is 1 to pe.MaxTasks; at most Capabilities.MaxReceives are at the device at a time.
// size is the length of the largest message; zero serves messages of no bytes, and writes with
// immediate. A longer message fails its connection at both ends, here with ErrLocalLength.
// Receives that are posted when the context stops come back silently.
//
// It is legal in Idle, once for a context, and holds for every Start. Errors match
// pe.ErrBadState, pe.ErrBusy, ErrInvalid, ErrRange and ErrNotSupported.
func (c *parts) Receive(n, size int, f func(*Message)) error {
	m, err := c.newMessages("Receive", "receive messages", n, size, pe.MaxTasks, f)
	if err != nil {
		return err
	}
	c.receives.AddBuffered(n, size, m)
	c.receives.messages = m
	return nil
}

// ReceivePerConnection is Receive, with n receives, and n buffers of size bytes, that belong to
// each connection alone. So a peer that sends faster than f returns waits for its own receives,
// and takes none from others. They are posted before the peer can send. A connection that is
// made allocates its buffers, if size is not zero; they are freed before OnConnection reports
// Closed. While no buffers are needed, receives cost nothing but their entries in the queues of
// the device.
//
// The context has no other receives then: it is an error to call Receive or ReceivePool too.
// n is 1 to the number that a queue pair of the device holds.
// Start fails with ErrRange if a completion queue of the device cannot hold n completions of
// each of Config.MaxConnections connections, and some of tasks.
//
// Everything else is as for Receive: f, the messages, when they are legal, and the errors.
func (c *Connections) ReceivePerConnection(n, size int, f func(*Message)) error {
	const op = "receive messages per connection"
	m, err := c.newMessages("ReceivePerConnection", op, n, size, c.set.caps.MaxSends, f)
	if err != nil {
		return err
	}
	if c.receives.Total() > 0 {
		return fmt.Errorf("rdma: %s of context %q: %w: the context has a pool of receives, which its connections share; use one of the two", op, c.set.Name, ErrInvalid)
	}
	c.receives.SetEach(n, size, m)
	c.receives.messages = m
	return nil
}

// newMessages checks the arguments of Receive and ReceivePerConnection; most is the largest n.
func (c *parts) newMessages(method, op string, n, size, most int, f func(*Message)) (*messages, error) {
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	if err := c.control.Require(op, pe.Idle); err != nil {
		return nil, err
	}
	var err error
	switch {
	case f == nil:
		err = fmt.Errorf("%w: no function is given", ErrInvalid)
	case c.receives.messages != nil:
		err = fmt.Errorf("%w: Receive or ReceivePerConnection was called before; a context has one function for all messages", ErrInvalid)
	case !c.set.caps.Supports(OpReceive):
		err = fmt.Errorf("%w by %s", ErrNotSupported, c.dev.Name())
	case n < 1 || n > most:
		err = fmt.Errorf("%w: %d receives; the number must be 1 to %d", ErrRange, n, most)
	case !receiving.Possible(n, size):
		err = fmt.Errorf("%w: %d buffers of %d bytes are not possible", ErrRange, n, size)
	}
	if err != nil {
		return nil, fmt.Errorf("rdma: %s of context %q: %w", op, c.set.Name, err)
	}
	return &messages{receives: &c.receives, method: method, size: size, handle: f}, nil
}

// arrived implements receiver.
func (m *messages) arrived(t receiving.Taken, a *arrival) {
	if a.opcode == ReceivedWriteImm || a.length == 0 {
		m.repost(t) // now, so that it is posted before an answer goes to the peer
		m.deliver(a, nil)
		return
	}
	defer m.repost(t) // even after a panic
	m.deliver(a, t.Bytes(a.length))
}

// deliver passes a message to the function.
func (m *messages) deliver(a *arrival, data []byte) {
	m.msg = Message{data: data, arrival: *a}
	defer m.clearMessage()
	if profiling.Tracing() {
		m.receives.core.Friends(friend.Package{}).Traced("verbena message callback", func() { m.handle(&m.msg) })
		return
	}
	m.handle(&m.msg)
}

// clearMessage empties the message, since the function may have kept a pointer to it.
func (m *messages) clearMessage() { m.msg = Message{} }

// repost makes the receive wait again. It is posted together with others, before the next request
// or after the present completions have been handled.
func (m *messages) repost(t receiving.Taken) {
	if c := m.receives.core; c.takesReceives() {
		m.receives.Repost(t)
		c.postLater()
	}
}

// failed implements receiver. The connection has the error.
func (m *messages) failed(t receiving.Taken, _ *Connection, _ *TaskError) { m.repost(t) }

// lengthAdvice implements receiver.
func (m *messages) lengthAdvice() string {
	return fmt.Sprintf("the buffers of %s hold %d bytes; call it with the size of the largest message", m.method, m.size)
}

// Flushed implements receiving.Owner.
func (m *messages) Flushed(bool) int { return 0 }

// receiver handles the outcome of a receive: a task, or the function for messages.
type receiver interface {
	receiving.Owner
	// arrived is called when the receive has taken a message.
	arrived(t receiving.Taken, a *arrival)
	// failed is called when the receive has failed. The connection may be nil.
	failed(t receiving.Taken, conn *Connection, err *TaskError)
	// lengthAdvice says what to do about a message that was too long for the receive.
	lengthAdvice() string
}

func receiverOf(t receiving.Taken) receiver { return t.Owner.(receiver) }

// arrivalOf is the arrival of a message.
func (r *receives) arrivalOf(wc *verbs.WC) *arrival {
	a := &r.arrival
	*a = arrival{length: int(wc.Bytes)}
	a.opcode, a.imm = kindOf(wc)
	return a
}

// failedReceive is the error of a receive.
func failedReceive(t receiving.Taken, conn *Connection, wc *verbs.WC) *TaskError {
	err := &TaskError{Op: OpReceive, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}
	if wc.Status == verbs.StatusLocalLengthError {
		err.advice = receiverOf(t).lengthAdvice()
	}
	return err
}

// ReceiveOpcode is the kind of message that a receive took.
type ReceiveOpcode int

// The messages that take a receive.
const (
	ReceivedSend ReceiveOpcode = iota
	ReceivedSendImm
	ReceivedWriteImm // the data went to the memory that the peer wrote to
)

var receiveOpcodes = [...]string{"send", "send with immediate", "write with immediate"}

// String names the message.
func (o ReceiveOpcode) String() string {
	if o >= 0 && int(o) < len(receiveOpcodes) {
		return receiveOpcodes[o]
	}
	return "receive opcode " + strconv.Itoa(int(o))
}

// kindOf returns the kind of a message, and its immediate data, or zero without any.
func kindOf(wc *verbs.WC) (ReceiveOpcode, uint32) {
	switch {
	case wc.Opcode == verbs.WCRecvWriteImm:
		return ReceivedWriteImm, wc.Imm
	case wc.HasImm:
		return ReceivedSendImm, wc.Imm
	}
	return ReceivedSend, 0
}

// arrival is a message that has come, as a ReceiveTask and a Message describe it.
type arrival struct {
	endpoint    *Datagrams   // that the message came to; nil: no message, or by a connection
	conn        *Connection  // that the message came by; nil: no message, or by the endpoint
	addr        EndpointAddr // of the sender, for a message by the endpoint
	lid         uint16       // of the sender, on InfiniBand
	grh         verbs.GRH    // of a UD message
	hasGRH      bool
	length      int // bytes, without the header
	opcode      ReceiveOpcode
	imm         uint32
	invalidated *Window // that it has invalidated
}

// Opcode is the kind of the message.
func (a *arrival) Opcode() ReceiveOpcode { return a.opcode }

// Length is the number of bytes that came: to the buffer or, for a write with immediate,
// to the memory that the peer wrote to.
func (a *arrival) Length() int { return a.length }

// Imm returns the 32 bits of immediate data, and whether the message had any.
func (a *arrival) Imm() (imm uint32, ok bool) { return a.imm, a.opcode != ReceivedSend }

// Invalidated is the window that the message has invalidated (Task.SetInvalidate), or nil.
func (a *arrival) Invalidated() *Window { return a.invalidated }

// Connection is the connection that the message came from. It is nil before a message has
// come, and in a context of datagrams. A reply can be submitted to it at once, even while the
// context is Starting.
func (a *arrival) Connection() *Connection { return a.conn }

// Peer is the endpoint that sent the message; replies can go to it. It is a peer that the
// context knows, or a new one, which the context remembers until thousands of other new peers
// have sent messages. It is nil before a message has come, in a context of connections, and if
// the device did not name the sender.
func (a *arrival) Peer() *Peer {
	if a.endpoint == nil || a.addr.GID == (verbs.GID{}) {
		return nil
	}
	return a.endpoint.learnPeer(a.addr, a.lid)
}

// GRH returns the header that a UD message came with, and whether it had one.
func (a *arrival) GRH() (verbs.GRH, bool) { return a.grh, a.hasGRH }

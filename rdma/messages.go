package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
)

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

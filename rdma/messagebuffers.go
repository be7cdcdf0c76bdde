package rdma

import (
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
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

// messageBufferAlign is the alignment of message buffers: no two share a cache line.
const messageBufferAlign = 64

// messageBuffers is the set of receives of Receive, which are posted again and again.
type messageBuffers struct {
	messageFunction
	all     *receives
	size    int // of a buffer; zero: none have one
	stride  int
	buffers []messageBuffer
	mem     *mmap.Map // of one run; nil without buffers
}

// messageBuffer is one receive of messageBuffers, and its buffer.
type messageBuffer struct {
	set  *messageBuffers
	recv receive
	sge  [2]verbs.SGE // for the header, if it has one, and the buffer
	off  int          // of its buffer
}

// Receive makes the context receive the messages of all its connections into n buffers of size
// bytes, and pass each to f, on the engine's goroutine, inside Progress. The context owns the
// buffers: one piece of memory, outside the Go heap where the system allows. Start posts them,
// before the first connection is made; each is posted again when f has returned. (On a device
// without shared receive queues, each connection has its share of them: see
// Config.Queues.RecvQueueSize.) So a message finds no receive only while f is n messages behind; the
// peer's device then repeats it (Config.Retries.MinRNRTimer). f may submit tasks to the connection
// that the message came from. Nothing is allocated per message.
//
// A message without bytes of its own, such as a write with immediate, uses no buffer: its
// receive is posted again before any answer of f leaves. So n receives are enough for a peer
// that has at most n such messages unanswered, as with credits. A message with bytes keeps its
// buffer while f runs: there n + 1 are needed.
//
// n is 1 to pe.MaxTasks; at most Config.Queues.RecvQueueSize receives are at the device at a time.
// size is the length of the largest message; zero serves messages of no bytes, and writes with
// immediate. A longer message fails its connection at both ends, here with ErrLocalLength.
// Receives that are posted when the context stops come back silently.
//
// It is legal in Idle, once for a context, and holds for every Start. Errors match
// pe.ErrBadState, pe.ErrBusy, ErrInvalid, ErrRange and ErrNotSupported.
func (c *parts) Receive(n, size int, f func(*Message)) error {
	stride, err := c.checkReceive("receive messages", n, size, pe.MaxTasks, f)
	if err != nil {
		return err
	}
	b := &messageBuffers{messageFunction: messageFunction{handle: f}, all: &c.receives, size: size, stride: stride, buffers: make([]messageBuffer, n)}
	for i := range b.buffers {
		s := &b.buffers[i]
		s.set, s.off = b, i*stride
		c.receives.add(&s.recv, s)
	}
	c.receives.messageBuffers = b
	c.receives.total += n
	return nil
}

// checkReceive checks the arguments of Receive and ReceivePerConnection; most is the largest n.
// It returns the distance of the buffers in memory.
func (c *parts) checkReceive(op string, n, size, most int, f func(*Message)) (stride int, err error) {
	if err := c.control.Owned(op); err != nil {
		return 0, err
	}
	if err := c.control.Require(op, pe.Idle); err != nil {
		return 0, err
	}
	stride = (size + messageBufferAlign - 1) &^ (messageBufferAlign - 1)
	switch {
	case f == nil:
		err = fmt.Errorf("%w: no function is given", ErrInvalid)
	case c.receives.messageBuffers != nil || c.receives.each != nil:
		err = fmt.Errorf("%w: Receive or ReceivePerConnection was called before; a context has one function for all messages", ErrInvalid)
	case !c.set.caps.Supports(OpReceive):
		err = fmt.Errorf("%w by %s", ErrNotSupported, c.dev.Name())
	case n < 1 || n > most:
		err = fmt.Errorf("%w: %d receives; the number must be 1 to %d", ErrRange, n, most)
	case size < 0 || size > math.MaxInt32 || stride > 0 && n > math.MaxInt/stride:
		err = fmt.Errorf("%w: %d buffers of %d bytes are not possible", ErrRange, n, size)
	}
	if err != nil {
		return 0, fmt.Errorf("rdma: %s of context %q: %w", op, c.set.Name, err)
	}
	return stride, nil
}

// open allocates the memory, and queues the receives.
func (b *messageBuffers) open() error {
	c := b.all.core
	var key uint32
	if b.size > 0 {
		var err error
		b.mem, err = mmap.New(c.dev, mmap.Config{Size: len(b.buffers) * b.stride, Permissions: mmap.LocalReadWrite, PD: c.set.PD})
		if err != nil {
			return fmt.Errorf("make %d buffers of %d bytes for messages: %w", len(b.buffers), b.size, err)
		}
		if key, err = b.mem.LKey(c.set.PD); err != nil {
			return err
		}
	}
	for i := range b.buffers {
		s := &b.buffers[i]
		s.recv.wr.SGL = b.all.appendHeader(s.sge[:0], &s.recv)
		if b.size > 0 {
			s.recv.wr.SGL = append(s.recv.wr.SGL, verbs.SGE{Addr: b.mem.Addr() + uint64(s.off), Length: uint32(b.size), LKey: key})
		}
		b.all.waiting.Push(&s.recv.place)
	}
	return nil
}

// close releases the memory. No receive is at the device any more.
func (b *messageBuffers) close() error {
	for i := range b.buffers {
		b.all.waiting.Remove(&b.buffers[i].recv.place)
	}
	if b.mem == nil {
		return nil
	}
	err := b.all.core.closeMemory(b.mem)
	b.mem = nil
	return err
}

// arrived implements receiver.
func (s *messageBuffer) arrived(a *arrival) {
	if a.opcode == ReceivedWriteImm || a.length == 0 {
		s.repost() // now, so that it is posted before an answer goes to the peer
		s.set.deliver(a, nil)
		return
	}
	defer s.repost() // even after a panic
	end := s.off + a.length
	s.set.deliver(a, s.set.mem.Bytes()[s.off:end:end])
}

// messageFunction is the program's function for messages.
type messageFunction struct {
	handle func(*Message)
	msg    Message // the message that the function has
}

// deliver passes a message to the function.
func (f *messageFunction) deliver(a *arrival, data []byte) {
	f.msg = Message{data: data, arrival: *a}
	defer f.clearMessage()
	f.handle(&f.msg)
}

// clearMessage empties the message, since the function may have kept a pointer to it.
func (f *messageFunction) clearMessage() { f.msg = Message{} }

// repost queues the receive again. It is posted together with others, before the next request
// or after the present completions have been handled.
func (s *messageBuffer) repost() {
	if all := s.set.all; all.core.takesReceives() {
		all.waiting.Push(&s.recv.place)
		all.core.postLater()
	}
}

// failed implements receiver. The connection has the error.
func (s *messageBuffer) failed(*Connection, *TaskError) { s.repost() }

// lengthAdvice implements receiver.
func (s *messageBuffer) lengthAdvice() string {
	return fmt.Sprintf("the buffers of Receive hold %d bytes; call it with the size of the largest message", s.set.size)
}

// flushed implements receiver.
func (s *messageBuffer) flushed(bool) int { return 0 }

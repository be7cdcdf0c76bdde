package rsocket

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/wire"
)

// transfer is the part of a connection that belongs to the engine's goroutine.
type transfer struct {
	conn      *rdma.Connection // nil: not connected yet
	closing   bool             // conn.Close was called
	base      *mmap.Map        // see baseSize
	key       uint32           // of base, for the peer
	waiter    *pe.Waiter       // for a task; nil: never needed
	lingering host.Timer       // nil: the program has not closed the connection
	underWay  fifo.Queue[message]

	// What this end sends:
	order      binary.ByteOrder        // of entries in the peer's target SGL
	peerSGL    *mmap.Map               // the peer's target SGL
	peerQueue  uint16                  // the peer's receive queue, in data messages
	sent       uint16                  // sequence number of the next data message
	mayReach   uint16                  // the peer has room for data messages up to this sequence number
	targets    fifo.Queue[*peerBuffer] // that have room, in order
	nextTarget int                     // index of the target SGL's entry that the peer writes next
	dataMoving int                     // data messages at the device
	sentLast   bool                    // a shutdown or disconnect message was posted
	sentBye    bool                    // a disconnect message was posted

	// What this end receives:
	arrived    uint16 // sequence number of the next data message
	granted    uint16 // the peer may send up to this sequence number
	grantDue   bool
	sizes      sizes
	nextEntry  int  // index of the peer's target SGL entry that is written next
	sglMoving  bool // an SGL message is at the device
	disconnect bool // the peer's disconnect message has come
}

// message is a message of this end at the device.
type message struct {
	kind   wire.Op
	chunk  *chunk // of a data message
	length int
	target *peerBuffer // that the message has filled up
}

// peerBuffer is a receive buffer of the peer.
type peerBuffer struct {
	memory *mmap.Map
	offset int
	left   int
}

// open allocates the base memory.
func (c *Conn) open() (err error) {
	c.base, c.key, err = c.stack.exposed(baseSize)
	if err != nil {
		return err
	}
	c.granted = receiveQueue
	c.in.add(&buffer{
		data:  c.base.Bytes()[firstOffset:],
		entry: wire.Entry{Addr: c.base.Addr() + firstOffset, Key: c.key, Length: baseSize - firstOffset},
	})
	return nil
}

// exposed allocates memory that the peer may write to.
func (s *Stack) exposed(size int) (m *mmap.Map, key uint32, err error) {
	if m, err = mmap.Alloc(s.cfg.Device, size, mmap.LocalReadWrite|mmap.RemoteWrite); err != nil {
		return nil, 0, err
	}
	if key, err = m.ExportKey(s.rdma.PD()); err != nil {
		return nil, 0, errors.Join(err, m.Close())
	}
	return m, key, nil
}

// hello is the private data of this end.
func (c *Conn) hello() wire.Hello {
	return wire.Hello{
		BigEndian: binary.NativeEndian.Uint16([]byte{0, 1}) == 1,
		Credits:   receiveQueue,
		Target:    wire.Entry{Addr: c.base.Addr() + sglOffset, Key: c.key, Length: wire.Entries},
		Buffer:    c.in.buffers[0].entry,
	}
}

// setPeer takes the private data of the peer.
func (c *Conn) setPeer(h *wire.Hello) (err error) {
	dev := c.stack.cfg.Device
	c.order = binary.ByteOrder(binary.LittleEndian)
	if h.BigEndian {
		c.order = binary.BigEndian
	}
	c.peerQueue, c.mayReach = h.Credits, h.Credits
	c.peerSGL, err = mmap.FromKey(dev, h.Target.Addr, wire.Entries*wire.EntrySize, h.Target.Key, mmap.RemoteWrite)
	if err != nil {
		return fmt.Errorf("%w: target SGL: %w", ErrProtocol, err)
	}
	c.nextTarget = 1
	c.nextEntry = 1
	if h.Buffer.Length == 0 {
		return nil
	}
	return c.addTarget(h.Buffer)
}

// bind joins the two connections. Messages of the peer may come from now on.
func (c *Conn) bind(conn *rdma.Connection) {
	c.conn = conn
	conn.SetUserData(c)
}

// addTarget notes a receive buffer of the peer.
func (c *Conn) addTarget(e wire.Entry) error {
	if err := e.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	m, err := mmap.FromKey(c.stack.cfg.Device, e.Addr, int(e.Length), e.Key, mmap.RemoteWrite)
	if err != nil {
		return fmt.Errorf("%w: receive buffer: %w", ErrProtocol, err)
	}
	c.targets.Push(&peerBuffer{memory: m, left: int(e.Length)})
	return nil
}

// received handles a message of the peer.
func received(m *rdma.Message) {
	c, ok := m.Connection().UserData().(*Conn)
	if !ok {
		return
	}
	if err := c.take(m); err != nil {
		c.stack.protocolErrors.Add(1)
		c.fail(err)
		return
	}
	c.pump()
}

// take checks a message and carries it out. Its errors match ErrProtocol.
func (c *Conn) take(m *rdma.Message) error {
	number, _ := m.Imm()
	imm, length := wire.Imm(number), m.Length()
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: %v: %s", ErrProtocol, imm, fmt.Sprintf(format, args...))
	}
	if m.Opcode() != rdma.ReceivedWriteImm {
		return fmt.Errorf("%w: a %v came; only writes with immediate data are allowed", ErrProtocol, m.Opcode())
	}
	if imm.Op() != wire.Data && imm.Op() != wire.SGL && length != 0 {
		return wrong("it came with %d bytes of data", length)
	}
	switch imm.Op() {
	case wire.Data:
		switch {
		case imm.Value() != length:
			return wrong("%d bytes were written", length)
		case c.readClosed:
			return wrong("it came after the end of the data")
		case c.arrived == c.granted:
			return wrong("it is more than the %d messages that this end has room for", receiveQueue)
		}
		c.arrived++
		c.grantDue = c.grantDue || c.granted-c.arrived <= receiveQueue/2
		return c.fill(length)
	case wire.SGL:
		if reach := imm.Sequence(); reach-c.sent > c.peerQueue {
			return wrong("it allows %d data messages to be under way, more than the peer's receive queue of %d", reach-c.sent, c.peerQueue)
		}
		c.mayReach = imm.Sequence()
		switch length {
		case 0:
			return nil
		case wire.EntrySize:
			return c.takeTarget()
		}
		return wrong("%d bytes were written; an entry has %d", length, wire.EntrySize)
	case wire.Control:
		switch imm.Value() {
		case wire.Keepalive:
			return nil
		case wire.Shutdown, wire.Disconnect:
			c.endOfData(imm.Value() == wire.Disconnect)
			return nil
		}
	case wire.IomapUp:
		return wrong("this end accepts no I/O mappings")
	}
	return wrong("it has no meaning")
}

// fill notes that n bytes have arrived.
func (c *Conn) fill(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.in.filling()
	if len(list) == 0 || n > len(list[0].data)-list[0].filled {
		room := 0
		if len(list) > 0 {
			room = len(list[0].data) - list[0].filled
		}
		return fmt.Errorf("%w: a data message of %d bytes came, but the receive buffer has room for %d", ErrProtocol, n, room)
	}
	b := list[0]
	if b.filled == 0 && n > 0 {
		c.sizes.began(b, c.stack.host.Now())
	}
	b.filled += n
	if c.closed {
		c.discard()
	}
	c.readable.Signal()
	return nil
}

// takeTarget takes the entry that the peer has written to the target SGL.
func (c *Conn) takeTarget() error {
	if c.targets.Len() >= wire.Entries {
		return fmt.Errorf("%w: the peer has announced a third receive buffer while two have room", ErrProtocol)
	}
	e := wire.DecodeEntry(c.base.Bytes()[sglOffset+c.nextTarget*wire.EntrySize:], binary.NativeEndian)
	if e.Length == 0 {
		return fmt.Errorf("%w: the peer has announced a receive buffer of no bytes", ErrProtocol)
	}
	c.nextTarget = (c.nextTarget + 1) % wire.Entries
	return c.addTarget(e)
}

// endOfData notes that the peer sends no more data and, after a disconnect, receives none.
func (c *Conn) endOfData(disconnect bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readClosed = true
	c.peerGone = c.peerGone || disconnect
	c.readable.Broadcast()
	c.writable.Broadcast()
}

// pump does what can be done now: it announces receive buffers, grants credits, sends data and, at
// last, the end of the data.
func (c *Conn) pump() {
	c.scheduled.Store(false)
	if c.conn == nil || c.closing {
		return
	}
	if s := c.conn.State(); s != rdma.Ready && s != rdma.Connecting {
		return
	}
	c.grant()
	c.sendData()
	c.finish()
	c.stack.rdma.Flush()
}

// grant sends an SGL message if credits or a receive buffer are due.
func (c *Conn) grant() {
	if c.sglMoving {
		return
	}
	c.mu.Lock()
	b, err := c.nextBuffer()
	done := c.readClosed
	c.mu.Unlock()
	if err != nil { // the peer waits until there is memory
		c.stack.cfg.Log.Warn().Err(err).Msg("failed to allocate a receive buffer")
	}
	if done || b == nil && !c.grantDue {
		return
	}
	granted := c.arrived + receiveQueue
	m := message{kind: wire.SGL}
	imm := wire.NewImm(wire.SGL, int(granted))
	if b == nil {
		if !c.post(m, nil, nil, imm) {
			return
		}
	} else {
		at := entryOffset + c.nextEntry*wire.EntrySize
		b.entry.Put(c.base.Bytes()[at:], c.order)
		if !c.post(m, bufinv.Source(c.base, at, wire.EntrySize), bufinv.Target(c.peerSGL, c.nextEntry*wire.EntrySize, wire.EntrySize), imm) {
			c.mu.Lock()
			c.in.used = append(c.in.used, b)
			c.mu.Unlock()
			return
		}
		c.nextEntry = (c.nextEntry + 1) % wire.Entries
		c.sizes.last = len(b.data)
		c.mu.Lock()
		c.in.add(b)
		c.mu.Unlock()
	}
	c.sglMoving = true
	c.granted, c.grantDue = granted, false
}

// nextBuffer returns the receive buffer that the peer is to be told of now, or nil: one more is due
// when the peer has begun to fill the last one. c.mu is held.
func (c *Conn) nextBuffer() (*buffer, error) {
	if list := c.in.filling(); c.readClosed || len(list) > 1 || len(list) == 1 && list[0].filled == 0 {
		return nil, nil
	}
	limit := c.stack.cfg.ReceiveBuffer
	size := c.sizes.next(limit / buffersPerConn)
	if c.in.size+size > limit {
		return nil, nil // until the program has read
	}
	used := c.in.used
	c.in.used = nil
	var found *buffer
	for _, b := range used {
		if found == nil && b.memory != nil && len(b.data) == size {
			found = b
			continue
		}
		if err := b.close(); err != nil {
			return nil, err
		}
	}
	if found != nil {
		found.filled, found.read = 0, 0
		return found, nil
	}
	m, key, err := c.stack.exposed(size)
	if err != nil {
		return nil, err
	}
	return &buffer{memory: m, data: m.Bytes(), entry: wire.Entry{Addr: m.Addr(), Key: key, Length: uint32(size)}}, nil
}

// sendData posts data messages while the peer has room for them.
func (c *Conn) sendData() {
	for c.dataMoving < maxDataUnderWay && c.sent != c.mayReach && c.targets.Len() > 0 {
		t := c.targets.Front()
		c.mu.Lock()
		chunk, offset, n := c.out.post(min(t.left, largeChunk))
		c.mu.Unlock()
		if n == 0 {
			return
		}
		m := message{kind: wire.Data, chunk: chunk, length: n}
		if n == t.left {
			m.target = t
		}
		if !c.post(m, bufinv.Source(chunk.memory, chunk.offset+offset, n), bufinv.Target(t.memory, t.offset, n), wire.NewImm(wire.Data, n)) {
			c.mu.Lock()
			c.out.unpost(chunk, n)
			c.mu.Unlock()
			return
		}
		t.offset += n
		if t.left -= n; t.left == 0 {
			c.targets.Pop()
		}
		c.sent++
		c.dataMoving++
	}
}

// finish sends the end of the data when all data was posted, and closes the connection when the
// program has done so and nothing is under way.
func (c *Conn) finish() {
	c.mu.Lock()
	last := c.writeClosed && c.out.unsent == 0
	closed, readClosed, gone := c.closed, c.readClosed, c.peerGone
	c.mu.Unlock()
	switch {
	case !last || gone || c.sentBye:
	case readClosed && !c.sentLast, closed && !readClosed:
		c.sentBye = c.post(message{kind: wire.Control}, nil, nil, wire.NewImm(wire.Control, wire.Disconnect))
		c.sentLast = c.sentLast || c.sentBye
	case !c.sentLast:
		c.sentLast = c.post(message{kind: wire.Control}, nil, nil, wire.NewImm(wire.Control, wire.Shutdown))
	}
	over := last && c.sentLast && (c.sentBye || readClosed) && c.underWay.Len() == 0
	switch {
	case !closed:
	case gone || over || c.stack.cfg.Linger == None:
		c.disconnectNow()
	case c.lingering == nil:
		c.lingering = c.stack.host.AfterFunc(c.stack.cfg.Linger, func() { _ = c.stack.engine.Do(c.disconnectNow) })
	}
}

// disconnectNow closes the connection, whatever has not been sent.
func (c *Conn) disconnectNow() {
	c.closing = true
	_ = c.conn.Close() // it is legal here in every state
}

// post gives a message to the device. If it reports false, the message was not posted: either
// another attempt follows, or the connection has failed.
func (c *Conn) post(m message, src, dst *bufinv.Buf, imm wire.Imm) bool {
	t, err := c.stack.tasks.WriteImm(c.conn, src, dst, uint32(imm))
	if err != nil {
		if c.waiter == nil {
			c.waiter = pe.NewWaiter(c.work)
		}
		if !c.waiter.Wait(err) {
			c.fail(reset(err))
		}
		return false
	}
	t.SetUserData(c)
	if err := t.Submit(pe.Aggregate); err != nil {
		c.fail(reset(errors.Join(err, t.Free())))
		return false
	}
	c.underWay.Push(m)
	return true
}

// sent is called when the peer's device has a message.
func sent(t *rdma.Task) {
	c := t.UserData().(*Conn)
	_ = t.Free() // cannot fail in its callback
	c.completed()
	c.pump()
}

// sendFailed is called for a message that was not sent. The connection has the reason.
func sendFailed(t *rdma.Task, _ error) {
	c := t.UserData().(*Conn)
	_ = t.Free() // cannot fail in its callback
	c.completed()
}

// completed takes back what the oldest message under way has used.
func (c *Conn) completed() {
	m := c.underWay.Pop()
	switch m.kind {
	case wire.SGL:
		c.sglMoving = false
	case wire.Data:
		c.dataMoving--
		c.mu.Lock()
		c.out.acknowledge(m.chunk, m.length)
		c.out.release(c.writing)
		c.writable.Broadcast()
		c.mu.Unlock()
		if m.target != nil {
			_ = m.target.memory.Close() // nothing uses it any more
		}
	}
}

// free releases the memory.
func (t *transfer) free() error {
	list := []error{t.base.Close()}
	if t.peerSGL != nil {
		list = append(list, t.peerSGL.Close())
	}
	for t.targets.Len() > 0 {
		list = append(list, t.targets.Pop().memory.Close())
	}
	return errors.Join(list...)
}

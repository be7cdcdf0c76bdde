package valkey

import (
	"errors"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// outgoing is the command of an opcode.
type outgoing struct {
	sending bool     // the device has it, or its task waits
	next    *command // to be sent then; the latest replaces others
}

// remote is memory of the peer, as it was registered last.
type remote struct {
	memory           *mmap.Map
	reserved, posted int // bytes, as in Conn
}

// pump does what can be done now: it registers the memory that has been read, sends data, and closes the
// connection when the program has done so.
func (c *Conn) pump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn.State() > rdma.Ready {
		return
	}
	if c.registerDue && !c.closed {
		c.registerDue = false
		c.register()
	}
	for size := uint64(c.stack.cfg.SendBuffer); c.posted < c.reserved && (c.writes < maxWrites || c.closed); c.writes++ {
		off, r := c.posted%size, c.remote
		n := int(min(c.reserved-c.posted, size-off))
		t, err := c.stack.tasks.WriteImm(c.conn, bufinv.Source(c.out, int(off), n), bufinv.Target(r.memory, r.posted, n), uint32(n))
		if err = pe.SubmitOrFree(t, err); err != nil {
			c.fail(err)
			return
		}
		c.posted += uint64(n)
		r.posted += n
	}
	if c.closed {
		_ = c.conn.Close() // it is legal here in every state
	}
}

// register tells the peer where to write. c.mu is held.
func (c *Conn) register() {
	c.send(command{opcode: opRegisterXferMemory, addr: c.in.Addr(), length: uint32(c.in.Len()), key: c.key})
}

// send sends a command, when the one of the same opcode has been sent. c.mu is held.
func (c *Conn) send(m command) {
	o := &c.commands[m.opcode]
	if o.sending {
		o.next = &m
		return
	}
	off := c.stack.cfg.SendBuffer + int(m.opcode)*commandSize
	m.encode(c.out.Bytes()[off:])
	t, err := c.stack.tasks.Send(c.conn, bufinv.Source(c.out, off, commandSize))
	if err == nil {
		t.SetUserData(o)
	}
	if err = pe.SubmitOrFree(t, err); err != nil {
		c.fail(err)
	}
	o.sending = err == nil
}

// taskEnded is called when the device is done with a task. err is nil if it has succeeded.
func taskEnded(t *rdma.Task, err error) {
	c := t.Connection().UserData().(*Conn)
	o, isCommand := t.UserData().(*outgoing)
	n := int(t.Imm())
	_ = t.Free() // it cannot fail in its callback
	defer c.pump()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && !errors.Is(err, rdma.ErrFlushed) { // else connectionChanged is told why
		c.fail(err) // the peer may have closed meanwhile
	}
	if isCommand {
		if o.sending = false; o.next != nil && c.conn.State() == rdma.Ready {
			m := *o.next
			o.next = nil
			c.send(m)
		}
		return
	}
	c.writes--
	c.acked += uint64(n)
	c.changed.Broadcast()
}

// connectionChanged is called for each change of a connection's state.
func connectionChanged(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	c, ok := conn.UserData().(*Conn)
	if !ok {
		return // it has no Conn, or the dial no response yet
	}
	switch state {
	case rdma.Ready:
		if l := c.listener; l != nil {
			c.listener = nil
			l.established(c)
		}
	case rdma.Failed:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fail(err)
	case rdma.Closed:
		c.gone(err)
	}
}

// received handles a message of the peer.
func received(m *rdma.Message) {
	if c, ok := m.Connection().UserData().(*Conn); ok { // else it is being closed
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.take(m); err != nil {
			c.fail(err)
		}
	}
}

// take handles a message of the peer. c.mu is held.
func (c *Conn) take(m *rdma.Message) error {
	if c.failure != nil {
		return nil
	}
	switch m.Opcode() {
	case rdma.ReceivedSend:
		command, err := decode(m.Bytes())
		if err == nil {
			err = c.obey(command)
		}
		return err
	case rdma.ReceivedWriteImm:
		// The writes before this one, without immediate data, count, too.
		imm, _ := m.Imm()
		if room := c.in.Len() - c.arrived; imm == 0 || uint64(imm) > uint64(room) || uint64(m.Length()) > uint64(imm) {
			return violation(RuleLength, "it is %d, of a write of %d bytes, with room for %d", imm, m.Length(), room)
		}
		c.arrived += int(imm)
		c.changed.Broadcast()
		return nil
	default:
		return violation(RuleMessage, "a %v came", m.Opcode())
	}
}

// obey handles a command. c.mu is held.
func (c *Conn) obey(m command) error {
	switch m.opcode {
	case opGetServerFeature:
		if c.server {
			c.send(command{opcode: opGetServerFeature, selector: m.selector})
			return nil
		}
		if !c.asked {
			return violation(RuleRole, "the server answered without a question")
		}
		c.asked = false
		c.send(command{opcode: opSetClientFeature, selector: m.selector})
	case opSetClientFeature:
		if !c.server {
			return violation(RuleRole, "the server set features")
		}
		if m.features != 0 {
			return violation(RuleFeatures, "%#x came", m.features)
		}
	case opRegisterXferMemory:
		if r := c.remote; r != nil && r.posted < r.memory.Len() {
			return violation(RuleRegister, "%d of %d bytes were", r.posted, r.memory.Len())
		}
		memory, err := mmap.FromKey(c.stack.cfg.Device, m.addr, int(m.length), m.key, mmap.RemoteWrite)
		if err != nil {
			return violation(RuleMemory, "%w", err)
		}
		c.remote = &remote{memory: memory} // writes to the one before hold that
		c.changed.Broadcast()
	}
	return nil
}

package await

import (
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/rdma"
)

// Message is a message that has been received. It and its data are valid until the
// body of the loop that got it ends; then its buffer receives another message.
type Message struct {
	buf    *bufinv.Buf
	length int
	opcode rdma.ReceiveOpcode
	imm    uint32
	conn   *rdma.Connection
	peer   *rdma.Peer
	err    error // of a receive that failed
}

// Bytes is what was sent, in the memory of the receive. For a write with immediate it
// is nil: that data is in the memory that the peer wrote to.
func (m *Message) Bytes() []byte {
	if m.buf == nil || m.opcode == rdma.ReceivedWriteImm {
		return nil
	}
	return m.buf.Bytes()
}

// Length is the number of bytes that came, also by a write with immediate.
func (m *Message) Length() int { return m.length }

// Opcode says what kind of message came.
func (m *Message) Opcode() rdma.ReceiveOpcode { return m.opcode }

// Imm returns the 32 bits of immediate data, and whether the message had any.
func (m *Message) Imm() (imm uint32, ok bool) { return m.imm, m.opcode != rdma.ReceivedSend }

// Connection is the connection that the message came from. It may be compared
// anywhere; its methods belong to the engine's goroutine.
func (m *Message) Connection() *rdma.Connection { return m.conn }

// Peer is the endpoint that the message came from in a context of datagrams, as
// rdma.ReceiveTask.Peer says; otherwise nil. It may be compared anywhere, and Send may reply
// to it; its methods belong to the engine's goroutine.
func (m *Message) Peer() *rdma.Peer { return m.peer }

// fill copies the results of a receive.
func (m *Message) fill(t *rdma.ReceiveTask) {
	m.length, m.opcode, m.conn, m.peer, m.err = t.Length(), t.Opcode(), t.Connection(), t.Peer(), nil
	m.imm, _ = t.Imm()
}

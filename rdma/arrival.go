package rdma

import (
	"strconv"

	"github.com/verbena-rdma/verbena/verbs"
)

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

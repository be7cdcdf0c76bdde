// Package protocol is the rsockets protocol: its messages, and what one end of a connection may
// send and must refuse (End). It has no device, no memory, no clock and no lock.
package protocol

import (
	"encoding/binary"
	"fmt"
)

// HelloSize is the number of bytes of a Hello.
const HelloSize = 40

// Version is the only version of the protocol.
const Version = 1

// The flags of a Hello.
const (
	flagBigEndian = 1 << 0
	flagIomaps    = 1 << 1
)

// extensionWithdrawals is in the byte of extensions of a Hello.
const extensionWithdrawals = 1 << 0

// Entries is the number of entries of a target SGL.
const Entries = 2

// EntrySize is the number of bytes of an entry of a target SGL.
const EntrySize = 16

// Entry is memory of one end that the other may write to.
type Entry struct {
	Addr   uint64
	Key    uint32
	Length uint32 // in bytes
}

// Hello is the private data of a request for a connection and of its acceptance.
type Hello struct {
	// BigEndian: the sender reads the entries that are written to its target SGL in big-endian
	// byte order.
	BigEndian bool
	// Iomaps: the sender accepts I/O mappings.
	Iomaps bool
	// Withdrawals: the sender answers Withdraw messages. This is an extension of ours, in a byte
	// that rsockets leave zero and ignore.
	Withdrawals bool
	// Credits is how many data messages the sender can receive at first: its receive queue.
	Credits uint16
	// Target is the sender's target SGL. Its Length is the number of entries.
	Target Entry
	// Buffer is the sender's first receive buffer, which stands for entry 0 of its target SGL.
	Buffer Entry
}

// Encode returns the private data.
func (h *Hello) Encode() []byte {
	b := make([]byte, HelloSize)
	b[0] = Version
	if h.BigEndian {
		b[1] |= flagBigEndian
	}
	if h.Iomaps {
		b[1] |= flagIomaps
	}
	if h.Withdrawals {
		b[4] = extensionWithdrawals
	}
	binary.BigEndian.PutUint16(b[2:], h.Credits)
	h.Target.Put(b[8:], binary.BigEndian)
	h.Buffer.Put(b[24:], binary.BigEndian)
	return b
}

// DecodeHello decodes the private data of a peer, which the connection manager pads with zeroes.
// It accepts whatever a sender can work with.
func DecodeHello(b []byte) (h Hello, err error) {
	if len(b) < HelloSize {
		return h, fmt.Errorf("the private data has %d bytes; %d are needed", len(b), HelloSize)
	}
	if b[0] != Version {
		return h, fmt.Errorf("version %d of the protocol; only version %d is known", b[0], Version)
	}
	h = Hello{
		BigEndian:   b[1]&flagBigEndian != 0,
		Iomaps:      b[1]&flagIomaps != 0,
		Withdrawals: b[4]&extensionWithdrawals != 0,
		Credits:     binary.BigEndian.Uint16(b[2:]),
		Target:      DecodeEntry(b[8:], binary.BigEndian),
		Buffer:      DecodeEntry(b[24:], binary.BigEndian),
	}
	switch {
	case h.Credits == 0:
		return h, fmt.Errorf("no credits, so that no data can be sent")
	case h.Target.Length != Entries:
		return h, fmt.Errorf("a target SGL of %d entries; it must have %d", h.Target.Length, Entries)
	case h.Target.Addr > ^uint64(0)-Entries*EntrySize:
		return h, fmt.Errorf("a target SGL at address %#x, behind which there is no room", h.Target.Addr)
	}
	return h, h.Buffer.Check()
}

// Check fails if no memory can be at the address.
func (e Entry) Check() error {
	if e.Addr > ^uint64(0)-uint64(e.Length) {
		return fmt.Errorf("a buffer of %d bytes at address %#x, behind which there is no room", e.Length, e.Addr)
	}
	return nil
}

// Put encodes the entry into the first 16 bytes of b. Entries in private data are in big-endian
// order, those in a target SGL in the order of its owner.
func (e Entry) Put(b []byte, order binary.ByteOrder) {
	order.PutUint64(b, e.Addr)
	order.PutUint32(b[8:], e.Key)
	order.PutUint32(b[12:], e.Length)
}

// DecodeEntry decodes the first 16 bytes of b.
func DecodeEntry(b []byte, order binary.ByteOrder) Entry {
	return Entry{Addr: order.Uint64(b), Key: order.Uint32(b[8:]), Length: order.Uint32(b[12:])}
}

// Op is the operation in the upper three bits of immediate data.
type Op uint8

// The operations. All others are reserved.
const (
	OpData    Op = 0 // the value is the number of bytes written
	OpSGL     Op = 4 // the lower 16 bits of the value are a sequence number: see Imm.Sequence
	OpIomap   Op = 6 // an I/O mapping was written
	OpControl Op = 7 // the value is one of Disconnect, Keepalive, Shutdown, Withdraw, Withdrawn
)

// The values of control messages.
const (
	Disconnect = 0 // the sender neither sends nor receives any more
	Keepalive  = 1
	Shutdown   = 2 // the sender sends no more data

	// Only for peers whose Hello has Withdrawals:
	Withdraw  = 0x5600 // the sender wants the receive buffers back that it has announced
	Withdrawn = 0x5601 // the answer: the sender writes no more to buffers announced before Withdraw
)

const (
	valueBits = 29
	valueMask = 1<<valueBits - 1
)

// Imm is the immediate data of a message.
type Imm uint32

// NewImm makes immediate data. The value must fit into 29 bits.
func NewImm(op Op, value int) Imm { return Imm(uint32(op)<<valueBits | uint32(value)&valueMask) }

// Op is the operation.
func (i Imm) Op() Op { return Op(i >> valueBits) }

// Value is the value that goes with the operation.
func (i Imm) Value() int { return int(i & valueMask) }

// Sequence is the sequence number of an SGL message, up to which the peer may send. Senders
// may leave a carry in the bits above it.
func (i Imm) Sequence() uint16 { return uint16(i) }

// String names the message.
func (i Imm) String() string {
	switch i.Op() {
	case OpData:
		return fmt.Sprintf("data message of %d bytes", i.Value())
	case OpSGL:
		return fmt.Sprintf("SGL message with sequence number %d", i.Sequence())
	case OpIomap:
		return fmt.Sprintf("message for I/O mapping %d", i.Value())
	case OpControl:
		switch i.Value() {
		case Disconnect:
			return "disconnect message"
		case Keepalive:
			return "keepalive message"
		case Shutdown:
			return "shutdown message"
		case Withdraw:
			return "withdraw message"
		case Withdrawn:
			return "withdrawn message"
		}
		return fmt.Sprintf("control message %d", i.Value())
	}
	return fmt.Sprintf("message with the reserved operation %d", i.Op())
}

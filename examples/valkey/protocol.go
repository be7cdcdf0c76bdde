package valkey

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Commands are messages of 32 bytes, in big-endian order.
const (
	commandSize          = 32
	opGetServerFeature   = 0 // a client asks, and the server answers with the same command
	opSetClientFeature   = 1
	opKeepalive          = 2 // says nothing
	opRegisterXferMemory = 3
	opcodes              = 4
)

// command is a decoded command. The fields are those that its opcode has.
type command struct {
	opcode   uint16
	selector uint16 // GetServerFeature, SetClientFeature
	features uint64 // the same two; none is defined yet
	addr     uint64 // RegisterXferMemory, and the next two
	length   uint32
	key      uint32
}

func (m command) encode(b []byte) {
	clear(b[:commandSize])
	binary.BigEndian.PutUint16(b, m.opcode)
	binary.BigEndian.PutUint16(b[2:], m.selector)
	binary.BigEndian.PutUint64(b[16:], m.addr)
	binary.BigEndian.PutUint64(b[24:], m.features|uint64(m.length)<<32|uint64(m.key))
}

func decode(b []byte) (m command, err error) {
	if len(b) != commandSize {
		return m, violation(RuleCommandSize, "one of %d bytes came", len(b))
	}
	m.opcode = binary.BigEndian.Uint16(b)
	switch m.opcode {
	case opGetServerFeature, opSetClientFeature:
		m.selector, m.features = binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint64(b[24:])
	case opKeepalive:
	case opRegisterXferMemory:
		m.addr, m.length, m.key = binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:]), binary.BigEndian.Uint32(b[28:])
		if m.length == 0 || m.addr == 0 || m.addr+uint64(m.length) < m.addr {
			return m, violation(RuleMemory, "%d bytes at %#x were registered", m.length, m.addr)
		}
	default:
		return m, violation(RuleOpcode, "opcode %d came", m.opcode)
	}
	return m, nil
}

// Rule is a rule of the protocol, in words. It is an error: errors.AsType[Rule] finds the one that a peer has
// broken.
type Rule string

// The rules.
const (
	RuleCommandSize Rule = "a command has 32 bytes"
	RuleMessage     Rule = "messages are commands, sent without immediate data, and writes with immediate data"
	RuleOpcode      Rule = "a command is GetServerFeature, SetClientFeature, Keepalive or RegisterXferMemory"
	RuleRole        Rule = "a client asks for features and sets them, and a server answers once for each question"
	RuleFeatures    Rule = "a client sets only features that the server has offered"
	RuleMemory      Rule = "registered memory has an address and at least one byte"
	RuleRegister    Rule = "memory is registered at first, and again when it is full"
	RuleKey         Rule = "registered memory can be written with its key"
	RuleLength      Rule = "the immediate data is how many bytes were written: at least one, and no more than there is room for"
	RuleAccess      Rule = "a peer only writes, and only to the memory that is registered for it"
)

// Error is the rule in words.
func (r Rule) Error() string { return string(r) }

// ErrProtocol is matched by the errors of connections whose peers have broken a rule.
var ErrProtocol = errors.New("protocol violated by the peer")

// violation is the error for a peer that has broken a rule, and says what came instead.
func violation(r Rule, format string, args ...any) error {
	return fmt.Errorf("%w: %w, but %w", ErrProtocol, r, fmt.Errorf(format, args...))
}

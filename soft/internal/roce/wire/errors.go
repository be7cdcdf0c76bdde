package wire

import (
	"errors"
	"fmt"
)

// Errors of [Packet.Parse]. ErrMalformed matches all of them. They are made in
// advance, so that a flood of bad datagrams costs no memory; a caller that logs
// one adds the datagram's length and source.
var (
	ErrMalformed = errors.New("wire: malformed RoCEv2 packet")

	ErrTruncated = fmt.Errorf("%w: the datagram is shorter than the headers of its opcode and the ICRC", ErrMalformed)
	ErrTooLong   = fmt.Errorf("%w: the payload is longer than the largest path MTU, 4096 bytes", ErrMalformed)
	ErrUnaligned = fmt.Errorf("%w: the datagram's length is not a multiple of 4 bytes", ErrMalformed)
	ErrOpcode    = fmt.Errorf("%w: unknown opcode", ErrMalformed)
	ErrVersion   = fmt.Errorf("%w: the version of the base transport header is not 0", ErrMalformed)
	ErrPad       = fmt.Errorf("%w: the padding is longer than the bytes after the headers", ErrMalformed)
	ErrSRD       = fmt.Errorf("%w: SRD packet with reserved bits set, data outside its message, or an invalid MTU", ErrMalformed)
	ErrPayload   = fmt.Errorf("%w: payload or padding with an opcode that has none", ErrMalformed)
)

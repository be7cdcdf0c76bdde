// Package perftest speaks the protocol of perftest's programs over TCP, so that one end of a
// test may be one of them: ib_write_bw, ib_read_lat and the others, with version 6.06 of the
// protocol (perftest 4.5). It was written from recordings of these programs:
//
//   - The client first, then the server, sends each of: "6.06" in 16 bytes; the numbers 4096 and 64
//     in 4 bytes each; the digit of the path MTU, 1 to 5, and a zero byte; the [Keys].
//   - The ends repeat the Keys until each has sent them three times (write_bw, read_bw, atomic_bw)
//     or four times.
//   - After the test, each end sends the Keys once more. In the tests that send them three times,
//     five values of 8 bytes, which are the client's result, and the Keys again follow. The last
//     message is "done". write_lat ends without any of these.
//   - In write_lat the server writes first. In send_lat the client sends first.
package perftest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrProtocol: the received data is not what a program of perftest sends.
var ErrProtocol = errors.New("the message is not of perftest's protocol")

// Keys describes an end's queue pair and its memory.
type Keys struct {
	LID   uint16 // on InfiniBand
	Reads uint16 // the most reads and atomics in flight
	QPN   uint32 // 24 bits
	PSN   uint32 // 24 bits, of its first packet
	RKey  uint32
	Addr  uint64 // of the memory that the peer works on
	GID   [16]byte
	SRQN  uint32
}

// KeysLen is the length of Keys: a line of text and a zero byte.
const KeysLen = 108

// Append appends the text of the keys.
func (k *Keys) Append(b []byte) []byte {
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x", k.LID, k.Reads, k.QPN, k.PSN, k.RKey, k.Addr)
	for _, g := range k.GID {
		b = fmt.Appendf(b, ":%02x", g)
	}
	return append(fmt.Appendf(b, ":%08x:", k.SRQN), 0)
}

// ParseKeys parses the text of keys.
func ParseKeys(b []byte) (*Keys, error) {
	text, ok := strings.CutSuffix(string(b), ":\x00")
	if len(b) != KeysLen || !ok {
		return nil, fmt.Errorf("%w: %q is not a line with a queue pair and a key", ErrProtocol, b[:min(len(b), KeysLen)])
	}
	var k Keys
	at := 0
	number := func(digits, bits int) uint64 {
		if at > 0 && at <= len(text) && text[at-1] != ':' {
			ok = false
		}
		end := min(at+digits, len(text))
		v, err := strconv.ParseUint(text[min(at, end):end], 16, bits)
		ok = ok && err == nil && end-at == digits && strings.ToLower(text[at:end]) == text[at:end]
		at += digits + 1
		return v
	}
	k.LID, k.Reads = uint16(number(4, 16)), uint16(number(4, 16))
	k.QPN, k.PSN = uint32(number(6, 24)), uint32(number(6, 24))
	k.RKey, k.Addr = uint32(number(8, 32)), number(16, 64)
	for i := range k.GID {
		k.GID[i] = byte(number(2, 8))
	}
	k.SRQN = uint32(number(8, 32))
	if !ok {
		return nil, fmt.Errorf("%w: %q is not a line with a queue pair and a key", ErrProtocol, text)
	}
	return &k, nil
}

package ping

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The two ends speak the protocol of rping(1), so either may be rping. In each round the client
// advertises memory; the server reads it, and answers. The client then advertises other
// memory; the server writes the same data there, and answers again. Every message has 16
// bytes. A message of the client holds an address, a key and a length, in network byte order.
// A message of the server means "go on", whatever its content.
const (
	messageLen = 16
	// smallest and largest bound the bytes of memory that rping accepts.
	smallest, largest = 26, 65535
	// DefaultPort is rping's.
	DefaultPort = 7174
)

var errMessage = errors.New("the peer's message is invalid")

// memory is what a message advertises.
type memory struct {
	addr   uint64
	rkey   uint32
	length uint32
}

func (m *memory) put(b []byte) {
	binary.BigEndian.PutUint64(b, m.addr)
	binary.BigEndian.PutUint32(b[8:], m.rkey)
	binary.BigEndian.PutUint32(b[12:], m.length)
}

// parse reads an advertisement.
func parse(b []byte) (m memory, err error) {
	if len(b) != messageLen {
		return m, fmt.Errorf("%w: it has %d bytes, want %d", errMessage, len(b), messageLen)
	}
	m = memory{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
	if m.length == 0 || m.length > largest {
		return m, fmt.Errorf("%w: it advertises %d bytes, want 1 to %d", errMessage, m.length, largest)
	}
	return m, nil
}

// fill makes the data of a round: a line of text, cut or extended to the size.
func fill(b []byte, round int) {
	copy(b, fmt.Sprintf("verbena-ping-%d: ", round))
	for i := len(fmt.Sprintf("verbena-ping-%d: ", round)); i < len(b); i++ {
		b[i] = byte('A' + (round+i)%58)
	}
	b[len(b)-1] = 0
}

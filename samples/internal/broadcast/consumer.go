package broadcast

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// Check verifies a stream that comes chunk by chunk.
type Check struct {
	Stream
	Taken   uint32 // chunks so far
	arrived uint32
	hash    hash.Hash
}

// Decode reads what Encode has returned.
func Decode(data []byte) (*Check, error) {
	if len(data) != 4+sha256.Size {
		return nil, fmt.Errorf("the server gives %d bytes of data, not a length and a SHA-256 of %d", len(data), 4+sha256.Size)
	}
	s := Stream{binary.LittleEndian.Uint32(data), [sha256.Size]byte(data[4:])}
	return &Check{Stream: s, hash: sha256.New()}, nil
}

// Arrive takes the message for a chunk, which has to be the next one.
func (c *Check) Arrive(m *rdma.Message) error {
	n, _ := m.Imm()
	if m.Opcode() != rdma.ReceivedWriteImm || m.Length() != ChunkSize || n != c.arrived || n >= c.Chunks {
		return fmt.Errorf("chunk %d should come, %d has, with %d bytes by %v", c.arrived, n, m.Length(), m.Opcode())
	}
	c.arrived++
	return nil
}

// Take takes the next chunk from its slot of the ring. The last one fails unless the stream
// has the right hash.
func (c *Check) Take(ring []byte) error {
	c.hash.Write(ring[c.Taken%Slots*ChunkSize:][:ChunkSize])
	c.Taken++
	if c.Taken == c.Chunks && [sha256.Size]byte(c.hash.Sum(nil)) != c.Sum {
		return errors.New("the stream has another SHA-256 than that of the server")
	}
	return nil
}

// Credits tells the server how many chunks the consumer has taken. One credit is under way at a
// time; what is taken meanwhile goes with the next.
type Credits struct {
	rdma  *rdma.Connections
	conn  *rdma.Connection
	tasks *rdma.Pool
	sent  uint32
	taken uint32
	last  uint32
}

// NewCredits makes the credits of a context. When the server's device has the last one, the
// context stops.
func NewCredits(r *rdma.Connections) (c *Credits, err error) {
	c = &Credits{rdma: r}
	c.tasks, err = r.Pool(1, func(t *rdma.Task) {
		last := t.Imm() == c.last
		_ = t.Free()
		c.send()
		if last {
			r.Stop()
		}
	}, pe.FailContext)
	return c, err
}

// Begin sets the connection, and the last credit.
func (c *Credits) Begin(conn *rdma.Connection, last uint32) { c.conn, c.last = conn, last }

// Give says that so many chunks have been taken, so that the server may write as many more.
func (c *Credits) Give(taken uint32) {
	c.taken = taken
	c.send()
}

func (c *Credits) send() {
	if c.sent == c.taken || c.tasks.Available() == 0 || c.rdma.State() != pe.Running {
		return
	}
	c.sent = c.taken
	task, err := c.tasks.SendImm(c.conn, nil, c.sent)
	c.rdma.Fail(pe.SubmitNew(task, err))
}

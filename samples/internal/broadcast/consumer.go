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

// Check verifies a stream that arrives chunk by chunk.
type Check struct {
	Stream
	Taken     uint32 // chunks so far
	chunkSize int
	arrived   uint32
	hash      hash.Hash
}

// Decode reads a description that Encode has made.
func Decode(data []byte, chunkSize int) (*Check, error) {
	if len(data) != 4+sha256.Size {
		return nil, fmt.Errorf("the server sent %d bytes of data, want %d: a length and a SHA-256", len(data), 4+sha256.Size)
	}
	s := Stream{binary.LittleEndian.Uint32(data), [sha256.Size]byte(data[4:])}
	return &Check{Stream: s, chunkSize: chunkSize, hash: sha256.New()}, nil
}

// Arrive handles the message for a chunk, which has to be the next one.
func (c *Check) Arrive(m *rdma.Message) error {
	n, _ := m.Imm()
	if m.Opcode() != rdma.ReceivedWriteImm || m.Length() != c.chunkSize || n != c.arrived || n >= c.Chunks {
		return fmt.Errorf("expected chunk %d, got chunk %d with %d bytes by %v", c.arrived, n, m.Length(), m.Opcode())
	}
	c.arrived++
	return nil
}

// Take consumes the next chunk from its slot of the ring. For the last chunk, it fails if the
// hash of the stream is wrong.
func (c *Check) Take(ring []byte) error {
	c.hash.Write(ring[int(c.Taken%Slots)*c.chunkSize:][:c.chunkSize])
	c.Taken++
	if c.Taken == c.Chunks && [sha256.Size]byte(c.hash.Sum(nil)) != c.Sum {
		return errors.New("the SHA-256 of the received stream differs from the one that the server sent")
	}
	return nil
}

// Credits tells the server how many chunks the consumer has taken. One credit is in flight at
// a time. Chunks taken meanwhile are reported by the next one.
type Credits struct {
	rdma  *rdma.Connections
	conn  *rdma.Connection
	tasks *rdma.Pool
	sent  uint32
	taken uint32
	last  uint32
}

// NewCredits makes the credits of a context. The context stops when the last credit is
// acknowledged.
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

// Begin sets the connection, and the number of chunks that the last credit reports.
func (c *Credits) Begin(conn *rdma.Connection, last uint32) { c.conn, c.last = conn, last }

// Give reports the number of chunks taken, so that the server may write as many more.
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
	c.rdma.Fail(pe.SubmitOrFree(task, err))
}

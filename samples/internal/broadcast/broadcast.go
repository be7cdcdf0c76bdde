// Package broadcast has what broadcast_server and broadcast_consumer share: the size of the
// ring, and what the server tells a consumer of the stream.
package broadcast

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
)

const (
	// ChunkSize is the length of a chunk, in bytes, and of a slot.
	ChunkSize = 1 << 20
	// Slots is how many chunks a consumer's ring has room for.
	Slots = 8
)

// Stream describes a stream.
type Stream struct {
	Chunks uint32
	Sum    [sha256.Size]byte
}

// Make fills memory with a stream.
func Make(memory []byte) Stream {
	_, _ = rand.NewChaCha8([32]byte{}).Read(memory)
	return Stream{uint32(len(memory) / ChunkSize), sha256.Sum256(memory)}
}

// Encode returns what the server gives to a consumer.
func (s Stream) Encode() []byte {
	return append(binary.LittleEndian.AppendUint32(nil, s.Chunks), s.Sum[:]...)
}

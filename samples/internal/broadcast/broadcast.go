// Package broadcast is shared by broadcast_server and broadcast_consumer: the size of the
// ring, and the server's description of the stream.
package broadcast

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
)

const (
	// ChunkSize is the length of a chunk and of a slot, in bytes, in both programs.
	ChunkSize = 1 << 20
	// Slots is the number of chunks that a consumer's ring has room for.
	Slots = 8
)

// Stream describes a stream.
type Stream struct {
	Chunks uint32
	Sum    [sha256.Size]byte
}

// Make fills memory with the data of a stream, always the same, and describes it.
func Make(memory []byte, chunkSize int) Stream {
	_, _ = rand.NewChaCha8([32]byte{}).Read(memory)
	return Stream{uint32(len(memory) / chunkSize), sha256.Sum256(memory)}
}

// Encode returns the description that the server sends to a consumer.
func (s Stream) Encode() []byte {
	return append(binary.LittleEndian.AppendUint32(nil, s.Chunks), s.Sum[:]...)
}

package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/verbena-rdma/verbena/internal/pattern"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stream is the data of one connection, piece by piece. It depends on the size and the
// connection.
type stream struct {
	key   uint64
	moved int    // bytes so far
	sum   uint32 // their CRC-32C
}

func newStream(size, connection int) *stream { return &stream{key: pattern.Key(size, connection)} }

// fill puts the next bytes into b, and counts them as moved.
func (s *stream) fill(b []byte) {
	pattern.Fill(b, s.key, s.moved)
	s.add(b)
}

// check checks that b has the next bytes, and counts them as moved.
func (s *stream) check(b []byte) error {
	err := pattern.Check(b, s.key, s.moved)
	s.add(b)
	return err
}

func (s *stream) add(b []byte) {
	s.moved += len(b)
	s.sum = crc32.Update(s.sum, castagnoli, b)
}

// String describes the data moved so far.
func (s *stream) String() string {
	return fmt.Sprintf("a pattern (%d bytes, CRC-32C %08x)", s.moved, s.sum)
}

// newStreams returns the data of all connections.
func (e *end) newStreams() []*stream {
	list := make([]*stream, e.connections)
	for i := range list {
		list[i] = newStream(e.size, i)
	}
	return list
}

// word describes a value that was moved.
func word(v uint64) string {
	return fmt.Sprintf("%d (8 bytes, CRC-32C %08x)", v, crc32.Checksum(binary.BigEndian.AppendUint64(nil, v), castagnoli))
}

package sample

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"unicode/utf8"
)

// Room is the size of the memory for a received text, in bytes.
const Room = 4096

// Payload returns the text that the program sends or writes.
func (s *Session) Payload() []byte { return []byte(s.text) }

// Show checks the text at the beginning of mem and prints it. It is the first value of the
// format.
func (s *Session) Show(mem []byte, format string, more ...any) error {
	text, err := verify(mem)
	if err == nil {
		s.Print(format, append([]any{Describe(text)}, more...)...)
	}
	return err
}

// verify returns the text at the beginning of mem, up to the first zero byte.
func verify(mem []byte) ([]byte, error) {
	text := mem
	if i := bytes.IndexByte(mem, 0); i >= 0 {
		text = mem[:i]
	}
	switch {
	case len(text) == 0:
		return nil, errors.New("no data has arrived")
	case !utf8.Valid(text):
		return nil, fmt.Errorf("the data is wrong: its %d bytes are not valid text", len(text))
	}
	return text, nil
}

// Describe describes the text in one line, with its length and its checksum.
func Describe(text []byte) string {
	return fmt.Sprintf("%q (%d bytes, CRC-32C %08x)", text, len(text), checksum(text))
}

// Word describes a 64-bit value.
func Word(v uint64) string {
	return fmt.Sprintf("%d (8 bytes, CRC-32C %08x)", v, checksum(binary.BigEndian.AppendUint64(nil, v)))
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

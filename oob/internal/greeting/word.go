package greeting

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-rdma/verbena/descriptor"
)

// Words is the room for words at the beginning of a landing, in bytes: the first says what
// has landed behind it, the second that the requester has taken the responder's offer.
const Words = 64

// The offsets of the words.
const (
	AnswerWord    = 0
	ConfirmedWord = 8
	// WordSize is the length of one, in bytes.
	WordSize = 8
)

// WordKind says what has landed. Zero: nothing yet.
type WordKind uint8

// What can have landed.
const (
	Complete  WordKind = 1 + iota // a bundle
	Refused                       // text: the reason for which this end is refused
	Names                         // a bundle with nothing but names: of another program
	Confirmed                     // nothing; the responder's bundle was taken
)

// Word is the value of a word.
type Word struct {
	Kind   WordKind
	Length uint32 // of what has landed, in bytes
}

var wordMagic = [3]byte{'V', 'B', 'N'}

// Encode writes the word to b.
func (w Word) Encode(b []byte) {
	b[0] = byte(w.Kind)
	copy(b[1:4], wordMagic[:])
	binary.BigEndian.PutUint32(b[4:8], w.Length)
}

// ReadWord takes a word apart, whose zero value is nothing yet.
func ReadWord(b [WordSize]byte) (Word, error) {
	if b == [WordSize]byte{} {
		return Word{}, nil
	}
	w := Word{Kind: WordKind(b[0]), Length: binary.BigEndian.Uint32(b[4:])}
	if [3]byte(b[1:4]) != wordMagic || w.Kind < Complete || w.Kind > Confirmed || (w.Kind == Confirmed) != (w.Length == 0) {
		return Word{}, fmt.Errorf("%w: the word %x makes no sense", descriptor.ErrFormat, b[:])
	}
	return w, nil
}

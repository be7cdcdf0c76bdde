package admission

import (
	"crypto/sha256"
	"encoding/binary"
)

// Numbers allocates queue pair numbers. A program cannot predict the numbers of others from
// its own: they are a secret permutation of a counter, so that no number repeats before all
// others were used. The permutation is a Feistel network of ten rounds over 20 bits.
type Numbers struct {
	secret [32]byte
	next   uint32
}

// NumberLowBits is how many low bits of a number are left to the caller.
const NumberLowBits = 4

const (
	numberBits      = 24 - NumberLowBits
	halfBits        = numberBits / 2
	halfMask        = 1<<halfBits - 1
	numberingRounds = 10
)

func newNumbers(random func() uint32) (n Numbers) {
	for i := 0; i < len(n.secret); i += 4 {
		binary.NativeEndian.PutUint32(n.secret[i:], random())
	}
	return n
}

// Next returns the next number. Its low NumberLowBits bits are zero.
func (n *Numbers) Next() uint32 {
	counter := n.next
	n.next = (n.next + 1) & (1<<numberBits - 1)
	left, right := counter>>halfBits, counter&halfMask
	for round := range numberingRounds {
		left, right = right, left^n.round(round, right)
	}
	return (left<<halfBits | right) << NumberLowBits
}

func (n *Numbers) round(round int, half uint32) uint32 {
	var block [38]byte
	copy(block[:], n.secret[:])
	binary.BigEndian.PutUint16(block[32:], uint16(round))
	binary.BigEndian.PutUint32(block[34:], half)
	sum := sha256.Sum256(block[:])
	return binary.BigEndian.Uint32(sum[:]) & halfMask
}

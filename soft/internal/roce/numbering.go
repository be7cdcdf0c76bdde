package roce

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
)

// numbering gives out the numbers of queue pairs. One's own do not tell a neighbour those of
// others: they are a secret permutation of a counter, so that none comes again before all
// others have. It is a Feistel network of ten rounds over 20 bits; the shard takes the
// other four.
type numbering struct {
	secret [32]byte
	next   uint32
}

const (
	numberBits      = 20 // 24 of a queue pair number, less those of the shard
	halfBits        = numberBits / 2
	halfMask        = 1<<halfBits - 1
	numberingRounds = 10
)

func newNumbering() (n numbering) {
	_, _ = rand.Read(n.secret[:]) // never fails: crypto/rand ends the program instead
	return n
}

// take returns the next number, whose last shardBits are zero.
func (n *numbering) take() uint32 {
	counter := n.next
	n.next = (n.next + 1) & (1<<numberBits - 1)
	left, right := counter>>halfBits, counter&halfMask
	for round := range numberingRounds {
		left, right = right, left^n.round(round, right)
	}
	return (left<<halfBits | right) * maxShards
}

func (n *numbering) round(round int, half uint32) uint32 {
	var block [38]byte
	copy(block[:], n.secret[:])
	binary.BigEndian.PutUint16(block[32:], uint16(round))
	binary.BigEndian.PutUint32(block[34:], half)
	sum := sha256.Sum256(block[:])
	return binary.BigEndian.Uint32(sum[:]) & halfMask
}

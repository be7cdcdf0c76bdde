package srd

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

const (
	// epochTime is how long the token for a peer stays the same.
	epochTime = 20 * time.Second
	// validEpochs is how many epochs a token is accepted in. A peer is told once more that
	// the token that it knows is the right one while it has another epoch to live.
	validEpochs = 3
	// idleTime is how long a context is kept that nothing happens to. In that time all
	// tokens change, so that a context never has one of its predecessor's, whose sequence
	// numbers a late packet may have.
	idleTime = validEpochs * epochTime
	// trustTime is how long after the last packet of a peer its token is believed. With
	// the patience that a request has it is shorter than an epoch: a request must not meet
	// a peer that has forgotten this end, or the token.
	trustTime = 15 * time.Second
)

// token is the one that a peer is given in an epoch. It is never 0.
func (t *Transport) token(a Address, epoch uint64) uint32 {
	var b [32 + 4 + 16 + 2 + 8]byte
	n := copy(b[:], t.cfg.Secret[:])
	binary.BigEndian.PutUint32(b[n:], uint32(a.Local))
	ip := a.Peer.Addr().As16()
	copy(b[n+4:], ip[:])
	binary.BigEndian.PutUint16(b[n+20:], a.Peer.Port())
	binary.BigEndian.PutUint64(b[n+22:], epoch)
	sum := sha256.Sum256(b[:])
	return max(binary.BigEndian.Uint32(sum[:]), 1)
}

func epoch(now time.Duration) uint64 { return uint64(now/epochTime) + 1 }

// issued reports whether a token is that of an epoch or of one of those before, n in all.
func (t *Transport) issued(a Address, token uint32, last uint64, n int) bool {
	if token == 0 {
		return false
	}
	for i := range min(uint64(n), last) {
		if token == t.token(a, last-i) {
			return true
		}
	}
	return false
}

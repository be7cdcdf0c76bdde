package srd

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

const (
	// epochTime is how long a peer's token stays the same.
	epochTime = 20 * time.Second
	// validEpochs is the number of epochs in which a token is accepted. A reply confirms a
	// token that the peer knows only if it stays valid for at least one more epoch.
	validEpochs = 3
	// idleTime is how long an idle context is kept. All tokens change in that time, so a new
	// context never has a token of its predecessor: late packets with that token have other
	// sequence numbers.
	idleTime = validEpochs * epochTime
	// trustTime is how long after a peer's last packet its token is trusted. trustTime plus
	// peerDeadTimeout is less than an epoch, so that no request meets a peer that has forgotten this
	// end, or the token.
	trustTime = 15 * time.Second
)

// token returns the token of a peer in an epoch. It is never 0.
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

// issued reports whether a token is that of epoch last, or of one of the n-1 epochs before.
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

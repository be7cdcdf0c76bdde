package srd

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

const (
	// epochTime is how long the token for a peer stays the same. The one before is
	// accepted too.
	epochTime = 30 * time.Second
	// idleTime is how long a context is kept that nothing happens to. In that time the
	// token changes twice, so that a context never has that of its predecessor, whose
	// sequence numbers a late packet may have.
	idleTime = 2 * epochTime
	// trustTime is how long after the last packet of a peer its token is believed. It is
	// shorter than idleTime: a request must not meet a peer that has forgotten this end.
	trustTime = 20 * time.Second
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

// valid reports whether the token is one that the peer was given lately.
func (t *Transport) valid(a Address, token uint32, now time.Duration) bool {
	e := epoch(now)
	return token != 0 && (token == t.token(a, e) || token == t.token(a, e-1))
}

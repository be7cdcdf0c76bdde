package oob

import "time"

// SetOutcomeTimeout sets how long a peer that has closed its connection has to report.
func (p *Peer) SetOutcomeTimeout(d time.Duration) { p.outcomeTimeout = d }

// SetGuestTimeout sets how long a requester by connection manager may take to introduce
// itself.
func SetGuestTimeout(d time.Duration) (reset func()) {
	was := guestTimeout
	guestTimeout = d
	return func() { guestTimeout = was }
}

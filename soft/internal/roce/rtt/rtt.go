// Package rtt estimates the time to a peer and back, as RFC 6298 does.
package rtt

import "time"

// Estimate is the estimated round trip. The caller samples only responses to messages that
// were sent once (Karn's rule). The zero value has no sample.
type Estimate struct {
	Smoothed  time.Duration // SRTT; zero: no sample yet
	Variation time.Duration // RTTVAR
}

// Measured reports whether there was a sample.
func (e *Estimate) Measured() bool { return e.Smoothed > 0 }

// Sample adds a round trip.
func (e *Estimate) Sample(t time.Duration) {
	t = max(t, 1)
	if !e.Measured() {
		e.Smoothed, e.Variation = t, t/2
		return
	}
	e.Variation += (max(t-e.Smoothed, e.Smoothed-t) - e.Variation) / 4
	e.Smoothed = max(e.Smoothed+(t-e.Smoothed)/8, 1)
}

// Timeout returns how long to wait for a response: initial before the first sample, and
// afterwards at least granularity more than the mean round trip.
func (e *Estimate) Timeout(initial, granularity time.Duration) time.Duration {
	if !e.Measured() {
		return initial
	}
	return e.Smoothed + max(granularity, 4*e.Variation)
}

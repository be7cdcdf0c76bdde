package oob

import "time"

// SetOutcomeTimeout sets how long a peer that has closed its connection has to report.
func (p *Peer) SetOutcomeTimeout(d time.Duration) { p.outcomeTimeout = d }

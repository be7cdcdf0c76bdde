package srd

// Counters counts what is refused, and what is done more than once.
type Counters struct {
	Contexts    uint64 // that there are now
	NoRoom      uint64 // peers that were not taken in, since there are too many
	Unverified  uint64 // requests without this device's token for their sender
	Stale       uint64 // packets with another token of their sender than the present one
	WrongSource uint64 // packets with the right tokens, from another port than the sender's
	Unexpected  uint64 // answers to nothing that was asked
	Duplicates  uint64 // requests that had been executed
	OutOfWindow uint64 // requests too far ahead
	TurnedAway  uint64 // requests of peers that are not known, for no queue pair
	Refused     uint64 // requests answered by a NAK
	QKey        uint64 // of those, for their Q_Key
	Access      uint64 // of those, for key, domain, bounds or rights
	NotReady    uint64 // of those, for want of a receive
	// AccessesLimited are requests dropped since the peer's host tries keys.
	AccessesLimited uint64
	ReadsDropped    uint64 // reads dropped since too many wait to be answered
	Held            uint64 // packets that left later than their turn
	Repeated        uint64 // packets sent again
	Restarts        uint64 // peers found to have been restarted
	Timeouts        uint64 // peers given up since they do not answer
	NaksReceived    uint64
	NotReadyNaks    uint64 // of those, since the peer had no receive
	RNRExceeded     uint64 // requests that failed for that
	Sends           uint64 // sends that were acknowledged
	Receives        uint64
}

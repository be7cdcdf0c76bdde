package srd

// Counters counts refused and repeated packets, and other events.
type Counters struct {
	Contexts    uint64 // open now
	NoRoom      uint64 // peers refused because there are too many
	Unverified  uint64 // requests without this device's token for their sender
	Stale       uint64 // packets with a token that is not the sender's present one
	WrongSource uint64 // packets with the right tokens, from another port than the sender's
	Unexpected  uint64 // answers that were not awaited
	Duplicates  uint64 // requests that had been executed
	OutOfWindow uint64 // requests too far ahead
	UnknownQP   uint64 // requests of unknown peers for a queue pair that does not exist
	Refused     uint64 // requests answered by a NAK
	QKey        uint64 // of those, for their Q_Key
	Access      uint64 // of those, for key, domain, bounds or rights
	NotReady    uint64 // of those, because there was no receive
	// AccessesLimited are requests dropped because the peer's host tries keys.
	AccessesLimited uint64
	ReadsDropped    uint64 // reads dropped because too many wait to be answered
	Held            uint64 // packets held back to change their order
	Repeated        uint64 // packets sent again
	Restarts        uint64 // peers found to have restarted
	Timeouts        uint64 // peers given up because they did not answer
	NaksReceived    uint64
	NotReadyNaks    uint64 // of those, because the peer had no receive
	RNRExceeded     uint64 // requests that failed because of that
	Sends           uint64 // sends that were acknowledged
	Receives        uint64
}

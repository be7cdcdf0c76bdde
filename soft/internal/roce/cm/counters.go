package cm

// Counters counts what a manager did, and what it refused, by reason.
type Counters struct {
	Received, Sent uint64 // MADs
	Retransmitted  uint64 // of Sent: REQ, REP, DREQ and SIDR_REQ sent again
	MRAsSent       uint64
	REJsSent       uint64
	Probes         uint64 // probes whether a peer still has a connection

	Malformed          uint64 // not MADs of connection management, or with an invalid field
	AddressMismatch    uint64 // requests that name other addresses than those of their packet
	UnknownConnection  uint64 // messages for no connection
	WrongPeer          uint64 // messages for a connection with another peer
	WrongTransaction   uint64 // responses to nothing that was asked
	WrongQPN           uint64 // DREQs for another queue pair
	WrongState         uint64 // messages not allowed in the state of the connection
	DuplicateREQ       uint64
	DuplicateREP       uint64
	DuplicateDREQ      uint64
	StaleConnection    uint64 // requests and replies with a queue pair that is in use
	NoService          uint64 // requests without a listener
	UnsupportedRequest uint64 // requests for features that this device does not have
	BacklogFull        uint64 // requests dropped: ListenParams.Backlog
	HalfOpenFull       uint64 // requests dropped: Config.MaxHalfOpen
	ConnectionsFull    uint64 // requests dropped: Config.MaxConnections
	HandshakesExpired  uint64 // handshakes of peers that did not complete in time
	OutputFull         uint64 // MADs dropped because the device did not fetch the earlier ones
}

// refused counts the MADs that had no effect.
func (c *Counters) refused() uint64 {
	return c.Malformed + c.AddressMismatch + c.UnknownConnection + c.WrongPeer + c.WrongTransaction + c.WrongQPN + c.WrongState +
		c.DuplicateREQ + c.DuplicateREP + c.DuplicateDREQ + c.StaleConnection + c.NoService + c.UnsupportedRequest +
		c.BacklogFull + c.HalfOpenFull + c.ConnectionsFull
}

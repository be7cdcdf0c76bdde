package cm

// Counters counts what a manager did, and what it refused and why.
type Counters struct {
	Received, Sent uint64 // MADs
	Retransmitted  uint64 // of Sent: REQ, REP, DREQ and SIDR_REQ sent again
	MRAsSent       uint64
	REJsSent       uint64
	Probes         uint64 // questions whether a peer still knows a connection

	Malformed          uint64 // no MAD of connection management, or with a field that cannot be
	AddressMismatch    uint64 // requests that name other addresses than those they came from or to
	UnknownConnection  uint64 // messages for no connection
	WrongPeer          uint64 // messages for a connection of another peer
	WrongTransaction   uint64 // answers to something that was not asked
	WrongQPN           uint64 // DREQs for another queue pair
	WrongState         uint64 // messages that mean nothing in the state of the connection
	DuplicateREQ       uint64
	DuplicateREP       uint64
	DuplicateDREQ      uint64
	StaleConnection    uint64 // requests and replies with a queue pair that is in use
	NoService          uint64 // requests that nobody listens for
	UnsupportedRequest uint64 // requests for what this device does not have
	BacklogFull        uint64 // requests dropped: that many handshakes of the listener are under way
	HalfOpenFull       uint64 // requests dropped: likewise of all listeners
	ConnectionsFull    uint64 // requests dropped: Config.MaxConnections
	HandshakesExpired  uint64 // handshakes of peers that came to no end in time
	OutputFull         uint64 // MADs dropped because the device did not take the earlier ones
}

// refused counts the MADs that led to nothing.
func (c *Counters) refused() uint64 {
	return c.Malformed + c.AddressMismatch + c.UnknownConnection + c.WrongPeer + c.WrongTransaction + c.WrongQPN + c.WrongState +
		c.DuplicateREQ + c.DuplicateREP + c.DuplicateDREQ + c.StaleConnection + c.NoService + c.UnsupportedRequest +
		c.BacklogFull + c.HalfOpenFull + c.ConnectionsFull
}

package mad

// Message is the kind of message that a REJ or an MRA refers to.
type Message uint8

// Messages that can be rejected or acknowledged.
const (
	MessageREQ   Message = 0
	MessageREP   Message = 1
	MessageOther Message = 2 // in a REJ: another message, or none; in an MRA: LAP
)

// REP accepts a request (IBTA 12.6.8).
type REP struct {
	TransactionID      uint64
	LocalCommID        uint32
	RemoteCommID       uint32
	QKey               uint32
	QPN                uint32 // 24 bits
	StartingPSN        uint32 // 24 bits
	ResponderResources uint8
	InitiatorDepth     uint8
	TargetAckDelay     uint8 // 5 bits, code
	Failover           Failover
	FlowControl        bool
	RNRRetry           uint8 // 3 bits
	SRQ                bool
	CAGUID             uint64
	PrivateData        []byte
}

// Failover is the response to the alternate path of a REQ (IBTA 12.7), 2 bits.
type Failover uint8

// The responses to an alternate path.
const (
	FailoverAccepted     Failover = 0 // or there was none
	FailoverNotSupported Failover = 1
	FailoverRejected     Failover = 2
)

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *REP) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *REP) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *REP) code(c coder) error {
	c.begin(AttrREP, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u32(4, &m.RemoteCommID)
	c.u32(8, &m.QKey)
	c.upper("queue pair number", 12, 24, &m.QPN)
	c.upper("starting PSN", 20, 24, &m.StartingPSN)
	c.u8(24, &m.ResponderResources)
	c.u8(25, &m.InitiatorDepth)
	c.bits("target ACK delay", 26, 3, 5, &m.TargetAckDelay)
	c.bits("failover accepted", 26, 1, 2, (*uint8)(&m.Failover))
	c.bit(26, 0, &m.FlowControl)
	c.bits("RNR retry count", 27, 5, 3, &m.RNRRetry)
	c.bit(27, 4, &m.SRQ)
	c.u64(28, &m.CAGUID)
	c.private(36, &m.PrivateData)
	return c.err
}

// RTU confirms that the REP has arrived (IBTA 12.6.9).
type RTU struct {
	TransactionID uint64
	LocalCommID   uint32
	RemoteCommID  uint32
	PrivateData   []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *RTU) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *RTU) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *RTU) code(c coder) error {
	c.begin(AttrRTU, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u32(4, &m.RemoteCommID)
	c.private(8, &m.PrivateData)
	return c.err
}

// DREP responds to a DREQ (IBTA 12.6.11).
type DREP struct {
	TransactionID uint64
	LocalCommID   uint32
	RemoteCommID  uint32
	PrivateData   []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *DREP) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *DREP) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *DREP) code(c coder) error {
	c.begin(AttrDREP, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u32(4, &m.RemoteCommID)
	c.private(8, &m.PrivateData)
	return c.err
}

// DREQ ends a connection (IBTA 12.6.10).
type DREQ struct {
	TransactionID uint64
	LocalCommID   uint32
	RemoteCommID  uint32
	RemoteQPN     uint32 // the receiver's queue pair, 24 bits
	PrivateData   []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *DREQ) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *DREQ) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *DREQ) code(c coder) error {
	c.begin(AttrDREQ, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u32(4, &m.RemoteCommID)
	c.upper("queue pair number", 8, 24, &m.RemoteQPN)
	c.private(12, &m.PrivateData)
	return c.err
}

// MRA asks the peer to wait longer for a response (IBTA 12.6.6).
type MRA struct {
	TransactionID  uint64
	LocalCommID    uint32
	RemoteCommID   uint32
	Message        Message // the acknowledged message
	ServiceTimeout uint8   // 5 bits, code
	PrivateData    []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *MRA) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *MRA) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *MRA) code(c coder) error {
	c.begin(AttrMRA, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u32(4, &m.RemoteCommID)
	c.kind(8, &m.Message)
	c.bits("service timeout", 9, 3, 5, &m.ServiceTimeout)
	c.private(10, &m.PrivateData)
	return c.err
}

// REJ rejects a message or ends a handshake (IBTA 12.6.7).
type REJ struct {
	TransactionID uint64
	LocalCommID   uint32  // 0 if the sender has none
	RemoteCommID  uint32  // 0 if the sender does not know it
	Message       Message // the rejected message
	Reason        Reason
	Info          []byte // up to InfoLen bytes; the reason defines the meaning
	PrivateData   []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *REJ) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *REJ) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *REJ) code(c coder) error {
	c.begin(AttrREJ, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u32(4, &m.RemoteCommID)
	c.kind(8, &m.Message)
	c.info(12, 9, 1, &m.Info)
	c.limit("reason", uint32(m.Reason), 16)
	reason := uint16(m.Reason)
	c.u16(10, &reason)
	m.Reason = Reason(reason)
	c.private(84, &m.PrivateData)
	return c.err
}

// SIDRREQ asks for the queue pair of a service (IBTA 12.11.1).
type SIDRREQ struct {
	TransactionID uint64
	RequestID     uint32
	PKey          uint16
	ServiceID     uint64
	PrivateData   []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *SIDRREQ) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *SIDRREQ) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *SIDRREQ) code(c coder) error {
	c.begin(AttrSIDRREQ, &m.TransactionID)
	c.u32(0, &m.RequestID)
	c.u16(4, &m.PKey)
	c.u64(8, &m.ServiceID)
	c.private(16, &m.PrivateData)
	return c.err
}

// SIDRREP responds to a SIDR_REQ (IBTA 12.11.2).
type SIDRREP struct {
	TransactionID uint64
	RequestID     uint32
	Status        SIDRStatus
	QPN           uint32 // 24 bits
	ServiceID     uint64
	QKey          uint32
	Info          []byte // up to InfoLen bytes
	PrivateData   []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *SIDRREP) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *SIDRREP) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *SIDRREP) code(c coder) error {
	c.begin(AttrSIDRREP, &m.TransactionID)
	c.u32(0, &m.RequestID)
	c.u8(4, (*uint8)(&m.Status))
	c.info(24, 5, 0, &m.Info)
	c.upper("queue pair number", 8, 24, &m.QPN)
	c.u64(12, &m.ServiceID)
	c.u32(20, &m.QKey)
	c.private(96, &m.PrivateData)
	return c.err
}

// LAP offers an alternate path (IBTA 12.8.1).
type LAP struct {
	TransactionID         uint64
	LocalCommID           uint32
	RemoteCommID          uint32
	RemoteQPN             uint32 // the receiver's queue pair, 24 bits
	RemoteResponseTimeout uint8  // 5 bits, code
	Alternate             Path
	PrivateData           []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *LAP) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *LAP) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *LAP) code(c coder) error {
	c.begin(AttrLAP, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u32(4, &m.RemoteCommID)
	c.upper("queue pair number", 12, 24, &m.RemoteQPN)
	c.bits("remote CM response timeout", 15, 3, 5, &m.RemoteResponseTimeout)
	m.Alternate.code(&c, 20, pathInLAP)
	c.private(64, &m.PrivateData)
	return c.err
}

// APR responds to a LAP (IBTA 12.8.2).
type APR struct {
	TransactionID uint64
	LocalCommID   uint32
	RemoteCommID  uint32
	Status        APStatus
	Info          []byte // up to InfoLen bytes
	PrivateData   []byte
}

// APStatus is the status of an alternate path (IBTA 12.8.2).
type APStatus uint8

// Statuses of an alternate path.
const (
	APLoaded        APStatus = 0
	APInvalidCommID APStatus = 1
	APNotSupported  APStatus = 2 // the one that this device sends: it has no alternate paths
)

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *APR) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *APR) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *APR) code(c coder) error {
	c.begin(AttrAPR, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u32(4, &m.RemoteCommID)
	c.info(12, 8, 0, &m.Info)
	c.u8(9, (*uint8)(&m.Status))
	c.private(84, &m.PrivateData)
	return c.err
}

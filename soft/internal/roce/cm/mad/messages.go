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
func (m *REP) Encode(b *[Len]byte) error {
	w := begin(b, AttrREP, m.TransactionID)
	w.u32(0, m.LocalCommID)
	w.u32(4, m.RemoteCommID)
	w.u32(8, m.QKey)
	w.u24("queue pair number", 12, m.QPN)
	w.u24("starting PSN", 20, m.StartingPSN)
	w.u8(24, m.ResponderResources)
	w.u8(25, m.InitiatorDepth)
	w.bits("target ACK delay", 26, 3, 5, m.TargetAckDelay)
	w.bits("failover accepted", 26, 1, 2, uint8(m.Failover))
	w.bit(26, 0, m.FlowControl)
	w.bits("RNR retry count", 27, 5, 3, m.RNRRetry)
	w.bit(27, 4, m.SRQ)
	w.u64(28, m.CAGUID)
	w.data("private data", 36, REPPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *REP) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrREP, &id)
	if err != nil {
		return err
	}
	*m = REP{
		TransactionID: id, LocalCommID: v.u32(0), RemoteCommID: v.u32(4), QKey: v.u32(8),
		QPN: v.u24(12), StartingPSN: v.u24(20), ResponderResources: v[24], InitiatorDepth: v[25],
		TargetAckDelay: v.bits(26, 3, 5), Failover: Failover(v.bits(26, 1, 2)), FlowControl: v.bit(26, 0),
		RNRRetry: v.bits(27, 5, 3), SRQ: v.bit(27, 4), CAGUID: v.u64(28), PrivateData: v.rest(36),
	}
	return nil
}

// RTU confirms that the REP has arrived (IBTA 12.6.9).
type RTU struct {
	TransactionID uint64
	LocalCommID   uint32
	RemoteCommID  uint32
	PrivateData   []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *RTU) Encode(b *[Len]byte) error {
	return encodeIDs(b, AttrRTU, m.TransactionID, m.LocalCommID, m.RemoteCommID, m.PrivateData)
}

// Decode reads the message from a MAD.
func (m *RTU) Decode(b []byte) (err error) {
	*m = RTU{}
	m.LocalCommID, m.RemoteCommID, m.PrivateData, err = decodeIDs(b, AttrRTU, &m.TransactionID)
	return err
}

// DREP responds to a DREQ (IBTA 12.6.11).
type DREP struct {
	TransactionID uint64
	LocalCommID   uint32
	RemoteCommID  uint32
	PrivateData   []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *DREP) Encode(b *[Len]byte) error {
	return encodeIDs(b, AttrDREP, m.TransactionID, m.LocalCommID, m.RemoteCommID, m.PrivateData)
}

// Decode reads the message from a MAD.
func (m *DREP) Decode(b []byte) (err error) {
	*m = DREP{}
	m.LocalCommID, m.RemoteCommID, m.PrivateData, err = decodeIDs(b, AttrDREP, &m.TransactionID)
	return err
}

// encodeIDs writes a message that consists of two communication IDs and private data.
func encodeIDs(b *[Len]byte, a Attribute, transactionID uint64, local, remote uint32, private []byte) error {
	w := begin(b, a, transactionID)
	w.u32(0, local)
	w.u32(4, remote)
	w.data("private data", 8, RTUPrivateLen, private)
	return w.err
}

func decodeIDs(b []byte, a Attribute, transactionID *uint64) (local, remote uint32, private []byte, err error) {
	v, err := open(b, a, transactionID)
	if err != nil {
		return 0, 0, nil, err
	}
	return v.u32(0), v.u32(4), v.rest(8), nil
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
func (m *DREQ) Encode(b *[Len]byte) error {
	w := begin(b, AttrDREQ, m.TransactionID)
	w.u32(0, m.LocalCommID)
	w.u32(4, m.RemoteCommID)
	w.u24("queue pair number", 8, m.RemoteQPN)
	w.data("private data", 12, DREQPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *DREQ) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrDREQ, &id)
	if err != nil {
		return err
	}
	*m = DREQ{TransactionID: id, LocalCommID: v.u32(0), RemoteCommID: v.u32(4), RemoteQPN: v.u24(8), PrivateData: v.rest(12)}
	return nil
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
func (m *MRA) Encode(b *[Len]byte) error {
	w := begin(b, AttrMRA, m.TransactionID)
	w.u32(0, m.LocalCommID)
	w.u32(4, m.RemoteCommID)
	w.bits("message", 8, 6, 2, uint8(m.Message))
	w.bits("service timeout", 9, 3, 5, m.ServiceTimeout)
	w.data("private data", 10, MRAPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *MRA) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrMRA, &id)
	if err != nil {
		return err
	}
	message := Message(v.bits(8, 6, 2))
	if message > MessageOther {
		return ErrMessage
	}
	*m = MRA{
		TransactionID: id, LocalCommID: v.u32(0), RemoteCommID: v.u32(4),
		Message: message, ServiceTimeout: v.bits(9, 3, 5), PrivateData: v.rest(10),
	}
	return nil
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
func (m *REJ) Encode(b *[Len]byte) error {
	w := begin(b, AttrREJ, m.TransactionID)
	w.u32(0, m.LocalCommID)
	w.u32(4, m.RemoteCommID)
	w.bits("message", 8, 6, 2, uint8(m.Message))
	w.data("additional information", 12, InfoLen, m.Info)
	w.bits("length of additional information", 9, 1, 7, uint8(min(len(m.Info), InfoLen)))
	w.u16(10, uint16(m.Reason))
	w.data("private data", 84, REJPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *REJ) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrREJ, &id)
	if err != nil {
		return err
	}
	message := Message(v.bits(8, 6, 2))
	if message > MessageOther {
		return ErrMessage
	}
	info, err := v.info(12, int(v.bits(9, 1, 7)))
	if err != nil {
		return err
	}
	*m = REJ{
		TransactionID: id, LocalCommID: v.u32(0), RemoteCommID: v.u32(4),
		Message: message, Reason: Reason(v.u16(10)), Info: info, PrivateData: v.rest(84),
	}
	return nil
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
func (m *SIDRREQ) Encode(b *[Len]byte) error {
	w := begin(b, AttrSIDRREQ, m.TransactionID)
	w.u32(0, m.RequestID)
	w.u16(4, m.PKey)
	w.u64(8, m.ServiceID)
	w.data("private data", 16, SIDRREQPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *SIDRREQ) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrSIDRREQ, &id)
	if err != nil {
		return err
	}
	*m = SIDRREQ{TransactionID: id, RequestID: v.u32(0), PKey: v.u16(4), ServiceID: v.u64(8), PrivateData: v.rest(16)}
	return nil
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
func (m *SIDRREP) Encode(b *[Len]byte) error {
	w := begin(b, AttrSIDRREP, m.TransactionID)
	w.u32(0, m.RequestID)
	w.u8(4, uint8(m.Status))
	w.data("additional information", 24, InfoLen, m.Info)
	w.u8(5, uint8(min(len(m.Info), InfoLen)))
	w.u24("queue pair number", 8, m.QPN)
	w.u64(12, m.ServiceID)
	w.u32(20, m.QKey)
	w.data("private data", 96, SIDRREPPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *SIDRREP) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrSIDRREP, &id)
	if err != nil {
		return err
	}
	info, err := v.info(24, int(v[5]))
	if err != nil {
		return err
	}
	*m = SIDRREP{
		TransactionID: id, RequestID: v.u32(0), Status: SIDRStatus(v[4]), QPN: v.u24(8),
		ServiceID: v.u64(12), QKey: v.u32(20), Info: info, PrivateData: v.rest(96),
	}
	return nil
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
func (m *LAP) Encode(b *[Len]byte) error {
	w := begin(b, AttrLAP, m.TransactionID)
	w.u32(0, m.LocalCommID)
	w.u32(4, m.RemoteCommID)
	w.u24("queue pair number", 12, m.RemoteQPN)
	w.bits("remote CM response timeout", 15, 3, 5, m.RemoteResponseTimeout)
	m.Alternate.put(&w, 20, pathInLAP)
	w.data("private data", 64, LAPPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *LAP) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrLAP, &id)
	if err != nil {
		return err
	}
	*m = LAP{
		TransactionID: id, LocalCommID: v.u32(0), RemoteCommID: v.u32(4),
		RemoteQPN: v.u24(12), RemoteResponseTimeout: v.bits(15, 3, 5), PrivateData: v.rest(64),
	}
	m.Alternate.get(v, 20, pathInLAP)
	return nil
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
func (m *APR) Encode(b *[Len]byte) error {
	w := begin(b, AttrAPR, m.TransactionID)
	w.u32(0, m.LocalCommID)
	w.u32(4, m.RemoteCommID)
	w.data("additional information", 12, InfoLen, m.Info)
	w.u8(8, uint8(min(len(m.Info), InfoLen)))
	w.u8(9, uint8(m.Status))
	w.data("private data", 84, APRPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *APR) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrAPR, &id)
	if err != nil {
		return err
	}
	info, err := v.info(12, int(v[8]))
	if err != nil {
		return err
	}
	*m = APR{
		TransactionID: id, LocalCommID: v.u32(0), RemoteCommID: v.u32(4),
		Status: APStatus(v[9]), Info: info, PrivateData: v.rest(84),
	}
	return nil
}

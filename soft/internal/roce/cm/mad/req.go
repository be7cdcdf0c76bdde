package mad

import "github.com/verbena-rdma/verbena/verbs"

// Lengths of private data in bytes. In REQ and SIDR_REQ, RDMA CM uses the first [IPHeaderLen]
// of them.
const (
	REQPrivateLen     = 92
	MRAPrivateLen     = 222
	REJPrivateLen     = 148
	REPPrivateLen     = 196
	RTUPrivateLen     = 224
	DREQPrivateLen    = 220
	DREPPrivateLen    = 224
	SIDRREQPrivateLen = 216
	SIDRREPPrivateLen = 136
	LAPPrivateLen     = 168
	APRPrivateLen     = 148
)

// InfoLen is the room for additional information in REJ, SIDR_REP and APR, in bytes.
const InfoLen = 72

// Transport is the transport service that a REQ asks for (IBTA 12.7).
type Transport uint8

// The transport service types.
const (
	TransportRC       Transport = 0
	TransportUC       Transport = 1
	TransportRD       Transport = 2
	TransportExtended Transport = 3 // see REQ.ExtendedTransport
)

// PermissiveLID is the value of a LID that the sender does not know. On RoCE all LIDs have it.
const PermissiveLID = 0xffff

// Path is a path in a REQ or a LAP, as its sender sees it (IBTA 12.7). It takes 44 bytes in
// both messages; their layouts differ in the five bytes after the flow label.
type Path struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID verbs.GID
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits, the codes of a path record
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	// AckTimeout is the sender's local ACK timeout: 4.096 µs × 2^AckTimeout, 5 bits.
	AckTimeout uint8
}

// pathLayout has the offsets of the fields that a REQ and a LAP place differently.
type pathLayout struct{ packetRate, trafficClass, hopLimit int }

var (
	pathInREQ = pathLayout{packetRate: 39, trafficClass: 40, hopLimit: 41}
	pathInLAP = pathLayout{trafficClass: 39, hopLimit: 40, packetRate: 41}
)

func (p *Path) put(w *writer, at int, l pathLayout) {
	w.u16(at, p.LocalLID)
	w.u16(at+2, p.RemoteLID)
	copy(w.message[at+4:], p.LocalGID[:])
	copy(w.message[at+20:], p.RemoteGID[:])
	if p.FlowLabel >= 1<<20 {
		w.fail("flow label", p.FlowLabel)
	}
	w.u32(at+36, p.FlowLabel<<12)
	w.bits("packet rate", at+l.packetRate, 0, 6, p.PacketRate)
	w.u8(at+l.trafficClass, p.TrafficClass)
	w.u8(at+l.hopLimit, p.HopLimit)
	w.bits("service level", at+42, 4, 4, p.SL)
	w.bit(at+42, 3, p.SubnetLocal)
	w.bits("local ACK timeout", at+43, 3, 5, p.AckTimeout)
}

func (p *Path) get(v view, at int, l pathLayout) {
	*p = Path{
		LocalLID: v.u16(at), RemoteLID: v.u16(at + 2),
		LocalGID: verbs.GID(v[at+4 : at+20]), RemoteGID: verbs.GID(v[at+20 : at+36]),
		FlowLabel: v.u32(at+36) >> 12, PacketRate: v.bits(at+l.packetRate, 0, 6),
		TrafficClass: v[at+l.trafficClass], HopLimit: v[at+l.hopLimit],
		SL: v.bits(at+42, 4, 4), SubnetLocal: v.bit(at+42, 3), AckTimeout: v.bits(at+43, 3, 5),
	}
}

// REQ asks for a connection (IBTA 12.6.5). Timeouts are codes: 4.096 µs × 2^code.
type REQ struct {
	TransactionID         uint64
	LocalCommID           uint32
	ServiceID             uint64
	CAGUID                uint64
	QKey                  uint32
	QPN                   uint32 // 24 bits
	ResponderResources    uint8
	InitiatorDepth        uint8
	RemoteResponseTimeout uint8 // 5 bits; how soon the receiver has to respond to this message
	Transport             Transport
	FlowControl           bool
	StartingPSN           uint32 // 24 bits
	LocalResponseTimeout  uint8  // 5 bits; how soon the sender responds to a REP
	RetryCount            uint8  // 3 bits
	PKey                  uint16
	PathMTU               uint8 // 4 bits, code: see MTUCode
	RDCExists             bool
	RNRRetry              uint8 // 3 bits
	MaxCMRetries          uint8 // 4 bits
	SRQ                   bool
	ExtendedTransport     uint8 // 3 bits
	Primary, Alternate    Path  // Alternate counts if it has a LID
	PrivateData           []byte
}

// Encode writes the message as a whole MAD. Its error matches ErrField.
func (m *REQ) Encode(b *[Len]byte) error {
	w := begin(b, AttrREQ, m.TransactionID)
	w.u32(0, m.LocalCommID)
	w.u64(8, m.ServiceID)
	w.u64(16, m.CAGUID)
	w.u32(28, m.QKey)
	w.u24("queue pair number", 32, m.QPN)
	w.u8(35, m.ResponderResources)
	w.u8(39, m.InitiatorDepth)
	w.bits("remote CM response timeout", 43, 3, 5, m.RemoteResponseTimeout)
	w.bits("transport service type", 43, 1, 2, uint8(m.Transport))
	w.bit(43, 0, m.FlowControl)
	w.u24("starting PSN", 44, m.StartingPSN)
	w.bits("local CM response timeout", 47, 3, 5, m.LocalResponseTimeout)
	w.bits("retry count", 47, 0, 3, m.RetryCount)
	w.u16(48, m.PKey)
	w.bits("path MTU", 50, 4, 4, m.PathMTU)
	w.bit(50, 3, m.RDCExists)
	w.bits("RNR retry count", 50, 0, 3, m.RNRRetry)
	w.bits("max CM retries", 51, 4, 4, m.MaxCMRetries)
	w.bit(51, 3, m.SRQ)
	w.bits("extended transport type", 51, 0, 3, m.ExtendedTransport)
	m.Primary.put(&w, 52, pathInREQ)
	m.Alternate.put(&w, 96, pathInREQ)
	w.data("private data", 140, REQPrivateLen, m.PrivateData)
	return w.err
}

// Decode reads the message from a MAD.
func (m *REQ) Decode(b []byte) error {
	var id uint64
	v, err := open(b, AttrREQ, &id)
	if err != nil {
		return err
	}
	*m = REQ{
		TransactionID: id, LocalCommID: v.u32(0), ServiceID: v.u64(8), CAGUID: v.u64(16), QKey: v.u32(28),
		QPN: v.u24(32), ResponderResources: v[35], InitiatorDepth: v[39],
		RemoteResponseTimeout: v.bits(43, 3, 5), Transport: Transport(v.bits(43, 1, 2)), FlowControl: v.bit(43, 0),
		StartingPSN: v.u24(44), LocalResponseTimeout: v.bits(47, 3, 5), RetryCount: v.bits(47, 0, 3),
		PKey: v.u16(48), PathMTU: v.bits(50, 4, 4), RDCExists: v.bit(50, 3), RNRRetry: v.bits(50, 0, 3),
		MaxCMRetries: v.bits(51, 4, 4), SRQ: v.bit(51, 3), ExtendedTransport: v.bits(51, 0, 3),
		PrivateData: v.rest(140),
	}
	m.Primary.get(v, 52, pathInREQ)
	m.Alternate.get(v, 96, pathInREQ)
	return nil
}

// MTUCode returns the code of a path MTU in a REQ: 1 for 256 bytes to 5 for 4,096, and 0 for
// an invalid MTU.
func MTUCode(mtu verbs.MTU) uint8 {
	for code := range uint8(5) {
		if mtu == 256<<code {
			return code + 1
		}
	}
	return 0
}

// MTUOf returns the path MTU of a code, 0 if there is none.
func MTUOf(code uint8) verbs.MTU {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

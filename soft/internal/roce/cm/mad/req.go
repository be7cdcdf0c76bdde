package mad

import "github.com/verbena-rdma/verbena/verbs"

// Lengths of private data in bytes. In REQ and SIDR_REQ, RDMA CM uses the first [IPHeaderLen]
// of them.
const (
	REQPrivateLen     = 92
	REJPrivateLen     = 148
	REPPrivateLen     = 196
	RTUPrivateLen     = 224
	DREQPrivateLen    = 220
	SIDRREQPrivateLen = 216
	SIDRREPPrivateLen = 136
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

func (p *Path) code(c *coder, at int, l pathLayout) {
	c.u16(at, &p.LocalLID)
	c.u16(at+2, &p.RemoteLID)
	c.gid(at+4, &p.LocalGID)
	c.gid(at+20, &p.RemoteGID)
	c.upper("flow label", at+36, 20, &p.FlowLabel)
	c.bits("packet rate", at+l.packetRate, 0, 6, &p.PacketRate)
	c.u8(at+l.trafficClass, &p.TrafficClass)
	c.u8(at+l.hopLimit, &p.HopLimit)
	c.bits("service level", at+42, 4, 4, &p.SL)
	c.bit(at+42, 3, &p.SubnetLocal)
	c.bits("local ACK timeout", at+43, 3, 5, &p.AckTimeout)
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
func (m *REQ) Encode(b *[Len]byte) error { return m.code(writeTo(b)) }

// Decode reads the message from a MAD. After an error the message has no meaning.
func (m *REQ) Decode(b []byte) error { return m.code(readFrom(b)) }

func (m *REQ) code(c coder) error {
	c.begin(AttrREQ, &m.TransactionID)
	c.u32(0, &m.LocalCommID)
	c.u64(8, &m.ServiceID)
	c.u64(16, &m.CAGUID)
	c.u32(28, &m.QKey)
	c.upper("queue pair number", 32, 24, &m.QPN)
	c.u8(35, &m.ResponderResources)
	c.u8(39, &m.InitiatorDepth)
	c.bits("remote CM response timeout", 43, 3, 5, &m.RemoteResponseTimeout)
	c.bits("transport service type", 43, 1, 2, (*uint8)(&m.Transport))
	c.bit(43, 0, &m.FlowControl)
	c.upper("starting PSN", 44, 24, &m.StartingPSN)
	c.bits("local CM response timeout", 47, 3, 5, &m.LocalResponseTimeout)
	c.bits("retry count", 47, 0, 3, &m.RetryCount)
	c.u16(48, &m.PKey)
	c.bits("path MTU", 50, 4, 4, &m.PathMTU)
	c.bit(50, 3, &m.RDCExists)
	c.bits("RNR retry count", 50, 0, 3, &m.RNRRetry)
	c.bits("max CM retries", 51, 4, 4, &m.MaxCMRetries)
	c.bit(51, 3, &m.SRQ)
	c.bits("extended transport type", 51, 0, 3, &m.ExtendedTransport)
	m.Primary.code(&c, 52, pathInREQ)
	m.Alternate.code(&c, 96, pathInREQ)
	c.private(140, &m.PrivateData)
	return c.err
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

package wire

import "encoding/binary"

// MaxHeaderLen is the length of the longest headers of one packet in bytes, those of an SRD
// write with immediate.
const MaxHeaderLen = BTHLen + SRDETHLen + DETHLen + RETHLen + OffsetLen + ImmLen

// Packet is one packet without its padding and invariant CRC. It may be reused for the next
// packet; its methods do not allocate.
type Packet struct {
	Opcode    Opcode
	Solicited bool   // the receiver's completion raises an event
	MigReq    bool   // the path migration state is "migrated"
	AckReq    bool   // the requester wants an acknowledgement
	FECN      bool   // forward congestion notification
	BECN      bool   // backward congestion notification
	Pad       uint8  // bytes added to the payload to make a multiple of 4, 0 … 3
	Version   uint8  // of the transport header; always 0 (4 bits)
	PKey      uint16 // partition key
	DestQP    uint32 // 24 bits
	PSN       uint32 // packet sequence number, 24 bits

	// A field is valid only if the opcode has that header.
	RETH           RETH
	AETH           AETH
	Imm            uint32
	Atomic         AtomicETH
	AtomicAck      uint64 // what the memory held before the atomic operation
	DETH           DETH
	SRQN           uint32 // of the XRCETH: the number of an XRC shared receive queue, 24 bits
	InvalidateRKey uint32
	SRDETH         SRDETH
	Offset         uint32 // of the payload in its message, or of the first byte that a read request asks for
	Segments       Segments

	// Payload is a part of the parsed datagram, and valid as long as the datagram. PutHeaders
	// ignores it.
	Payload []byte
}

// Parse reads the packet in a UDP datagram, which includes the ICRC. It does not check the
// ICRC; [Flow.CheckICRC] does. It checks only the form of the packet, not whether a queue pair
// may accept it: any payload length up to [MaxPayloadLen] passes, even an empty payload in the
// middle of a message.
//
// An error matches [ErrMalformed], and leaves p without meaning. The exception is [ErrOpcode]:
// p then has the base transport header and no payload. Fields that the opcode does not have
// keep their earlier values.
func (p *Packet) Parse(datagram []byte) error {
	if len(datagram) < BTHLen+ICRCLen {
		return ErrTruncated
	}
	if len(datagram)%4 != 0 {
		return ErrUnaligned
	}
	p.getBTH((*[BTHLen]byte)(datagram))
	if p.Version != 0 {
		return ErrVersion
	}
	info := opcodeInfos[p.Opcode]
	n := int(info.headerLen)
	if n == 0 {
		p.Payload = nil
		return ErrOpcode
	}
	end := len(datagram) - ICRCLen
	if end < n {
		return ErrTruncated
	}
	if info.parts&^hasPayload != 0 {
		p.getExtensions(info.parts, datagram[BTHLen:n])
		if info.parts&hasSRDETH != 0 && !p.validSRD() {
			return ErrSRD
		}
	}
	if info.parts&hasPayload == 0 {
		if end != n || p.Pad != 0 {
			return ErrPayload
		}
		p.Payload = nil
		return nil
	}
	if end-n < int(p.Pad) {
		return ErrPad
	}
	end -= int(p.Pad)
	if end-n > MaxPayloadLen {
		return ErrTooLong
	}
	p.Payload = datagram[n:end:end]
	return nil
}

// IsRequestThenAck reports whether the first of two datagrams is a request of a reliable
// connection, the second a positive acknowledgement, and both name the same queue pair. It
// checks nothing else.
func IsRequestThenAck(first, second []byte) bool {
	if len(first) < BTHLen || len(second) <= BTHLen || Opcode(second[0]) != RCAcknowledge || Syndrome(second[BTHLen]).Kind() != KindAck {
		return false
	}
	o := Opcode(first[0])
	return o.Service() == ServiceRC && o.Known() && !o.HasAETH() && !o.IsReadResponse() && string(first[5:8]) == string(second[5:8])
}

// ParseHeaders reads a packet's headers from b, which holds exactly what PutHeaders wrote. It
// leaves p.Payload nil; the caller must know the payload.
//
// An error matches [ErrMalformed], and leaves p without meaning.
func (p *Packet) ParseHeaders(b []byte) error {
	if len(b) < BTHLen {
		return ErrTruncated
	}
	p.getBTH((*[BTHLen]byte)(b))
	if p.Version != 0 {
		return ErrVersion
	}
	info := opcodeInfos[p.Opcode]
	switch int(info.headerLen) {
	case 0:
		return ErrOpcode
	case len(b):
	default:
		return ErrTruncated
	}
	if info.parts&^hasPayload != 0 {
		p.getExtensions(info.parts, b[BTHLen:])
		if info.parts&hasSRDETH != 0 && !p.validSRD() {
			return ErrSRD
		}
	}
	p.Payload = nil
	return nil
}

// PutHeaders writes the base transport header and the extension headers of
// p.Opcode to dst and returns their length, p.Opcode.HeaderLen(). It writes
// nothing and returns 0 if dst is shorter than that or the opcode is unknown.
// Values wider than their field lose their upper bits.
func (p *Packet) PutHeaders(dst []byte) int {
	info := opcodeInfos[p.Opcode]
	n := int(info.headerLen)
	if n == 0 || len(dst) < n {
		return 0
	}
	p.putBTH((*[BTHLen]byte)(dst))
	if info.parts&^hasPayload != 0 {
		p.putExtensions(info.parts, dst[BTHLen:n])
	}
	return n
}

// getExtensions requires b to have the length of the headers in parts.
func (p *Packet) getExtensions(parts uint16, b []byte) {
	if parts&hasSRDETH != 0 {
		p.SRDETH.get((*[SRDETHLen]byte)(b))
		b = b[SRDETHLen:]
	}
	if parts&hasDETH != 0 {
		p.DETH.get((*[DETHLen]byte)(b))
		b = b[DETHLen:]
	}
	if parts&hasXRCETH != 0 {
		p.SRQN = binary.BigEndian.Uint32(b) & PSNMask // the upper 8 bits are reserved
		b = b[XRCETHLen:]
	}
	if parts&hasRETH != 0 {
		p.RETH.get((*[RETHLen]byte)(b))
		b = b[RETHLen:]
	}
	if parts&hasOffset != 0 {
		p.Offset = binary.BigEndian.Uint32(b)
		b = b[OffsetLen:]
	}
	if parts&hasSegments != 0 {
		p.Segments.get((*[SegmentsLen]byte)(b))
		b = b[SegmentsLen:]
	}
	if parts&hasAtomicETH != 0 {
		p.Atomic.get((*[AtomicETHLen]byte)(b))
		b = b[AtomicETHLen:]
	}
	if parts&hasAETH != 0 {
		p.AETH.get((*[AETHLen]byte)(b))
		b = b[AETHLen:]
	}
	if parts&hasAtomicAck != 0 {
		p.AtomicAck = binary.BigEndian.Uint64(b)
		b = b[AtomicAckLen:]
	}
	if parts&hasImm != 0 {
		p.Imm = binary.BigEndian.Uint32(b)
		b = b[ImmLen:]
	}
	if parts&hasIETH != 0 {
		p.InvalidateRKey = binary.BigEndian.Uint32(b)
	}
}

// putExtensions requires b to have the length of the headers in parts.
func (p *Packet) putExtensions(parts uint16, b []byte) {
	if parts&hasSRDETH != 0 {
		p.SRDETH.put((*[SRDETHLen]byte)(b))
		b = b[SRDETHLen:]
	}
	if parts&hasDETH != 0 {
		p.DETH.put((*[DETHLen]byte)(b))
		b = b[DETHLen:]
	}
	if parts&hasXRCETH != 0 {
		binary.BigEndian.PutUint32(b, p.SRQN&PSNMask)
		b = b[XRCETHLen:]
	}
	if parts&hasRETH != 0 {
		p.RETH.put((*[RETHLen]byte)(b))
		b = b[RETHLen:]
	}
	if parts&hasOffset != 0 {
		binary.BigEndian.PutUint32(b, p.Offset)
		b = b[OffsetLen:]
	}
	if parts&hasSegments != 0 {
		p.Segments.put((*[SegmentsLen]byte)(b))
		b = b[SegmentsLen:]
	}
	if parts&hasAtomicETH != 0 {
		p.Atomic.put((*[AtomicETHLen]byte)(b))
		b = b[AtomicETHLen:]
	}
	if parts&hasAETH != 0 {
		p.AETH.put((*[AETHLen]byte)(b))
		b = b[AETHLen:]
	}
	if parts&hasAtomicAck != 0 {
		binary.BigEndian.PutUint64(b, p.AtomicAck)
		b = b[AtomicAckLen:]
	}
	if parts&hasImm != 0 {
		binary.BigEndian.PutUint32(b, p.Imm)
		b = b[ImmLen:]
	}
	if parts&hasIETH != 0 {
		binary.BigEndian.PutUint32(b, p.InvalidateRKey)
	}
	if parts&hasReserved != 0 {
		clear(b[:reservedLen])
	}
}

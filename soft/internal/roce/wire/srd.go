package wire

import "encoding/binary"

// Lengths of the headers of SRD in bytes.
const (
	SRDETHLen   = 12
	OffsetLen   = 4
	SegmentsLen = 4
)

// MaxSegments is the largest number of responses to one read request.
const MaxSegments = 16

// SRDETH is the header after the base transport header of every SRD packet. The format is this
// project's own, since Amazon's is not published.
//
// The packet sequence number in the base header counts the requests from one device to
// another, across all their queue pairs. An acknowledgement carries the number of the first
// missing packet, a NAK or response that of the request. SRDHello carries a random number that
// the reply repeats.
type SRDETH struct {
	Source uint32 // the sender's token for the receiver; never 0
	Target uint32 // the receiver's token for the sender, as the sender knows it; 0: unknown
	// Floor is the distance from the oldest packet that the sender may still repeat to this
	// packet. In SRDHello it is 16 more bits of the random number that the reply repeats.
	Floor uint16
	// Unsolicited says that the sending queue pair has UnsolicitedWriteRecv.
	Unsolicited bool
	// MTU is the code of the largest payload that the sender accepts: 1 … 5 for 256 … 4096
	// bytes.
	MTU uint8

	flags uint8 // reserved
}

const srdUnsolicited = 0x01

func (h *SRDETH) put(b *[SRDETHLen]byte) {
	binary.BigEndian.PutUint32(b[0:], h.Source)
	binary.BigEndian.PutUint32(b[4:], h.Target)
	binary.BigEndian.PutUint16(b[8:], h.Floor)
	b[10] = bit(h.Unsolicited, srdUnsolicited)
	b[11] = h.MTU
}

func (h *SRDETH) get(b *[SRDETHLen]byte) {
	h.Source = binary.BigEndian.Uint32(b[0:])
	h.Target = binary.BigEndian.Uint32(b[4:])
	h.Floor = binary.BigEndian.Uint16(b[8:])
	h.Unsolicited = b[10]&srdUnsolicited != 0
	h.flags = b[10] >> 1
	h.MTU = b[11]
}

// MTUBytes returns the payload that the code in MTU stands for, in bytes.
func (h *SRDETH) MTUBytes() uint32 { return 128 << h.MTU }

// Segments says how the responder splits the answer to a read request. Response i carries the
// bytes from Offset + i × Size, and the sequence number of the request plus i.
type Segments struct {
	Size  uint16 // bytes of every response but the last: 256, 512, 1024, 2048 or 4096
	Count uint16 // responses, 1 … MaxSegments
}

func (s *Segments) put(b *[SegmentsLen]byte) {
	binary.BigEndian.PutUint16(b[0:], s.Size)
	binary.BigEndian.PutUint16(b[2:], s.Count)
}

func (s *Segments) get(b *[SegmentsLen]byte) {
	s.Size = binary.BigEndian.Uint16(b[0:])
	s.Count = binary.BigEndian.Uint16(b[2:])
}

func (s *Segments) valid() bool {
	switch s.Size {
	case 256, 512, 1024, 2048, 4096:
		return s.Count >= 1 && s.Count <= MaxSegments
	}
	return false
}

// validSRD checks the headers of one SRD packet by themselves. The payload is not known yet.
func (p *Packet) validSRD() bool {
	if p.SRDETH.Source == 0 || p.SRDETH.MTU < 1 || p.SRDETH.MTU > 5 || p.SRDETH.flags != 0 {
		return false
	}
	switch p.Opcode {
	case SRDReadRequest:
		// The last segment begins inside the message, or the message is empty.
		if !p.Segments.valid() {
			return false
		}
		last := uint64(p.Offset) + uint64(p.Segments.Count-1)*uint64(p.Segments.Size)
		return last < uint64(p.RETH.Length) || last == 0
	case SRDWrite, SRDWriteImm:
		return p.Offset <= p.RETH.Length
	}
	return true
}

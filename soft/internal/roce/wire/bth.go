package wire

import "encoding/binary"

// BTHLen is the length of the base transport header in bytes.
const BTHLen = 12

// Bits of the base transport header (IBTA 9.2). Reserved bits are sent as zero
// and ignored on receipt.
const (
	bthSolicited   = 0x80 // byte 1
	bthMigReq      = 0x40
	bthPadShift    = 4
	bthVersionMask = 0x0f
	bthFECN        = 0x80 // byte 4
	bthBECN        = 0x40
	bthAckReq      = 0x80 // byte 8
	mask24         = 1<<24 - 1
)

// Begin sets the base transport header for a new packet; the caller adds the opcode. The path
// migration state is "migrated", and no other flag is set. The fields of other headers keep
// their values, because clearing all of p takes longer than writing one header. They are used
// only for opcodes that have those headers.
func (p *Packet) Begin(pkey uint16, destQP, psn uint32) {
	p.Opcode, p.Pad, p.Version = 0, 0, 0
	p.Solicited, p.MigReq, p.AckReq, p.FECN, p.BECN = false, true, false, false, false
	p.PKey, p.DestQP, p.PSN = pkey, destQP, psn
}

func (p *Packet) putBTH(b *[BTHLen]byte) {
	b[0] = uint8(p.Opcode)
	b[1] = bit(p.Solicited, bthSolicited) | bit(p.MigReq, bthMigReq) |
		p.Pad&3<<bthPadShift | p.Version&bthVersionMask
	binary.BigEndian.PutUint16(b[2:], p.PKey)
	binary.BigEndian.PutUint32(b[4:], uint32(bit(p.FECN, bthFECN)|bit(p.BECN, bthBECN))<<24|p.DestQP&mask24)
	binary.BigEndian.PutUint32(b[8:], uint32(bit(p.AckReq, bthAckReq))<<24|p.PSN&mask24)
}

func (p *Packet) getBTH(b *[BTHLen]byte) {
	p.Opcode = Opcode(b[0])
	p.Solicited = b[1]&bthSolicited != 0
	p.MigReq = b[1]&bthMigReq != 0
	p.Pad = b[1] >> bthPadShift & 3
	p.Version = b[1] & bthVersionMask
	p.PKey = binary.BigEndian.Uint16(b[2:])
	p.FECN = b[4]&bthFECN != 0
	p.BECN = b[4]&bthBECN != 0
	p.DestQP = binary.BigEndian.Uint32(b[4:]) & mask24
	p.AckReq = b[8]&bthAckReq != 0
	p.PSN = binary.BigEndian.Uint32(b[8:]) & mask24
}

func bit(set bool, mask uint8) uint8 {
	if set {
		return mask
	}
	return 0
}

package wire

import "encoding/binary"

// ManagementQPN is queue pair 1, the general services interface (IBTA 13.5.1).
const ManagementQPN = 1

// DETHLen is the length of the datagram extended transport header in bytes.
const DETHLen = 8

// DETH is the datagram extended transport header (IBTA 9.3).
type DETH struct {
	QKey  uint32
	SrcQP uint32 // 24 bits
}

func (h *DETH) put(b *[DETHLen]byte) {
	binary.BigEndian.PutUint32(b[0:], h.QKey)
	binary.BigEndian.PutUint32(b[4:], h.SrcQP&mask24)
}

func (h *DETH) get(b *[DETHLen]byte) {
	h.QKey = binary.BigEndian.Uint32(b[0:])
	h.SrcQP = binary.BigEndian.Uint32(b[4:]) & mask24
}

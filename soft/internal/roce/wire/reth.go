package wire

import "encoding/binary"

// RETHLen is the length of the RDMA extended transport header in bytes.
const RETHLen = 16

// RETH is the RDMA extended transport header (IBTA 9.3): the remote memory of a WRITE or READ.
type RETH struct {
	VA     uint64 // virtual address at the responder
	RKey   uint32
	Length uint32 // of the whole message, in bytes
}

func (h *RETH) put(b *[RETHLen]byte) {
	binary.BigEndian.PutUint64(b[0:], h.VA)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint32(b[12:], h.Length)
}

func (h *RETH) get(b *[RETHLen]byte) {
	h.VA = binary.BigEndian.Uint64(b[0:])
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.Length = binary.BigEndian.Uint32(b[12:])
}

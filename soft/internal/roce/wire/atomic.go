package wire

import "encoding/binary"

const (
	// AtomicETHLen is the length of the atomic extended transport header in bytes.
	AtomicETHLen = 28
	// AtomicAckLen is the length of the atomic acknowledge extended transport
	// header in bytes (IBTA 9.3): the value that the memory held before.
	AtomicAckLen = 8
)

// AtomicETH is the atomic extended transport header (IBTA 9.3).
type AtomicETH struct {
	VA      uint64 // virtual address at the responder
	RKey    uint32
	SwapAdd uint64 // the value to swap in, or the value to add
	Compare uint64 // of compare-and-swap only
}

func (h *AtomicETH) put(b *[AtomicETHLen]byte) {
	binary.BigEndian.PutUint64(b[0:], h.VA)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint64(b[12:], h.SwapAdd)
	binary.BigEndian.PutUint64(b[20:], h.Compare)
}

func (h *AtomicETH) get(b *[AtomicETHLen]byte) {
	h.VA = binary.BigEndian.Uint64(b[0:])
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.SwapAdd = binary.BigEndian.Uint64(b[12:])
	h.Compare = binary.BigEndian.Uint64(b[20:])
}

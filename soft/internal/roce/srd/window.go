package srd

import "github.com/verbena-rdma/verbena/soft/internal/roce/wire"

// window has a bit for each of windowBits consecutive sequence numbers, indexed by their lower
// bits.
type window [windowBits / 64]uint64

func (w *window) word(psn uint32) *uint64 { return &w[psn>>6&(windowBits/64-1)] }
func (w *window) set(psn uint32)          { *w.word(psn) |= 1 << (psn & 63) }
func (w *window) clear(psn uint32)        { *w.word(psn) &^= 1 << (psn & 63) }
func (w *window) has(psn uint32) bool     { return *w.word(psn)>>(psn&63)&1 != 0 }

// clearRange clears the bits from one sequence number up to, but not including, another.
func (w *window) clearRange(from, to uint32) {
	n := wire.PSNDiff(to, from)
	if n >= windowBits {
		*w = window{}
		return
	}
	for from != to {
		if from&63 == 0 && wire.PSNDiff(to, from) >= 64 {
			*w.word(from) = 0
			from = wire.PSNAdd(from, 64)
			continue
		}
		w.clear(from)
		from = wire.PSNAdd(from, 1)
	}
}

//go:build !race

package dma

import "golang.org/x/sys/cpu"

// pieceLen is how much is copied with one instruction: the runtime cannot preempt it.
const pieceLen = 64 << 10

// copyLong copies src to dst, which has no more bytes, with the processor's instruction for that
// where it is a fast one (ERMS: AMD64 Architecture Programmer's Manual volume 3, MOVS; Intel 64 and
// IA-32 Architectures Software Developer's Manual volume 1, 7.3.9.3). It writes whole cache lines
// without having read them, which the runtime's loop does not; and it copies upwards.
func copyLong(dst, src []byte) {
	if !cpu.X86.HasERMS || overlap(dst, src) {
		copy(dst, src)
		return
	}
	for at := 0; at < len(dst); at += pieceLen {
		repMovs(&dst[at], &src[at], min(pieceLen, len(dst)-at))
	}
}

// repMovs copies n bytes upwards.
//
//go:noescape
func repMovs(dst, src *byte, n int)

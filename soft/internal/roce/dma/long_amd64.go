//go:build !race

package dma

import "golang.org/x/sys/cpu"

// pieceLen is how many bytes one instruction copies: the runtime cannot preempt it.
const pieceLen = 64 << 10

// copyLong copies len(dst) bytes of src to dst. It uses the processor's string move where that
// is fast (ERMS: AMD64 Architecture Programmer's Manual volume 3, MOVS; Intel 64 and IA-32
// Architectures Software Developer's Manual volume 1, 7.3.9.3). Unlike the runtime's loop,
// that writes whole cache lines without reading them first. It copies upwards.
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

//go:build !race

package dma

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// pieceLen is how many bytes one instruction copies: the runtime cannot preempt it.
const pieceLen = 64 << 10

// copyLong copies len(dst) bytes of src to dst. It uses the processor's string move where that
// is fast (ERMS: AMD64 Architecture Programmer's Manual volume 3, MOVS; Intel 64 and IA-32
// Architectures Software Developer's Manual volume 1, 7.3.9.3). Unlike the runtime's loop,
// that writes whole cache lines without reading them first. It copies upwards.
func copyLong(dst, src []byte) {
	if !cpu.X86.HasERMS || movesSlowly(dst, src) || overlap(dst, src) {
		copy(dst, src)
		return
	}
	for at := 0; at < len(dst); at += pieceLen {
		repMovs(&dst[at], &src[at], min(pieceLen, len(dst)-at))
	}
}

// movesSlowly reports whether, by their places in their pages, dst begins less than 16 bytes after
// src. Processors of AMD then take the string move for one that overlaps: it is 16 times as slow
// (measured).
func movesSlowly(dst, src []byte) bool {
	d, s := uintptr(unsafe.Pointer(&dst[0])), uintptr(unsafe.Pointer(&src[0]))
	after := (d - s) % 4096
	return after > 0 && after < 16
}

// repMovs copies n bytes upwards.
//
//go:noescape
func repMovs(dst, src *byte, n int)

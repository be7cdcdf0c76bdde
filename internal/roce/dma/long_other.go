//go:build !race && !amd64

package dma

func copyLong(dst, src []byte) int { return copy(dst, src) }

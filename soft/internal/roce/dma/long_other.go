//go:build !race && !amd64

package dma

func copyLong(dst, src []byte) { copy(dst, src) }

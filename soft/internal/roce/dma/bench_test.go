package dma

import (
	"fmt"
	"testing"
)

// Copy beside the built-in, in pieces of 64 KiB.
func BenchmarkCopy(b *testing.B) {
	const piece = 64 << 10
	for _, total := range []int{piece, 1 << 20, 32 << 20} {
		dst, src := make([]byte, total+8), make([]byte, total)
		for name, move := range map[string]func(dst, src []byte){
			"Copy": func(dst, src []byte) { Copy(dst, src) }, "built-in": func(dst, src []byte) { copy(dst, src) },
			"Copy 8 bytes further": func(dst, src []byte) { Copy(dst[8:8+len(src)], src) },
		} {
			b.Run(fmt.Sprintf("%d KiB/%s", total>>10, name), func(b *testing.B) {
				b.SetBytes(int64(total))
				for b.Loop() {
					for at := 0; at < total; at += piece {
						move(dst[at:at+piece+8], src[at:at+piece])
					}
				}
			})
		}
	}
}

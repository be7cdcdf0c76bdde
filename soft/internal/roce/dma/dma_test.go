package dma

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCopy(t *testing.T) {
	src := make([]byte, 70)
	for i := range src {
		src[i] = byte(i + 1)
	}
	for n := range len(src) {
		dst := make([]byte, len(src))
		assert.Equal(t, NoFault, Copy(dst, src[:n]))
		assert.True(t, bytes.Equal(dst[:n], src[:n]))
		assert.Equal(t, make([]byte, len(src)-n), dst[n:])
		assert.Equal(t, NoFault, Copy(dst[:n], src))
	}
}

// Long copies are done in another way, and come to the same, also where both share memory.
func TestCopyLong(t *testing.T) {
	memory := make([]byte, 1<<20)
	for i := range memory {
		memory[i] = byte(i ^ i>>8)
	}
	for _, n := range []int{16<<10 - 1, 16 << 10, 16<<10 + 1, 64 << 10, 64<<10 + 7, 200<<10 + 3} {
		for _, distance := range []int{1, 64, n - 1, n, n + 5, 300 << 10, 300<<10 + 8} {
			for _, up := range []bool{true, false} {
				from, to := 3, 3+distance
				if !up {
					from, to = to, from
				}
				want, got := bytes.Clone(memory), bytes.Clone(memory)
				copy(want[to:to+n], want[from:])
				assert.Equal(t, NoFault, Copy(got[to:to+n], got[from:]))
				assert.True(t, bytes.Equal(want, got), "%d bytes from %d to %d", n, from, to)
			}
		}
	}
}

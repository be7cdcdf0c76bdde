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
		assert.Equal(t, n, Copy(dst, src[:n]))
		assert.True(t, bytes.Equal(dst[:n], src[:n]))
		assert.Equal(t, make([]byte, len(src)-n), dst[n:])
		assert.Equal(t, n, Copy(dst[:n], src))
	}
}

func TestStore(t *testing.T) {
	var v uint64
	Store(&v, 42)
	assert.Equal(t, uint64(42), v)
}

package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestPSN(t *testing.T) {
	assert.Equal(t, uint32(0), PSNAdd(0xffffff, 1))
	assert.Equal(t, uint32(0xffffff), PSNAdd(0, -1))
	assert.Equal(t, uint32(5), PSNAdd(5, 1<<24))
	assert.Equal(t, int32(1), PSNDiff(0, 0xffffff))
	assert.Equal(t, int32(-1), PSNDiff(0xffffff, 0))
	assert.Equal(t, int32(1<<23-1), PSNDiff(0x7fffff, 0))
	assert.Equal(t, int32(-1<<23), PSNDiff(0x800000, 0))
	assert.Equal(t, int32(0), PSNDiff(0x01000007, 7), "upper bits do not count")
}

func TestPSNAddUndoesDiff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		psn := rapid.Uint32Range(0, PSNMask)
		a, b := psn.Draw(t, "a"), psn.Draw(t, "b")
		assert.Equal(t, a, PSNAdd(b, int(PSNDiff(a, b))))
		assert.LessOrEqual(t, PSNAdd(a, rapid.Int().Draw(t, "n")), uint32(PSNMask))
	})
}

package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAtomicETHBytes(t *testing.T) {
	h := AtomicETH{VA: 0x0102030405060708, RKey: 0x090a0b0c, SwapAdd: 0x1112131415161718, Compare: 0x2122232425262728}
	var b [AtomicETHLen]byte
	h.put(&b)
	assert.Equal(t, unhex(t, "0102030405060708 090a0b0c 1112131415161718 2122232425262728"), b[:])
	var back AtomicETH
	back.get(&b)
	assert.Equal(t, h, back)
}

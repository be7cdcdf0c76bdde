package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRETHBytes(t *testing.T) {
	h := RETH{VA: 0x0102030405060708, RKey: 0x090a0b0c, Length: 0x0d0e0f10}
	var b [RETHLen]byte
	h.put(&b)
	assert.Equal(t, unhex(t, "0102030405060708 090a0b0c 0d0e0f10"), b[:])
	var back RETH
	back.get(&b)
	assert.Equal(t, h, back)
}

package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestDETHBytes(t *testing.T) {
	h := DETH{QKey: 0x80010203, SrcQP: 0xff040506}
	var b [DETHLen]byte
	h.put(&b)
	assert.Equal(t, unhex(t, "80010203 00 040506"), b[:])
	var back DETH
	b[4] = 0xff // reserved
	back.get(&b)
	assert.Equal(t, DETH{QKey: 0x80010203, SrcQP: 0x040506}, back)
}

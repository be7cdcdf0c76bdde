package mt19937

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The standard says what the 10,000th number of a default-constructed engine is (ISO/IEC
// 14882, rand.predef): its seed is 5489.
func TestTenThousandth(t *testing.T) {
	s := New(5489)
	var last uint64
	for range 10_000 {
		last = s.Uint64()
	}
	assert.Equal(t, uint64(9981545732273789042), last)
}

func TestFill(t *testing.T) {
	p := make([]byte, 20)
	New(7).Fill(p)
	s := New(7)
	assert.Equal(t, s.Uint64(), binary.LittleEndian.Uint64(p))
	assert.Equal(t, s.Uint64(), binary.LittleEndian.Uint64(p[8:]))
	assert.Equal(t, uint32(s.Uint64()), binary.LittleEndian.Uint32(p[16:]))
}

package sample

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPattern(t *testing.T) {
	for _, n := range []int{minPattern, 17, 23, 24, 25, 4096, 100_003} {
		s := Session{size: n, sized: true}
		want := s.Payload()
		require.Len(t, want, n)
		assert.Equal(t, n, s.Capacity())
		// In memory that is larger, whatever comes behind.
		for _, mem := range [][]byte{want, append(bytes.Clone(want), 1, 2, 3), append(bytes.Clone(want), make([]byte, 10)...)} {
			got, err := Verify(mem)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		}
		// One wrong bit anywhere.
		for _, i := range []int{0, 1, 7, 8, 15, n / 2, n - 1} {
			bad := bytes.Clone(want)
			bad[i] ^= 0x10
			_, err := Verify(bad)
			require.Error(t, err, "byte %d of %d", i, n)
		}
		_, err := Verify(want[:n-1])
		require.Error(t, err)
	}
}

// Few bytes are text, none are right only where they are asked for.
func TestFewBytes(t *testing.T) {
	for n := range minPattern {
		s := Session{size: n, sized: true}
		want := s.Payload()
		require.Len(t, want, n)
		got, err := s.Verify(want)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, s := range []*Session{{}, {size: 1, sized: true}} {
		_, err := s.Verify(nil)
		require.ErrorContains(t, err, "no data")
	}
	none := Session{sized: true}
	_, err := none.Verify([]byte{0})
	require.ErrorContains(t, err, "no data")
}

func TestText(t *testing.T) {
	s := Session{text: "Grüße"}
	assert.Equal(t, []byte("Grüße"), s.Payload())
	assert.Equal(t, Room, s.Capacity())
	got, err := Verify([]byte("Grüße\x00\x00rest"))
	require.NoError(t, err)
	assert.Equal(t, "Grüße", string(got))
	for _, bad := range [][]byte{nil, {0}, make([]byte, 100), {0xff, 0xfe}, []byte("a\xc3")} {
		_, err := Verify(bad)
		require.Error(t, err, "%q", bad)
	}
	assert.Equal(t, `"abc" (3 bytes, CRC-32C 364b3fb7)`, Describe([]byte("abc")))
}

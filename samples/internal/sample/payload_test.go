package sample

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A text is what stands before the first zero byte, and nothing else is taken for one.
func TestText(t *testing.T) {
	for mem, want := range map[string]string{"Grüße": "Grüße", "Grüße\x00\x00rest": "Grüße", "a": "a"} {
		got, err := verify([]byte(mem))
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	for _, bad := range [][]byte{nil, {0}, make([]byte, 100)} {
		_, err := verify(bad)
		require.ErrorContains(t, err, "no data", "%q", bad)
	}
	for _, bad := range [][]byte{{0xff, 0xfe}, []byte("a\xc3"), {0xff, 'a', 0}} {
		_, err := verify(bad)
		require.ErrorContains(t, err, "not valid text", "%q", bad)
	}
	assert.Equal(t, `"abc" (3 bytes, CRC-32C 364b3fb7)`, Describe([]byte("abc")))
}

func TestShow(t *testing.T) {
	s, out := newSession(t, requesterProgram, nil)
	require.NoError(t, s.Show([]byte("abc\x00"), "received: %s, immediate %d", 7))
	assert.Equal(t, "received: \"abc\" (3 bytes, CRC-32C 364b3fb7), immediate 7\n", out.String())
	require.Error(t, s.Show(nil, "received: %s"))
}

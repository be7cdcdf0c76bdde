package mad

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// golden returns the MADs of foreign origin in testdata, by file name.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.hex")
	require.NoError(t, err)
	all := map[string][]byte{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		require.NoError(t, err, name)
		all[filepath.Base(name)] = b
	}
	return all
}

// TestGolden decodes MADs that other implementations have sent and encodes them
// again, byte for byte (testdata/README.md says how to add one).
func TestGolden(t *testing.T) {
	for name, b := range golden(t) {
		t.Run(name, func(t *testing.T) {
			h, err := DecodeHeader(b)
			require.NoError(t, err)
			kind, _, _ := strings.Cut(strings.TrimSuffix(name, ".hex"), "-")
			assert.Equal(t, strings.ToLower(h.Attribute.String()), kind, "the file is named for its message")
			m := blank[h.Attribute]()
			require.NoError(t, m.Decode(b))
			var again [Len]byte
			require.NoError(t, m.Encode(&again))
			assert.Equal(t, hex.Dump(b), hex.Dump(again[:]))
		})
	}
}

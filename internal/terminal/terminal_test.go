package terminal

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPrintable(t *testing.T) {
	assert.Equal(t, "a\ufffd[2Jb\tc\n\ufffd\ufffdé", Printable("a\x1b[2Jb\tc\n\r\xffé"))
}

func TestNoTerminal(t *testing.T) {
	assert.False(t, Is(new(bytes.Buffer)))
	for _, name := range []string{os.DevNull, t.TempDir()} { // the first is a character device
		f, err := os.Open(name)
		require.NoError(t, err)
		assert.False(t, Is(f))
		assert.False(t, Colours(f))
		require.NoError(t, f.Close())
	}
}

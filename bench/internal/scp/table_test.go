package scp

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTable(t *testing.T) {
	ms := func(elapsed, sender, receiver time.Duration) figures {
		return figures{elapsed * time.Millisecond, sender * time.Millisecond, receiver * time.Millisecond}
	}
	results := [2][]figures{
		{ms(2000, 500, 700), ms(1000, 400, 600)},
		{ms(4000, 3000, 0), ms(8000, 5000, 0)},
	}
	assert.Equal(t, `300 MiB, seconds; medians of 2 rounds:

| | time | MiB a second | each round | processor time: sender | receiver |
|---|---|---|---|---|---|
| `+"`verbena send`"+` | 1.50 | 200 | 2.00 1.00 | 0.45 | 0.65 |
| `+"`scp`"+` | 6.00 | 50 | 4.00 8.00 | 4.00 | 1.25 |

scp takes 4.00 times as long, by the medians; in each round: 2.00 8.00.
`, table(300<<20, results, 1250*time.Millisecond))
}

// A file is as long as asked for, and what was hashed is what it has.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	sum, err := writeFile(name, 100_001)
	require.NoError(t, err)
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.Equal(t, int64(100_001), info.Size())
	again, err := hashFile(name)
	require.NoError(t, err)
	assert.Equal(t, sum, again)
	require.NoError(t, os.WriteFile(name, []byte("another"), 0o600))
	other, err := hashFile(name)
	require.NoError(t, err)
	assert.NotEqual(t, sum, other)
	_, err = writeFile(name, 1)
	require.ErrorIs(t, err, os.ErrExist)
}

func TestListening(t *testing.T) {
	address, err := listening(bufio.NewReader(strings.NewReader(`{"event":"secret"}` + "\n" + `{"event":"listening","address":"127.0.0.1:7470"}` + "\n")))
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:7470", address)
	_, err = listening(bufio.NewReader(strings.NewReader(`{"event":"error"}` + "\n")))
	require.ErrorContains(t, err, "before it listened")
	_, err = listening(bufio.NewReader(strings.NewReader("hello\n")))
	require.ErrorContains(t, err, "hello")
}

func TestFind(t *testing.T) {
	_, err := find("no-such-program", "its-package")
	require.ErrorContains(t, err, "its-package")
	path, err := find("go", "golang")
	require.NoError(t, err)
	assert.True(t, filepath.IsAbs(path))
}

package descriptor

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// namesIn lists a folder.
func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestFileRoundTrip(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "conn.desc")
	require.NoError(t, os.WriteFile(path, []byte("old and readable by all"), 0o644))

	b := mustEncode(t, Connection, []byte("hello"))
	for _, form := range [][]byte{b, []byte(Armor(b))} {
		require.NoError(t, WriteFile(path, form))
		got, err := ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, form, got)
		assert.Equal(t, []string{"conn.desc"}, namesIn(t, dir))
		if runtime.GOOS != "windows" {
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, fs.FileMode(0o600), info.Mode())
		}
	}
}

func TestWriteFileLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	require.Error(t, WriteFile(filepath.Join(dir, strings.Repeat("x", 300)), []byte("b")), "the name is too long for the rename")
	assert.Empty(t, namesIn(t, dir))

	err := WriteFile(filepath.Join(dir, "missing", "file"), []byte("b"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.Empty(t, namesIn(t, dir))

	path := filepath.Join(dir, "file")
	require.NoError(t, WriteFile(path, []byte("kept")))
	require.ErrorIs(t, WriteFile(path, make([]byte, MaxFile+1)), ErrTooBig)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "kept", string(got))
	assert.Equal(t, []string{"file"}, namesIn(t, dir))
}

func TestReadersSeeAllOrNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	one, two := bytes.Repeat([]byte("1"), 50_000), bytes.Repeat([]byte("2"), 30_000)
	require.NoError(t, WriteFile(path, one))
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 50 {
			assert.NoError(t, WriteFile(path, two))
			assert.NoError(t, WriteFile(path, one))
		}
	})
	for range 300 {
		b, err := ReadFile(path)
		if !assert.NoError(t, err) {
			break
		}
		if !bytes.Equal(b, one) && !bytes.Equal(b, two) {
			t.Errorf("a reader saw %d bytes that nobody wrote", len(b))
			break
		}
	}
	wg.Wait()
}

func TestReadFileErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadFile(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.Contains(t, err.Error(), "missing")

	_, err = ReadFile(dir)
	require.ErrorIs(t, err, ErrFile)
	require.ErrorIs(t, WriteFile(dir, []byte("b")), ErrFile)

	big := filepath.Join(dir, "big")
	require.NoError(t, os.WriteFile(big, make([]byte, MaxFile+1), 0o600))
	_, err = ReadFile(big)
	require.ErrorIs(t, err, ErrTooBig)
	require.NoError(t, os.Truncate(big, MaxFile))
	b, err := ReadFile(big)
	require.NoError(t, err)
	assert.Len(t, b, MaxFile)
}

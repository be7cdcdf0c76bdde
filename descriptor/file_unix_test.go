//go:build unix

package descriptor

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A pipe without a writer would hold its reader up for ever.
func TestPipesAndDevicesAreRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink("/dev/null", link))
	for _, path := range []string{pipe, "/dev/null", "/dev/zero", link} {
		before, err := os.Lstat(path)
		require.NoError(t, err)
		_, err = ReadFile(path)
		require.ErrorIs(t, err, ErrFile)
		require.ErrorIs(t, WriteFile(path, []byte("b")), ErrFile)
		after, err := os.Lstat(path)
		require.NoError(t, err)
		assert.Equal(t, before.Mode(), after.Mode(), "%s is as it was", path)
	}
}

func TestLinksToFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(target, []byte("theirs"), 0o644))
	require.NoError(t, os.Symlink(target, link))
	b, err := ReadFile(link)
	require.NoError(t, err)
	assert.Equal(t, "theirs", string(b))

	require.NoError(t, WriteFile(link, []byte("ours")))
	info, err := os.Lstat(link)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode())
	b, err = os.ReadFile(target)
	require.NoError(t, err)
	assert.Equal(t, "theirs", string(b))
}

package tree

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Directories are exchanged while one is completed. The other gets neither its permissions nor its
// time.
func TestDirSwappedWhileCompleted(t *testing.T) {
	d, dir := openDest(t, Refuse)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	open := func(path string, mode fs.FileMode) *os.File {
		require.NoError(t, os.Mkdir(path, 0o700))
		f, err := os.Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, f.Close()) })
		require.NoError(t, f.Chmod(mode))
		return f
	}
	made, theirs := open(a, 0o755), open(b, 0o700)
	id, err := identify(d.folder.root, "a")
	require.NoError(t, err)
	var swapper sync.WaitGroup
	stop := make(chan struct{})
	defer swapper.Wait()
	defer close(stop)
	swapper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	})
	for range 500 {
		require.NoError(t, d.claim("a", id, me))
		_ = d.CompleteDir("a", 0o500, when, me) // may see that it was replaced
		info, err := theirs.Stat()
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
		require.False(t, info.ModTime().Equal(when))
		require.NoError(t, made.Chmod(0o755))
	}
}

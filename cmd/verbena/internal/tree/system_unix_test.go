//go:build linux || darwin

package tree

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// To read the umask changes it for a moment, so it is read before there are sessions.
func TestUmaskIsReadFirst(t *testing.T) {
	system, read := umask, false
	t.Cleanup(func() { umask = system })
	umask = sync.OnceValue(func() fs.FileMode { read = true; return system() })
	openDest(t, Refuse)
	assert.True(t, read)
}

// The system uses the inode of a removed directory again. The time of birth differs.
func TestIdentityOfReusedInodes(t *testing.T) {
	d, dir := openDest(t, Refuse)
	at := filepath.Join(dir, "d")
	birth := func() [8]byte {
		t.Helper()
		require.NoError(t, os.Mkdir(at, 0o700))
		id, err := identify(d.folder.root, "d")
		require.NoError(t, err)
		info, err := os.Lstat(at)
		require.NoError(t, err)
		if born, err := birthTime(d.folder.root, "d", info.Sys().(*syscall.Stat_t)); err != nil || born == 0 {
			t.Skip("this file system records no time of birth: ", err)
		}
		require.NoError(t, os.Remove(at))
		return [8]byte(id[16:])
	}
	first := birth()
	for began := time.Now(); birth() == first; time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(began), 2*time.Minute)
	}
}

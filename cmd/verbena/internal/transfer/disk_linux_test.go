package transfer

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a disk of so many bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		if os.Getenv("CI") == "true" {
			require.NoError(t, err, "mount a small disk")
		}
		t.Skip("only root may mount a small disk: ", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// limitFiles has a process write files of so many bytes at most.
func limitFiles(t *testing.T, pid, size int) {
	t.Helper()
	limit := unix.Rlimit{Cur: uint64(size), Max: uint64(size)}
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_FSIZE, &limit, nil))
}

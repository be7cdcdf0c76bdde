//go:build linux || darwin

package tree

import (
	"os"

	"golang.org/x/sys/unix"
)

const errQuota = unix.EDQUOT

func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func freeBytes(f *os.File) int64 {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return -1
	}
	free := uint64(s.Bavail) * uint64(s.Bsize)
	return int64(min(free, 1<<62))
}

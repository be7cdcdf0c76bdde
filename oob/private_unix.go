//go:build unix

package oob

import (
	"io/fs"
	"os"
	"syscall"
)

// private reports whether a folder belongs to this user and no other user can write to it.
func private(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid() && info.Mode().Perm()&0o022 == 0
}

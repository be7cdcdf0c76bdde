//go:build !linux && !darwin

package tree

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

const (
	errQuota = syscall.ENOSPC
	nonblock = 0
)

func lockFile(*os.File) error      { return nil }
func freeBytes(*os.File) int64     { return -1 }
func checkOwner(fs.FileInfo) error { return nil } // this system has no Unix permissions
func umask() fs.FileMode           { return 0 }

func identify(*os.Root, string) (identity, error) { return identity{}, nil }

func byteAt(f *os.File, offset int64) (has bool, err error) {
	n, err := f.ReadAt(make([]byte, 1), offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n > 0, err
}

func chmod(dir *os.Root, name string, _ fs.FileInfo, mode fs.FileMode) error {
	return dir.Chmod(name, mode)
}

func (d *Dest) move(from, to string, replace bool) error {
	return d.folder.in(to, func(dir *os.Root, name string) error {
		if _, err := dir.Lstat(name); err == nil && !replace {
			return fs.ErrExist
		}
		return d.folder.root.Rename(WorkDir+"/"+from, to)
	})
}

//go:build linux || darwin

package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	errQuota = unix.EDQUOT
	nonblock = unix.O_NONBLOCK
)

func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func freeBytes(f *os.File) int64 {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return -1
	}
	free := uint64(s.Bavail) * uint64(s.Bsize)
	return int64(min(free, 1<<62))
}

// checkOwner fails unless a directory belongs to this user, and no other user may write to it.
func checkOwner(dir fs.FileInfo) error {
	const others = 0o022
	if stat, ok := dir.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, and this program runs as user %d", stat.Uid, os.Geteuid())
	}
	if mode := dir.Mode().Perm(); mode&others != 0 {
		return fmt.Errorf("other users may write to it (mode %04o)", mode)
	}
	return nil
}

// identify returns the identity of a directory entry.
func identify(in *os.Root, name string) (id identity, err error) {
	info, err := in.Lstat(name)
	if err != nil {
		return id, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return id, nil
	}
	binary.BigEndian.PutUint64(id[0:], uint64(stat.Dev))
	binary.BigEndian.PutUint64(id[8:], stat.Ino)
	birth, err := birthTime(in, name, stat)
	binary.BigEndian.PutUint64(id[16:], uint64(birth))
	return id, err
}

// byteAt reports whether a file has a byte at an offset. It does not block.
func byteAt(f *os.File, offset int64) (has bool, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		for {
			if n, failed = unix.Pread(int(fd), b[:], offset); !errors.Is(failed, unix.EINTR) {
				return true
			}
		}
	})
	return n > 0, errors.Join(err, failed)
}

// umask returns the permissions that new files and directories of this process do not get.
var umask = sync.OnceValue(func() fs.FileMode {
	mask := unix.Umask(0o077) // the system tells it only when it is set
	unix.Umask(mask)
	return fs.FileMode(mask)
})

// move moves a file from the work folder to its name. Unless replace is set, it fails with
// fs.ErrExist if the name exists.
func (d *Dest) move(from, to string, replace bool) error {
	return d.folder.in(to, func(dir *os.Root, name string) error {
		target, err := dir.Open(".")
		if err != nil {
			return err
		}
		defer target.Close()
		work, at := int(d.lock.Fd()), int(target.Fd())
		if !replace {
			err := renameNew(work, from, at, name)
			if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, unix.EINVAL) {
				return err
			}
			// This file system cannot check and rename in one step.
			if _, err := dir.Lstat(name); err == nil {
				return fs.ErrExist
			}
		}
		return unix.Renameat(work, from, at, name)
	})
}

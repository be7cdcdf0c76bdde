package tree

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func renameNew(from int, name string, to int, as string) error {
	return unix.RenameatxNp(from, name, to, as, unix.RENAME_EXCL)
}

// chmod sets the permissions of the file or directory under a name, and of no symbolic link's
// target. This user may have no permission to read it.
func chmod(dir *os.Root, name string, _ fs.FileInfo, mode fs.FileMode) error {
	at, err := dir.Open(".")
	if err != nil {
		return err
	}
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetgid != 0 {
		bits |= unix.S_ISGID
	}
	if mode&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return errors.Join(unix.Fchmodat(int(at.Fd()), name, bits, unix.AT_SYMLINK_NOFOLLOW), at.Close())
}

// birthTime returns when a file or directory was made, in nanoseconds.
func birthTime(_ *os.Root, _ string, stat *syscall.Stat_t) (int64, error) {
	return stat.Birthtimespec.Nano(), nil
}

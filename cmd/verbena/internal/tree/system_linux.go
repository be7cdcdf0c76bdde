package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func renameNew(from int, name string, to int, as string) error {
	return unix.Renameat2(from, name, to, as, unix.RENAME_NOREPLACE)
}

// chmod sets the permissions of the file or directory that was seen under a name. This user may
// have no permission to read it.
func chmod(dir *os.Root, name string, seen fs.FileInfo, mode fs.FileMode) error {
	f, err := openFile(dir, name, unix.O_PATH, seen)
	if err != nil {
		return err
	}
	// O_PATH allows no fchmod(2), and fchmodat2(2) is of Linux 6.6.
	return errors.Join(os.Chmod(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), mode), f.Close())
}

// birthTime returns when a file or directory was made, in nanoseconds, or zero if the system does
// not report it. This user may have no permission to read it, or the directory that it is in.
func birthTime(in *os.Root, name string, _ *syscall.Stat_t) (int64, error) {
	at, err := in.OpenFile(".", unix.O_PATH, 0)
	if err != nil {
		return 0, err
	}
	defer at.Close()
	var stat unix.Statx_t
	err = unix.Statx(int(at.Fd()), name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &stat)
	if err != nil || stat.Mask&unix.STATX_BTIME == 0 {
		return 0, nil
	}
	return stat.Btime.Sec*1e9 + int64(stat.Btime.Nsec), nil
}

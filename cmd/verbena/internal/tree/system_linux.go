package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

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

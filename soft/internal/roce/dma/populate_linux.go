package dma

import (
	"os"

	"golang.org/x/sys/unix"
)

// Populate brings in the pages of the memory, for writing if write is true. It reports false if they
// cannot be accessed so. It does nothing before Linux 5.14.
func (f Far) Populate(write bool) bool {
	if f.Len == 0 {
		return true
	}
	advice := uintptr(unix.MADV_POPULATE_READ)
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	first := f.Base &^ uintptr(os.Getpagesize()-1)
	_, _, err := unix.Syscall(unix.SYS_MADVISE, first, f.Base+f.Len-first, advice)
	if err == unix.EINVAL { // the pages have another protection, or the system does not know the advice
		_, _, err = unix.Syscall(unix.SYS_MADVISE, first, 0, advice)
		return err != 0
	}
	return err == 0
}

package local

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// file is what holds memory.
type file struct{ *os.File }

const (
	// resizeSeals keep a file as long as it is.
	resizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	// shownSeals are those of memory that others may only read: a descriptor that was
	// opened for reading could be opened again for writing.
	shownSeals = resizeSeals | unix.F_SEAL_FUTURE_WRITE
	// maxShownLen is the longest memory that is mapped.
	maxShownLen = 1 << 42
)

// AllocMemory makes memory of at least that many bytes that can be shown to other processes.
// It is zero, and begins at a page. All of its pages are allocated, as peers ask for.
func AllocMemory(size int) (*Memory, error) {
	page := os.Getpagesize()
	length := (size + page - 1) &^ (page - 1)
	fd, mem, err := newFile("verbena memory", length, shownSeals)
	if err != nil {
		return nil, err
	}
	if err := allocate(fd, length); err != nil {
		unmap(mem)
		_ = unix.Close(fd)
		return nil, err
	}
	return &Memory{Bytes: mem[:size:length], file: file{os.NewFile(uintptr(fd), "memory")}}, nil
}

// allocate allocates the pages of a file in memory. A signal, such as a profiler's, undoes what
// one call has allocated, so no call takes long.
func allocate(fd, length int) error {
	const step = 4 << 20
	for at := 0; at < length; {
		switch err := unix.Fallocate(fd, 0, int64(at), int64(min(step, length-at))); err {
		case nil:
			at += step
		case unix.EINTR:
		default:
			return fmt.Errorf("allocate %d bytes of memory: %w", length, os.NewSyscallError("fallocate", err))
		}
	}
	return nil
}

// checkAllocated checks that all pages of a sealed file in memory are allocated, and so charged to
// another process: to read a missing one through a mapping allocates it, at the cost of the
// reader. The seals keep them allocated: F_SEAL_FUTURE_WRITE forbids to punch holes.
func checkAllocated(fd int, length int64) error {
	// Pages behind the end count too. This frees them, and F_SEAL_GROW keeps others from being
	// allocated there.
	if err := unix.Ftruncate(fd, length); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if allocated := stat.Blocks * 512; allocated < length {
		return fmt.Errorf("of %d bytes of memory %d are allocated, all must be", length, allocated)
	}
	return nil
}

// Free ends the use of memory in this process.
func (m *Memory) Free() error {
	mem := m.Bytes[:cap(m.Bytes)]
	m.Bytes = nil
	_ = m.file.Close()
	return os.NewSyscallError("munmap", unix.Munmap(mem))
}

// newFile makes a file in memory, maps it, and seals it.
func newFile(name string, length, seals int) (fd int, mem []byte, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, os.NewSyscallError("memfd_create", err)
	}
	if err := unix.Ftruncate(fd, int64(length)); err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("make a file of %d bytes in memory: %w", length, os.NewSyscallError("ftruncate", err))
	}
	mem, err = unix.Mmap(fd, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("map %d bytes: %w", length, os.NewSyscallError("mmap", err))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Munmap(mem)
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("seal a file in memory: %w", os.NewSyscallError("fcntl F_ADD_SEALS", err))
	}
	return fd, mem, nil
}

// sealed sees that a file has the seals, so that it cannot be cut short, which would end a
// process that reads what is missing. It returns the length.
func sealed(fd, seals int) (int64, error) {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", os.NewSyscallError("fcntl F_GET_SEALS", err), ErrDisorder)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != unix.TMPFS_MAGIC { // of huge pages there may be none left to read
		return 0, fmt.Errorf("a file of file system %#x, ordinary memory is needed: %w", fs.Type, ErrDisorder)
	}
	if have&seals != seals {
		return 0, fmt.Errorf("a file in memory has the seals %#x, %#x are needed: %w", have, seals, ErrDisorder)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return stat.Size, nil
}

// mapShown maps memory of another process, for reading.
func mapShown(fd int) ([]byte, error) {
	n, err := sealed(fd, shownSeals)
	if err != nil {
		return nil, err
	}
	if n <= 0 || n > maxShownLen {
		return nil, fmt.Errorf("memory of %d bytes: %w", n, ErrDisorder)
	}
	if err := checkAllocated(fd, n); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// mapShared maps the rings that a dialler has made.
func mapShared(fd int) ([]byte, error) {
	n, err := sealed(fd, resizeSeals)
	if err != nil {
		return nil, err
	}
	if n != sharedLen {
		return nil, fmt.Errorf("rings of %d bytes, %d are needed: %w", n, sharedLen, ErrDisorder)
	}
	mem, err := unix.Mmap(fd, 0, sharedLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

func unmap(mem []byte) {
	if mem != nil {
		_ = unix.Munmap(mem)
	}
}

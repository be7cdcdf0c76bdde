package local

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// file is the file behind a memory.
type file struct{ *os.File }

const (
	// resizeSeals fix the length of a file.
	resizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	// exportSeals are for memory that others may only read. Opening it for reading is not
	// enough: such a descriptor can be opened again for writing.
	exportSeals = resizeSeals | unix.F_SEAL_FUTURE_WRITE
	// maxExportLen is the longest memory that is mapped.
	maxExportLen = 1 << 42
)

// AllocMemory allocates memory of at least size bytes that can be exported to other processes.
// It is zeroed, and starts at a page. All of its pages are allocated, since peers check that.
func AllocMemory(size int) (*Memory, error) {
	page := os.Getpagesize()
	length := (size + page - 1) &^ (page - 1)
	fd, mem, err := newFile("verbena memory", length, exportSeals)
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

// allocate allocates the pages of a memory file. A signal, such as a profiler's, undoes what
// the interrupted call has allocated, so each call allocates little.
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

// checkAllocated checks that all pages of a sealed memory file are allocated, and so charged
// to another process. Reading a missing page through a mapping would allocate it at the
// reader's cost. The seals keep the pages allocated: F_SEAL_FUTURE_WRITE forbids punching
// holes.
func checkAllocated(fd int, length int64) error {
	// Pages beyond the end count too. This call frees them, and F_SEAL_GROW prevents new ones.
	if err := unix.Ftruncate(fd, length); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if allocated := stat.Blocks * 512; allocated < length {
		return fmt.Errorf("of %d bytes of memory, only %d are allocated", length, allocated)
	}
	return nil
}

// Free unmaps the memory in this process.
func (m *Memory) Free() error {
	mem := m.Bytes[:cap(m.Bytes)]
	m.Bytes = nil
	_ = m.file.Close()
	return os.NewSyscallError("munmap", unix.Munmap(mem))
}

// newFile makes a memory file, maps it, and seals it.
func newFile(name string, length, seals int) (fd int, mem []byte, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, os.NewSyscallError("memfd_create", err)
	}
	if err := unix.Ftruncate(fd, int64(length)); err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("set the size of a memory file to %d bytes: %w", length, os.NewSyscallError("ftruncate", err))
	}
	mem, err = unix.Mmap(fd, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("map %d bytes: %w", length, os.NewSyscallError("mmap", err))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Munmap(mem)
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("seal a memory file: %w", os.NewSyscallError("fcntl F_ADD_SEALS", err))
	}
	return fd, mem, nil
}

// sealed checks that a file has the seals, and returns its length. Without them it could be
// truncated, which would kill a process that reads the missing part.
func sealed(fd, seals int) (int64, error) {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", os.NewSyscallError("fcntl F_GET_SEALS", err), ErrCorrupt)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != unix.TMPFS_MAGIC { // a file of huge pages may have none left to read
		return 0, fmt.Errorf("the file is on file system %#x, not in ordinary memory: %w", fs.Type, ErrCorrupt)
	}
	if have&seals != seals {
		return 0, fmt.Errorf("the memory file has the seals %#x, needs %#x: %w", have, seals, ErrCorrupt)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return stat.Size, nil
}

// mapExport maps memory of another process read-only.
func mapExport(fd int) ([]byte, error) {
	n, err := sealed(fd, exportSeals)
	if err != nil {
		return nil, err
	}
	if n <= 0 || n > maxExportLen {
		return nil, fmt.Errorf("invalid memory length %d: %w", n, ErrCorrupt)
	}
	if err := checkAllocated(fd, n); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

// mapShared maps the rings that a listener made.
func mapShared(fd int) ([]byte, error) {
	n, err := sealed(fd, resizeSeals)
	if err != nil {
		return nil, err
	}
	if n != sharedLen {
		return nil, fmt.Errorf("the memory for the rings has %d bytes, needs %d: %w", n, sharedLen, ErrCorrupt)
	}
	mem, err := unix.Mmap(fd, 0, sharedLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, os.NewSyscallError("mmap", err)
}

func unmap(mem []byte) {
	if mem != nil {
		_ = unix.Munmap(mem)
	}
}

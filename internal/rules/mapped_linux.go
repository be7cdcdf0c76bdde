package rules

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs"
)

// CheckMapped says why memory of this process cannot be registered with that access: part of
// it is not mapped, cannot be read, or cannot be written though access requires it. The error
// matches [syscall.EFAULT], as the kernel's does for adapters (ibv_reg_mr(3)), and
// [verbs.ErrInvalid]. If the system cannot say what is mapped, CheckMapped returns nil.
func CheckMapped(mem []byte, access verbs.Access) error {
	from := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	to, write := from+uint64(len(mem)), access&verbs.AccessLocalWrite != 0
	at, err := accessibleUpTo(from, to, write)
	if err != nil || at >= to {
		return nil
	}
	need, advice := "read", "map it for reading"
	if write {
		need, advice = "read and written", "map it for reading and writing, or register it without AccessLocalWrite"
	}
	return fmt.Errorf("register %d bytes at address %#x: memory at %#x cannot be %s: %s: %w: %w", len(mem), from, at, need, advice, syscall.EFAULT, verbs.ErrInvalid)
}

// accessibleUpTo returns the address up to which the memory between from and to is accessible.
func accessibleUpTo(from, to uint64, write bool) (at uint64, err error) {
	fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if at, err = queriedUpTo(fd, from, to, write); err != unix.ENOTTY {
		return at, errors.Join(err, unix.Close(fd))
	}
	maps := os.NewFile(uintptr(fd), "maps") // before Linux 6.11
	at, err = listedUpTo(maps, from, to, write)
	return at, errors.Join(err, maps.Close())
}

// mapQuery is struct procmap_query of linux/fs.h: it asks for the mapping at an address. A
// query without names takes the time of one system call, however many mappings there are.
type mapQuery struct {
	size, flags, addr                             uint64
	start, end, mapFlags, pageSize, offset, inode uint64
	devMajor, devMinor                            uint32
	nameSize, buildIDSize                         uint32
	nameAddr, buildIDAddr                         uint64
}

const (
	procmapQuery     = 0xc0686611 // PROCMAP_QUERY
	mappingReadable  = 1          // PROCMAP_QUERY_VMA_READABLE
	mappingWriteable = 2          // PROCMAP_QUERY_VMA_WRITABLE
)

// queriedUpTo asks for one mapping after another.
func queriedUpTo(maps int, from, to uint64, write bool) (at uint64, err error) {
	for at = from; at < to; {
		q := mapQuery{flags: mappingReadable, addr: at}
		q.size = uint64(unsafe.Sizeof(q))
		if write {
			q.flags |= mappingWriteable
		}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(maps), procmapQuery, uintptr(unsafe.Pointer(&q)))
		switch errno {
		case 0:
			at = q.end
		case unix.ENOENT: // none, or none with those flags
			return at, nil
		default:
			return at, errno
		}
	}
	return at, nil
}

// listedUpTo reads the list of all mappings (proc_pid_maps(5)).
func listedUpTo(maps io.Reader, from, to uint64, write bool) (at uint64, err error) {
	at = from
	lines := bufio.NewScanner(maps)
	for at < to && lines.Scan() {
		var start, end uint64
		var rights string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &start, &end, &rights); err != nil {
			return at, err
		}
		switch {
		case end <= at:
		case start > at, !strings.HasPrefix(rights, "r"), write && !strings.HasPrefix(rights, "rw"):
			return at, nil
		default:
			at = end
		}
	}
	return at, lines.Err()
}

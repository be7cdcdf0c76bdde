package errno

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// nameOf returns the POSIX name of a Windows error, or nil if it has none.
func nameOf(number syscall.Errno) error {
	switch number {
	case windows.WSAEACCES:
		return syscall.EACCES
	case windows.WSAEADDRINUSE:
		return syscall.EADDRINUSE
	case windows.WSAEADDRNOTAVAIL:
		return syscall.EADDRNOTAVAIL
	case windows.WSAENETUNREACH:
		return syscall.ENETUNREACH
	case windows.WSAEHOSTUNREACH:
		return syscall.EHOSTUNREACH
	case windows.WSAECONNREFUSED:
		return syscall.ECONNREFUSED
	case windows.WSAECONNRESET, windows.WSAENETRESET:
		return syscall.ECONNRESET
	case windows.WSAEMSGSIZE:
		return syscall.EMSGSIZE
	case windows.WSAENOBUFS:
		return syscall.ENOBUFS
	case windows.WSAEMFILE, windows.ERROR_TOO_MANY_OPEN_FILES:
		return syscall.EMFILE
	case windows.ERROR_DISK_FULL, windows.ERROR_HANDLE_DISK_FULL, windows.ERROR_DISK_QUOTA_EXCEEDED:
		return syscall.ENOSPC
	case windows.ERROR_NOT_SAME_DEVICE:
		return syscall.EXDEV
	case windows.ERROR_WRITE_PROTECT:
		return syscall.EROFS
	}
	return nil
}

package pe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

func openFD() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("pe: making an eventfd for notifications: %w", err)
	}
	return fd, nil
}

// signalFD adds one to the counter, in the byte order of the host (eventfd(2)). It cannot
// fail: the counter holds at most one for each Arm, and clearFD resets it.
func signalFD(fd int, buf *[8]byte) {
	binary.NativeEndian.PutUint64(buf[:], 1)
	for {
		_, err := unix.Write(fd, buf[:])
		if err != unix.EINTR {
			return
		}
	}
}

func clearFD(fd int, buf *[8]byte) error {
	for {
		_, err := unix.Read(fd, buf[:])
		switch {
		case err == nil, errors.Is(err, unix.EAGAIN):
			return nil
		case err != unix.EINTR:
			return fmt.Errorf("pe: reading the notification eventfd: %w", err)
		}
	}
}

func closeFD(fd int) error {
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("pe: closing the notification eventfd: %w", err)
	}
	return nil
}

//go:build linux

// Package poll waits for file descriptors of C libraries in Go's network poller, without
// blocking a thread.
package poll

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/profiling"
)

// Watch calls ready on a goroutine of its own, once at first and then whenever the file
// descriptor, which belongs to a C library, becomes readable. It makes the file non-blocking;
// ready has to read until it would block. The goroutine has ended when stop returns. what comes from
// the file, and the device are labels of the goroutine in profiles.
func Watch(fd int, what, device string, ready func()) (stop func(), err error) {
	name := what + " of " + device
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("make the %s non-blocking: %w", name, err)
	}
	// Use a duplicate, because the library closes the original.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the %s: %w", name, err)
	}
	file := os.NewFile(uintptr(own), name)
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("wait for the %s: %w", name, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		profiling.Label(what, device, "")
		_ = raw.Read(func(uintptr) bool {
			ready()
			return false
		})
	}()
	return func() {
		_ = file.Close()
		<-done
	}, nil
}

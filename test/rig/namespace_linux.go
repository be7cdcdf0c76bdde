package rig

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNamespace calls do in the network namespace of that name, such as s. It is for tests that
// run in the guest. Sockets stay in the namespace where they were made.
func InNamespace(name string, do func() error) error {
	result := make(chan error, 1)
	go func() {
		// The thread is never unlocked: it ends with the goroutine, still in the namespace.
		runtime.LockOSThread()
		if err := enter(name); err != nil {
			result <- fmt.Errorf("enter the network namespace %s: %w", name, err)
			return
		}
		result <- do()
	}()
	return <-result
}

func enter(name string) error {
	fd, err := unix.Open("/run/netns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

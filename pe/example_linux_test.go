package pe_test

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/pe"
)

// A program's own event loop: the engine's descriptor is one of those that it
// waits for with epoll.
func ExampleEngine_NotificationFD() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	c := newCopier()
	defer c.close()
	for _, step := range []func() error{func() error { return engine.Connect(c) }, c.Start, c.submit} {
		if err := step(); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := loop(engine); err != nil {
		fmt.Println(err)
	}
	fmt.Println(c.State())
	// Output:
	// 64 bytes copied
	// Idle
}

// loop drives the engine until all its contexts are Idle.
func loop(engine *pe.Engine) error {
	fd, err := engine.NotificationFD()
	if err != nil {
		return err
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(ep)
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return err
	}
	events := make([]unix.EpollEvent, 8)
	for {
		for {
			n, err := engine.Progress()
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
		}
		if engine.Active() == 0 {
			return nil
		}
		if err := engine.Arm(); err != nil {
			return err
		}
		if _, err := unix.EpollWait(ep, events, -1); err != nil && err != unix.EINTR {
			return err
		}
	}
}

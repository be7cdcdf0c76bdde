package pe_test

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/pe"
)

// A program's own event loop: the engine's descriptor is one of those that it
// waits for with epoll.
func ExampleEngine_NotificationFD() {
	engine := pe.New(pe.Config{})
	defer engine.Close()
	alarms, err := NewAlarms(1, func(t *AlarmTask, err error) {
		fmt.Println("alarm after", t.After, "error:", err)
		_ = t.Free()
		_ = t.alarms.Stop()
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := engine.Connect(alarms); err != nil {
		fmt.Println(err)
		return
	}
	if err := alarms.Start(); err != nil {
		fmt.Println(err)
		return
	}
	task, err := alarms.Alloc(time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := task.Submit(); err != nil {
		fmt.Println(err)
		return
	}
	if err := loop(engine); err != nil {
		fmt.Println(err)
	}
	fmt.Println(alarms.State())
	// Output:
	// alarm after 1ms error: <nil>
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

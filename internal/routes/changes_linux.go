package routes

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// follow is Changes by the kernel's messages (rtnetlink(7)). It reports whether there are such.
func follow(ctx context.Context, subscribed, changed func()) bool {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return false
	}
	file := os.NewFile(uintptr(fd), "rtnetlink")
	defer func() { _ = file.Close() }()
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return false
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })()
	subscribed()
	b := make([]byte, 1) // what has changed is asked for afterwards, so that a lost message does no harm
	for ctx.Err() == nil {
		var failure error
		var from unix.Sockaddr
		if raw.Read(func(fd uintptr) (done bool) {
			_, from, failure = unix.Recvfrom(int(fd), b, 0)
			return failure != unix.EAGAIN && failure != unix.EINTR
		}) != nil {
			return ctx.Err() != nil
		}
		sender, ok := from.(*unix.SockaddrNetlink)
		switch {
		case errors.Is(failure, unix.ENOBUFS): // messages were lost
			changed()
		case failure != nil:
			return false
		case ok && sender.Pid == 0: // any process can send one
			changed()
		}
	}
	return true
}

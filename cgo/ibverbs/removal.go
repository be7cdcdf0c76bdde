//go:build linux && cgo && verbs

package ibverbs

import (
	"bytes"
	"errors"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cgo/internal/poll"
)

const (
	verbsClass = "infiniband_verbs"
	// ueventGroup is the multicast group of what the kernel itself announces.
	ueventGroup = 1
	// maxUevent is more than the kernel ever sends (lib/kobject_uevent.c:
	// UEVENT_BUFFER_SIZE is 2048, and a path goes before it).
	maxUevent = 8192
)

// watchRemoval calls gone, on a goroutine of its own, when the kernel announces
// that it takes a device away from user space: name is that of its file under
// /dev/infiniband. When stop has returned the goroutine has ended.
//
// Drivers that can take the device from a program report an asynchronous event
// too. With one that cannot, such as rxe's of Linux 6.1, the kernel waits until all
// programs have closed the device, and sends them nothing. Where the announcement
// does not arrive, in a user namespace of its own or where such sockets are
// forbidden, the device works without it.
func watchRemoval(name string, gone func()) (stop func()) {
	fd, err := listenUevents()
	if err != nil {
		return func() {}
	}
	message := make([]byte, maxUevent)
	end, err := poll.Watch(fd, "removal of "+name, func() {
		for {
			removed, err := nextUevent(fd, message)
			switch {
			case removed == name, errors.Is(err, unix.ENOBUFS) && vanished(name):
				gone()
			case errors.Is(err, unix.ENOBUFS), err == nil, errors.Is(err, unix.EINTR):
			default:
				return
			}
		}
	})
	if err != nil {
		unix.Close(fd)
		return func() {}
	}
	// The removal may have been announced before the socket was open.
	if vanished(name) {
		gone()
	}
	return func() {
		end()
		unix.Close(fd)
	}
}

// vanished reports whether the kernel lists devices for verbs, and this one is not
// among them.
func vanished(name string) bool {
	class := filepath.Join("/sys/class", verbsClass)
	_, err := os.Lstat(filepath.Join(class, name))
	_, none := os.Lstat(class)
	return none == nil && errors.Is(err, os.ErrNotExist)
}

func listenUevents() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (ueventGroup - 1)}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// nextUevent takes an announcement off the socket, and returns the name of the
// device for verbs whose removal it is; empty if it is something else.
func nextUevent(fd int, message []byte) (string, error) {
	n, from, err := unix.Recvfrom(fd, message, 0)
	if err != nil {
		return "", err
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return "", nil // not from the kernel
	}
	return removedIn(message[:n]), nil
}

// removedIn parses an announcement: strings that end with a NUL, the first of
// them ACTION@PATH below /sys.
func removedIn(message []byte) string {
	head, rest, _ := bytes.Cut(message, []byte{0})
	where, ok := bytes.CutPrefix(head, []byte("remove@"))
	if !ok || !bytes.Contains(append([]byte{0}, rest...), []byte("\x00SUBSYSTEM="+verbsClass+"\x00")) {
		return ""
	}
	return path.Base(string(where))
}

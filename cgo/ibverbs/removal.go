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
	// ueventGroup is the multicast group of the kernel's own announcements.
	ueventGroup = 1
	// maxUevent is longer than any announcement of the kernel (lib/kobject_uevent.c:
	// UEVENT_BUFFER_SIZE is 2048, and a path precedes it).
	maxUevent = 8192
)

// watchRemoval calls gone, on a goroutine of its own, when the kernel announces
// that it takes a device away from user space. name is the name of the device's file under
// /dev/infiniband. The goroutine has ended when stop returns.
//
// Drivers that can take the device from a program also report an asynchronous event.
// With a driver that cannot, such as rxe's in Linux 6.1, the kernel waits until all
// programs have closed the device, and reports no event to them. If the announcement cannot
// arrive, as in a separate user namespace or where such sockets are forbidden, the
// device works without it.
func watchRemoval(name, device string, gone func()) (stop func()) {
	fd, err := listenUevents()
	if err != nil {
		return func() {}
	}
	message := make([]byte, maxUevent)
	end, err := poll.Watch(fd, "removal", device, func() {
		for {
			removed, err := nextUevent(fd, message)
			switch {
			case removed == name, errors.Is(err, unix.ENOBUFS) && unlisted(name):
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
	if unlisted(name) {
		gone()
	}
	return func() {
		end()
		unix.Close(fd)
	}
}

// unlisted reports whether the kernel lists devices for verbs, but not this one.
func unlisted(name string) bool {
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

// nextUevent reads an announcement from the socket. It returns the name of the verbs device
// that was removed, or an empty name for any other announcement.
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

// removedIn parses an announcement: strings that end with a NUL. The first is ACTION@PATH, with
// a path below /sys.
func removedIn(message []byte) string {
	head, rest, _ := bytes.Cut(message, []byte{0})
	where, ok := bytes.CutPrefix(head, []byte("remove@"))
	if !ok || !bytes.Contains(append([]byte{0}, rest...), []byte("\x00SUBSYSTEM="+verbsClass+"\x00")) {
		return ""
	}
	return path.Base(string(where))
}

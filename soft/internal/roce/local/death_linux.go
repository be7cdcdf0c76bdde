package local

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/unixsocket"
)

// PeerProcessDied reports whether the process at the other end of an ended channel is dead. It
// waits for that for at most two seconds, since the kernel closes the files of a process
// shortly before it reports the process dead. It reports false if it cannot know, and if both
// ends are in one process. It is called without the lock.
func (c *Channel) PeerProcessDied(ctx context.Context) bool { return awaitProcessEnd(ctx, c.link.peer) }

// awaitProcessEnd reports whether a process ends in time. If another process has its ID by now,
// true is right whatever the other one does, since the ID was free; false only means that it
// is not known.
func awaitProcessEnd(ctx context.Context, pid int) bool {
	if pid == os.Getpid() {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err == unix.ESRCH
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return false
	}
	process := os.NewFile(uintptr(fd), "process")
	defer func() { _ = process.Close() }()
	raw, err := process.SyscallConn()
	if err != nil {
		return false
	}
	_ = process.SetReadDeadline(time.Now().Add(peerTimeout))
	defer context.AfterFunc(ctx, func() { _ = process.SetReadDeadline(time.Unix(1, 0)) })()
	ended := false
	_ = raw.Read(func(fd uintptr) bool {
		ended = unixsocket.HasEnded(int(fd))
		return ended
	})
	return ended
}

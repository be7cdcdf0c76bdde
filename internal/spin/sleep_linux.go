package spin

import (
	"time"

	"golang.org/x/sys/unix"
)

// Sleep sleeps, also for less than a millisecond: time.Sleep then takes a millisecond in an idle
// process, since the runtime waits in epoll_wait(2).
func Sleep(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil) // a signal may end it early
}

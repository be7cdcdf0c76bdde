//go:build unix

// Package processor tells how much processor time the process has used.
package processor

import (
	"syscall"
	"time"
)

// Time returns the processor time that this process has used.
func Time() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

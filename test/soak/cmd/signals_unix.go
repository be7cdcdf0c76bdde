//go:build unix

package main

import (
	"os"
	"syscall"
)

const (
	signalStop     = syscall.SIGSTOP
	signalContinue = syscall.SIGCONT
	signalDump     = syscall.SIGQUIT
)

// wasKilled reports whether a process was ended by SIGKILL.
func wasKilled(state *os.ProcessState) bool {
	s, ok := state.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGKILL
}

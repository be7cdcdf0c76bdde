//go:build !unix

package main

import (
	"os"
	"syscall"
)

// Without signals nothing can be stopped, which the program reports.
const (
	signalStop     = syscall.SIGKILL
	signalContinue = syscall.SIGKILL
	signalDump     = syscall.SIGKILL
)

func wasKilled(state *os.ProcessState) bool { return !state.Success() }

//go:build !unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// Without signals nothing can be stopped, which the program reports.
const (
	signalStop     = syscall.SIGKILL
	signalContinue = syscall.SIGKILL
	signalDump     = syscall.SIGKILL
)

func ownGroup(*exec.Cmd) {}

func wasKilled(state *os.ProcessState) bool { return !state.Success() }

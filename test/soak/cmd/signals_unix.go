//go:build unix

package main

import "syscall"

const (
	signalStop     = syscall.SIGSTOP
	signalContinue = syscall.SIGCONT
	signalDump     = syscall.SIGQUIT
)

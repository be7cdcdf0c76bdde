//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

const (
	signalStop     = syscall.SIGSTOP
	signalContinue = syscall.SIGCONT
	signalDump     = syscall.SIGQUIT
)

// ownGroup puts a process into its own group, so that it does not get the terminal's signals.
// If the parent dies while the process is stopped, the system continues it and sends SIGHUP.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// wasKilled reports whether a process was ended by SIGKILL.
func wasKilled(state *os.ProcessState) bool {
	s, ok := state.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGKILL
}

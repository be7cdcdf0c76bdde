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

// ownGroup keeps the signals of the terminal from a process. A group of its own, whose parent
// dies, is continued and hung up by the system if it is stopped.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// wasKilled reports whether a process was ended by SIGKILL.
func wasKilled(state *os.ProcessState) bool {
	s, ok := state.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGKILL
}

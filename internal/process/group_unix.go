//go:build unix

package process

import (
	"os"
	"syscall"
)

func signalGroup(p *os.Process, s os.Signal) error {
	return syscall.Kill(-p.Pid, s.(syscall.Signal))
}

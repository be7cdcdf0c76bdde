//go:build !unix

package process

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }

func awaitExit(int) bool { return false }

// signalGroup signals the program: there are no groups.
func signalGroup(p *os.Process, s os.Signal) error { return p.Signal(s) }

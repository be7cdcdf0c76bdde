//go:build !windows

package errno

import "syscall"

func nameOf(syscall.Errno) error { return nil }

//go:build !linux && !darwin

package tree

import (
	"os"
	"syscall"
)

const errQuota = syscall.ENOSPC

func lockFile(*os.File) error  { return nil }
func freeBytes(*os.File) int64 { return -1 }

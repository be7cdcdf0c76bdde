//go:build linux && cgo && verbs

package ibverbs

import "syscall"

const roceV2Port = 4791 // UDP, IBTA annex A17

func errnoOf(n int) error { return syscall.Errno(n) }

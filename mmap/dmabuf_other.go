//go:build !linux

package mmap

import (
	"fmt"
	"runtime"

	"github.com/verbena-rdma/verbena/verbs"
)

func duplicate(int) (int, error) {
	return -1, fmt.Errorf("%w: dma-bufs are Linux's, there are none on %s", verbs.ErrNotSupported, runtime.GOOS)
}

func release(int) error { return nil }

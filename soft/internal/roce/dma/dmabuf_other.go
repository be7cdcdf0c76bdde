//go:build !linux

package dma

import (
	"fmt"
	"runtime"

	"github.com/verbena-rdma/verbena/verbs"
)

// MapDMABuf fails: see dmabuf_linux.go.
func MapDMABuf(int, uint64, uint64, bool) ([]byte, func() error, error) {
	return nil, nil, fmt.Errorf("dma-bufs exist only on Linux, not on %s: %w", runtime.GOOS, verbs.ErrNotSupported)
}

//go:build !linux

package roce

import (
	"fmt"
	"runtime"

	"github.com/verbena-rdma/verbena/verbs"
)

func mapDMABuf(int, uint64, uint64, bool) ([]byte, func() error, error) {
	return nil, nil, fmt.Errorf("dma-bufs are Linux's, there are none on %s: %w", runtime.GOOS, verbs.ErrNotSupported)
}

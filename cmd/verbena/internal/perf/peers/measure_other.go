//go:build !linux

package peers

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/result"
)

func measure(context.Context, *options, io.Writer) (*result.Result, error) {
	return nil, fmt.Errorf("verbena perf peers needs Linux, and this is %s; use verbena perf instead", runtime.GOOS)
}

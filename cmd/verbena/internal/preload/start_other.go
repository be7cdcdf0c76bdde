//go:build !linux

package preload

import (
	"errors"
	"fmt"
	"io"
	"runtime"
)

func (o *options) start(io.Writer) error {
	return fmt.Errorf("run %s: libverbena.so exists on Linux only, and this is %s: %w", o.command[0], runtime.GOOS, errors.ErrUnsupported)
}

//go:build !linux

package readable

import (
	"errors"
	"time"
)

// Await is not called: only Linux has the file descriptor of an engine.
func Await(int, time.Duration) error { return errors.ErrUnsupported }

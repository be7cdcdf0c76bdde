//go:build !linux

package overhead

import "errors"

// awaitReadable is not called: only Linux has the file descriptor of an engine.
func awaitReadable(int) error { return errors.ErrUnsupported }

//go:build !linux

package statsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
)

var errMissing = fmt.Errorf("verbena stat needs the abstract Unix sockets of Linux: %w", errors.ErrUnsupported)

// Listen fails.
func Listen() (*net.UnixListener, error) { return nil, errMissing }

// Send fails.
func Send(*net.UnixConn, func(io.Writer) error) error { return errMissing }

// Names fails.
func Names() ([]string, error) { return nil, errMissing }

// Read fails.
func Read(string) (int, []byte, error) { return 0, nil, errMissing }

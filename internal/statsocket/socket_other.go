//go:build !linux

package statsocket

import (
	"context"
	"errors"
	"fmt"
	"io"
)

var errMissing = fmt.Errorf("verbena stat needs the abstract Unix sockets of Linux: %w", errors.ErrUnsupported)

// Server is not available.
type Server struct{}

// Serve fails.
func Serve(func(io.Writer) error) (*Server, error) { return nil, errMissing }

// Close does nothing.
func (*Server) Close() error { return nil }

// Names fails.
func Names() ([]string, error) { return nil, errMissing }

// Read fails.
func Read(context.Context, string, int) (int, []byte, error) { return 0, nil, errMissing }

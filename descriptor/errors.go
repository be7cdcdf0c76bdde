package descriptor

import (
	"errors"

	"github.com/verbena-rdma/verbena/internal/wirecode"
)

// Errors of this package, matched with errors.Is. The error text adds what was found and what
// to do.
var (
	// ErrTruncated: the end of the descriptor is missing.
	ErrTruncated = wirecode.ErrTruncated
	// ErrTrailing: bytes or text follow the end of the descriptor.
	ErrTrailing = wirecode.ErrTrailing
	// ErrVersion: the descriptor was written by a release with another format.
	ErrVersion = errors.New("descriptor has an unknown version")
	// ErrKind: the descriptor is not of the expected kind, or its kind is unknown.
	ErrKind = errors.New("descriptor is of the wrong kind")
	// ErrChecksum: the content differs from what was written.
	ErrChecksum = errors.New("descriptor is damaged")
	// ErrFormat: the bytes are not a descriptor, or have values that no exporter writes.
	ErrFormat = wirecode.ErrFormat
	// ErrTooBig: the descriptor is larger than MaxPayload or MaxFile.
	ErrTooBig = wirecode.ErrTooBig
	// ErrFile: the path is that of a folder, a pipe or a device.
	ErrFile = errors.New("not a regular file")
)

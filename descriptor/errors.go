package descriptor

import "errors"

// Errors of this package, matched with errors.Is. The text that a person sees
// adds what was found and what to do.
var (
	// ErrTruncated: the end is missing.
	ErrTruncated = errors.New("descriptor is cut short")
	// ErrTrailing: bytes or text follow its end.
	ErrTrailing = errors.New("descriptor is followed by something else")
	// ErrVersion: it was written by a release with another format.
	ErrVersion = errors.New("descriptor has an unknown version")
	// ErrKind: it describes something else than is wanted, or than is known.
	ErrKind = errors.New("descriptor is of the wrong kind")
	// ErrChecksum: its content is not what was written.
	ErrChecksum = errors.New("descriptor is damaged")
	// ErrFormat: it is no descriptor, or has values that no exporter writes.
	ErrFormat = errors.New("not a descriptor")
	// ErrTooBig: it is larger than MaxPayload or MaxFile.
	ErrTooBig = errors.New("descriptor is too big")
	// ErrFile: the path is that of a folder, a pipe or a device.
	ErrFile = errors.New("not a regular file")
)

package descriptor

import "errors"

// Errors of this package, matched with errors.Is. The text that a person sees
// adds what was found and what to do.
var (
	ErrTruncated = errors.New("descriptor is cut short")
	ErrTrailing  = errors.New("descriptor is followed by something else")
	ErrVersion   = errors.New("descriptor has an unknown version")
	ErrKind      = errors.New("descriptor is of the wrong kind")
	ErrChecksum  = errors.New("descriptor is damaged")
	ErrFormat    = errors.New("not a descriptor")
	ErrTooBig    = errors.New("descriptor is too big")
	ErrFile      = errors.New("not a regular file")
)

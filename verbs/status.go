package verbs

import "errors"

// Errors that drivers wrap, matched with errors.Is.
var (
	ErrNoDevice     = errors.New("no such device")
	ErrInUse        = errors.New("in use")
	ErrInvalid      = errors.New("invalid argument")
	ErrState        = errors.New("not possible in this state")
	ErrQueueFull    = errors.New("queue full")
	ErrLimit        = errors.New("beyond the limits of the device")
	ErrNotSupported = errors.New("not supported")
	ErrClosed       = errors.New("closed")
	ErrOverrun      = errors.New("completion queue overrun")
)

// Status is a completion status (IBTA 11.6.2).
type Status int

// The completion statuses, in the order of libibverbs.
const (
	StatusSuccess Status = iota
	StatusLocalLengthError
	StatusLocalQPOperationError
	StatusLocalEEOperationError
	StatusLocalProtectionError
	StatusFlushed
	StatusMemoryWindowBindError
	StatusBadResponse
	StatusLocalAccessError
	StatusRemoteInvalidRequest
	StatusRemoteAccessError
	StatusRemoteOperationError
	StatusRetryExceeded
	StatusRNRRetryExceeded
	StatusLocalRDDViolation
	StatusRemoteInvalidRDRequest
	StatusRemoteAborted
	StatusInvalidEEN
	StatusInvalidEEState
	StatusFatal
	StatusResponseTimeout
	StatusGeneralError
)

package verbs

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

	statusCount = iota // for tests: the number of statuses above
)

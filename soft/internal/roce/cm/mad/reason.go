package mad

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// Reason is why a message was rejected (IBTA 12.6.7).
type Reason = verbs.CMRejectReason

// Reasons that this device sends, besides those of package verbs.
const (
	ReasonInvalidTransport Reason = 9
	ReasonInvalidGID       Reason = 12 // additional information: an acceptable GID
)

// SIDRStatus is the outcome of a service ID resolution (IBTA 12.11.2).
type SIDRStatus uint8

// The statuses of a SIDR_REP.
const (
	SIDRValid              SIDRStatus = 0
	SIDRNotSupported       SIDRStatus = 1 // no listener
	SIDRRejected           SIDRStatus = 2 // by the application
	SIDRNoQP               SIDRStatus = 3
	SIDRRedirect           SIDRStatus = 4
	SIDRUnsupportedVersion SIDRStatus = 5
)

var sidrNames = [...]string{
	"valid", "no such service", "rejected by the application", "no queue pair available", "redirection", "unsupported version",
}

// String describes the status.
func (s SIDRStatus) String() string {
	if int(s) < len(sidrNames) {
		return sidrNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

package mad

import "fmt"

// Reason is why a message was rejected (IBTA 12.6.7).
type Reason uint16

// The reasons for a REJ.
const (
	ReasonNoQP                           Reason = 1
	ReasonNoEEC                          Reason = 2
	ReasonNoResources                    Reason = 3
	ReasonTimeout                        Reason = 4 // additional information: the CA GUID
	ReasonUnsupportedRequest             Reason = 5
	ReasonInvalidCommID                  Reason = 6
	ReasonInvalidCommInstance            Reason = 7
	ReasonInvalidServiceID               Reason = 8 // no listener
	ReasonInvalidTransport               Reason = 9
	ReasonStaleConnection                Reason = 10
	ReasonRDCNotExist                    Reason = 11
	ReasonInvalidGID                     Reason = 12 // additional information: an acceptable GID
	ReasonInvalidLID                     Reason = 13
	ReasonInvalidSL                      Reason = 14
	ReasonInvalidTrafficClass            Reason = 15
	ReasonInvalidHopLimit                Reason = 16
	ReasonInvalidPacketRate              Reason = 17
	ReasonInvalidAlternateGID            Reason = 18
	ReasonInvalidAlternateLID            Reason = 19
	ReasonInvalidAlternateSL             Reason = 20
	ReasonInvalidAlternateTrafficClass   Reason = 21
	ReasonInvalidAlternateHopLimit       Reason = 22
	ReasonInvalidAlternatePacketRate     Reason = 23
	ReasonPortCMRedirect                 Reason = 24
	ReasonPortRedirect                   Reason = 25
	ReasonInvalidMTU                     Reason = 26 // additional information: the code of an acceptable path MTU
	ReasonInsufficientResponderResources Reason = 27
	ReasonConsumerDefined                Reason = 28 // by the application, with its private data
	ReasonInvalidRNRRetry                Reason = 29
	ReasonDuplicateLocalCommID           Reason = 30
	ReasonInvalidClassVersion            Reason = 31
	ReasonInvalidFlowLabel               Reason = 32
	ReasonInvalidAlternateFlowLabel      Reason = 33
)

var reasonNames = [...]string{
	1: "no queue pair available", 2: "no end-to-end context available", 3: "no resources available", 4: "time-out",
	5: "unsupported request", 6: "invalid communication ID", 7: "invalid communication instance", 8: "no such service",
	9: "invalid transport service type", 10: "stale connection", 11: "no such reliable datagram channel",
	12: "primary GID rejected", 13: "primary LID rejected", 14: "primary service level rejected",
	15: "primary traffic class rejected", 16: "primary hop limit rejected", 17: "primary packet rate rejected",
	18: "alternate GID rejected", 19: "alternate LID rejected", 20: "alternate service level rejected",
	21: "alternate traffic class rejected", 22: "alternate hop limit rejected", 23: "alternate packet rate rejected",
	24: "port and connection manager redirection", 25: "port redirection", 26: "path MTU rejected",
	27: "insufficient responder resources", 28: "rejected by the application", 29: "RNR retry count rejected",
	30: "duplicate local communication ID", 31: "unsupported class version", 32: "primary flow label rejected",
	33: "alternate flow label rejected",
}

// String describes the reason.
func (r Reason) String() string {
	if r > 0 && int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

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

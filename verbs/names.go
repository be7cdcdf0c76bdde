package verbs

import (
	"strconv"
	"strings"
)

// name returns the name of a constant. For an unknown one, which can come from a device newer
// than this code, it returns the kind and the number.
func name[T ~int](names []string, kind string, v T) string {
	if v >= 0 && int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return kind + " " + strconv.Itoa(int(v))
}

// namesOf returns the names of a set's members, in order, and the unnamed ones as one number;
// "none" for an empty set.
func namesOf[T ~uint32](names []string, set T) string {
	var held []string
	for i, n := range names {
		if set&(1<<i) != 0 {
			held = append(held, n)
			set &^= 1 << i
		}
	}
	if set != 0 {
		held = append(held, "0x"+strconv.FormatUint(uint64(set), 16))
	}
	if held == nil {
		return "none"
	}
	return strings.Join(held, ", ")
}

var statusNames = []string{
	"success", "local length error", "local queue pair operation error",
	"local end-to-end context operation error", "local protection error",
	"flushed", "memory window bind error", "bad response", "local access error",
	"remote invalid request", "remote access error", "remote operation error",
	"transport retry count exceeded", "receiver-not-ready retry count exceeded",
	"local reliable-datagram-domain violation", "remote invalid reliable-datagram request",
	"aborted by the remote side", "invalid end-to-end context number",
	"invalid end-to-end context state", "fatal error", "response timeout", "general error",
}

// String names the status in words.
func (s Status) String() string { return name(statusNames, "status", s) }

var qpStateNames = []string{"Reset", "Init", "RTR", "RTS", "SQD", "SQE", "Error"}

// String gives the state's usual abbreviation.
func (s QPState) String() string { return name(qpStateNames, "queue pair state", s) }

var qpTypeNames = []string{"RC", "UC", "UD", "SRD", "XRC_SEND", "XRC_RECV"}

// String gives the service's usual abbreviation.
func (t QPType) String() string { return name(qpTypeNames, "transport service", t) }

// String lists the services' usual abbreviations.
func (s Transports) String() string { return namesOf(qpTypeNames, s) }

var wcFieldNames = []string{"timestamp", "wall clock", "source"}

// String lists the fields.
func (f WCFields) String() string { return namesOf(wcFieldNames, f) }

var opcodeNames = []string{
	"send", "send with immediate", "write", "write with immediate", "read",
	"compare-and-swap", "fetch-and-add", "send with invalidate", "local invalidate",
	"bind memory window", "atomic write",
}

// String names the operation.
func (o Opcode) String() string { return name(opcodeNames, "operation", o) }

var wcOpcodeNames = []string{
	"send", "write", "read", "compare-and-swap", "fetch-and-add", "receive",
	"receive of a write with immediate", "local invalidate", "bind memory window", "atomic write",
}

// String names the completed operation.
func (o WCOpcode) String() string { return name(wcOpcodeNames, "completion of operation", o) }

var portStateNames = []string{"no state change", "down", "init", "armed", "active"}

// String names the state.
func (s PortState) String() string { return name(portStateNames, "port state", s) }

var linkLayerNames = []string{"unspecified", "InfiniBand", "Ethernet"}

// String names the link layer.
func (l LinkLayer) String() string { return name(linkLayerNames, "link layer", l) }

var gidTypeNames = []string{"IB", "RoCEv1", "RoCEv2"}

// String names the type as the verbs' tools do.
func (t GIDType) String() string { return name(gidTypeNames, "GID type", t) }

var eventNames = []string{
	"", "completion queue error", "queue pair fatal error", "queue pair request error",
	"queue pair access error", "communication established", "shared receive queue error",
	"shared receive queue limit reached", "last work request reached", "port active",
	"port error", "GID table changed", "device fatal error", "peer gone",
	"LID changed", "P_Key table changed",
}

// String names the event.
func (t EventType) String() string { return name(eventNames, "event", t) }

var cmEventTypeNames = []string{
	"", "resolved", "connection request", "connection response", "established", "failed",
	"disconnected", "time-wait exit", "address changed", "device removed",
	"multicast group joined", "multicast group failed",
}

// String names the event.
func (t CMEventType) String() string { return name(cmEventTypeNames, "connection event", t) }

var cmStepNames = []string{"", "resolve", "connect to", "accept"}

// String names the step.
func (s CMStep) String() string { return name(cmStepNames, "step", s) }

var cmRejectReasonNames = []string{
	1: "no queue pair available", 2: "no end-to-end context available", 3: "no resources available", 4: "time-out",
	5: "unsupported request", 6: "invalid communication ID", 7: "invalid communication instance", 8: "invalid service ID",
	9: "invalid transport service type", 10: "stale connection", 11: "no such reliable datagram channel",
	12: "primary GID rejected", 13: "primary LID rejected", 14: "primary service level rejected",
	15: "primary traffic class rejected", 16: "primary hop limit rejected", 17: "primary packet rate rejected",
	18: "alternate GID rejected", 19: "alternate LID rejected", 20: "alternate service level rejected",
	21: "alternate traffic class rejected", 22: "alternate hop limit rejected", 23: "alternate packet rate rejected",
	24: "port and connection manager redirection", 25: "port redirection", 26: "invalid path MTU",
	27: "insufficient responder resources", 28: "by its application", 29: "RNR retry count rejected",
	30: "duplicate local communication ID", 31: "unsupported class version", 32: "primary flow label rejected",
	33: "alternate flow label rejected",
}

// String names the reason.
func (r CMRejectReason) String() string { return name(cmRejectReasonNames, "reason", r) }

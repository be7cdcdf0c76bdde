package srd

import (
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// code says how a request ended. The numbers are EFA's, which completions show as the vendor's
// error there too.
type code uint8

const (
	codeOK               code  = 0
	codeFlushed          code  = 1
	codeInvalidAH        code  = 4
	codeInvalidLKey      code  = 5
	codeBadAddress       code  = 7
	codeAborted          code  = 8 // another device has taken the peer's place
	codeBadQPN           code  = 9
	codeNotReady         code  = 10
	codeBadLength        code  = 11 // longer than the receive, the MTU or MaxRDMA
	codeBadStatus        code  = 12
	codeUnresponsive     code  = 13 // the peer has answered before
	codeUnknownPeer      code  = 14 // the peer has no address handle that leads here
	codeUnreachable      code  = 15 // the peer has never answered
	codeFeatureMismatch  code  = 18
	numCodes                   = 19
	notReadyTimer        uint8 = 12 // 0.64 ms (IBTA table 46)
	maxNotReadyDoublings       = 10
	notReadyForEver            = 7
)

var statuses = [numCodes]verbs.Status{
	codeFlushed:         verbs.StatusFlushed,
	codeInvalidAH:       verbs.StatusLocalQPOperationError,
	codeInvalidLKey:     verbs.StatusLocalProtectionError,
	codeBadAddress:      verbs.StatusRemoteAccessError,
	codeAborted:         verbs.StatusRemoteAborted,
	codeBadQPN:          verbs.StatusRemoteInvalidRDRequest,
	codeNotReady:        verbs.StatusRNRRetryExceeded,
	codeBadLength:       verbs.StatusRemoteInvalidRequest,
	codeBadStatus:       verbs.StatusBadResponse,
	codeUnresponsive:    verbs.StatusResponseTimeout,
	codeUnknownPeer:     verbs.StatusRemoteOperationError,
	codeUnreachable:     verbs.StatusResponseTimeout,
	codeFeatureMismatch: verbs.StatusRemoteInvalidRequest,
}

// syndrome returns the syndrome of a NAK for the reason. The NAK carries the code beside it.
func (c code) syndrome() wire.Syndrome {
	switch c {
	case codeNotReady:
		return wire.RNRNak(notReadyTimer)
	case codeBadAddress:
		return wire.Nak(wire.NakRemoteAccess)
	case codeBadQPN:
		return wire.Nak(wire.NakInvalidRD)
	case codeUnknownPeer, codeBadStatus:
		return wire.Nak(wire.NakRemoteOperation)
	}
	return wire.Nak(wire.NakInvalidRequest)
}

func (c code) aeth() wire.AETH { return wire.AETH{Syndrome: c.syndrome(), MSN: uint32(c)} }

// nakCode returns the code in a NAK. Codes that a responder does not send count as
// codeBadStatus.
func nakCode(p *wire.Packet) code {
	c := p.AETH.MSN
	switch code(c) {
	case codeBadAddress, codeBadQPN, codeNotReady, codeBadLength, codeUnknownPeer, codeFeatureMismatch:
		if c < numCodes && code(c).syndrome().Kind() == p.AETH.Syndrome.Kind() {
			return code(c)
		}
	}
	return codeBadStatus
}

package rules

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// operations is a set of send operations, one bit each.
type operations uint32

const (
	sends       = 1<<verbs.OpSend | 1<<verbs.OpSendImm
	writes      = 1<<verbs.OpWrite | 1<<verbs.OpWriteImm
	reads       = 1 << verbs.OpRead
	atomics     = 1<<verbs.OpCompareSwap | 1<<verbs.OpFetchAdd | 1<<verbs.OpAtomicWrite
	invalidates = 1 << verbs.OpSendInvalidate
	windows     = 1<<verbs.OpLocalInvalidate | 1<<verbs.OpBindMW

	known = sends | writes | reads | atomics | invalidates | windows

	knownFlags = verbs.FlagSignaled | verbs.FlagSolicited | verbs.FlagFence | verbs.FlagInline
)

// operationsOf has a row for each transport service (IBTA 9.2.1, table 38; ibv_post_send(3),
// except UC's send with invalidate, which has no opcode). A driver itself refuses operations
// that its device lacks, such as atomics.
var operationsOf = [...]operations{
	verbs.RC: sends | writes | reads | atomics | invalidates | windows,
	verbs.UC: sends | writes | windows,
	verbs.UD: sends,
	// No atomics (efadv_create_qp_ex(3)).
	verbs.SRD:     sends | writes | reads,
	verbs.XRCSend: sends | writes | reads | atomics | invalidates | windows,
	verbs.XRCRecv: 0,
}

// srdFlags are all flags of SRD.
const srdFlags = verbs.FlagSignaled | verbs.FlagInline

// CheckRequest says why a send request with that operation and those flags cannot be posted to
// a queue pair of the service t, in an error that matches verbs.ErrInvalid. It refuses unknown
// flags too: a request without them would do less than was asked for.
func CheckRequest(t verbs.QPType, op verbs.Opcode, flags verbs.SendFlags) error {
	if op < 0 || op >= 32 || known&(1<<op) == 0 {
		return fmt.Errorf("unknown operation: %w", verbs.ErrInvalid)
	}
	if t < 0 || int(t) >= len(operationsOf) || operationsOf[t]&(1<<op) == 0 {
		return fmt.Errorf("transport service %v has no such operation: %w", t, verbs.ErrInvalid)
	}
	if flags&^knownFlags != 0 {
		return fmt.Errorf("unknown flags %#x: %w", uint32(flags&^knownFlags), verbs.ErrInvalid)
	}
	if t == verbs.SRD {
		return checkSRD(op, flags)
	}
	return nil
}

func checkSRD(op verbs.Opcode, flags verbs.SendFlags) error {
	switch {
	case flags&^srdFlags != 0:
		return fmt.Errorf("flags %#x: SRD has only FlagSignaled and FlagInline: %w", uint32(flags&^srdFlags), verbs.ErrInvalid)
	case flags&verbs.FlagInline != 0 && sends&(1<<op) == 0:
		return fmt.Errorf("inline data: SRD supports it in sends only: %w", verbs.ErrInvalid)
	}
	return nil
}

package rdma

import (
	"strconv"

	"github.com/verbena-rdma/verbena/verbs"
)

// Operation is a kind of task. Zero is none.
type Operation int

// The operations.
const (
	OpReceive Operation = iota + 1
	OpSend
	OpSendImm
	OpRead
	OpWrite
	OpWriteImm
	OpCompareSwap
	OpFetchAdd
	OpSyncEventGet
	OpSyncEventSet
	OpSyncEventAdd
	OpAtomicWrite
)

var operations = [...]struct {
	name   string
	submit string // for errors; made in advance, off the hot path
	verb   verbs.Opcode
}{
	0:             {"task", "submit a task", 0}, // what pools of tasks for any operation are called
	OpReceive:     {"receive", "submit a receive", 0},
	OpSend:        {"send", "submit a send", verbs.OpSend},
	OpSendImm:     {"send with immediate", "submit a send with immediate", verbs.OpSendImm},
	OpRead:        {"read", "submit a read", verbs.OpRead},
	OpWrite:       {"write", "submit a write", verbs.OpWrite},
	OpWriteImm:    {"write with immediate", "submit a write with immediate", verbs.OpWriteImm},
	OpCompareSwap: {"compare-and-swap", "submit a compare-and-swap", verbs.OpCompareSwap},
	OpFetchAdd:    {"fetch-and-add", "submit a fetch-and-add", verbs.OpFetchAdd},

	OpSyncEventGet: {"sync event get", "submit a sync event get", verbs.OpRead},
	OpSyncEventSet: {"sync event set", "submit a sync event set", verbs.OpWrite},
	OpSyncEventAdd: {"sync event addition", "submit a sync event addition", verbs.OpFetchAdd},
	OpAtomicWrite:  {"atomic write", "submit an atomic write", verbs.OpAtomicWrite},
}

// String names the operation.
func (o Operation) String() string {
	if o == 0 || o.known() {
		return operations[o].name
	}
	return "operation " + strconv.Itoa(int(o))
}

func (o Operation) known() bool { return o > 0 && int(o) < len(operations) }

func (o Operation) atomic() bool {
	return o == OpCompareSwap || o == OpFetchAdd || o == OpSyncEventAdd
}

// changesWord reports whether the operation changes one word of the peer's memory, in one step.
// The address must be a multiple of the word's size.
func (o Operation) changesWord() bool { return o.atomic() || o == OpAtomicWrite }

func (o Operation) sends() bool  { return o == OpSend || o == OpSendImm }
func (o Operation) writes() bool { return o == OpWrite || o == OpWriteImm || o == OpAtomicWrite }

// immediate reports whether the operation carries immediate data.
func (o Operation) immediate() bool { return o == OpSendImm || o == OpWriteImm }

// hasValue reports whether the operation adds or sets one value.
func (o Operation) hasValue() bool {
	return o == OpFetchAdd || o == OpSyncEventSet || o == OpSyncEventAdd
}

// onEvent reports whether the operation works on a sync event of the peer.
func (o Operation) onEvent() bool { return o >= OpSyncEventGet && o <= OpSyncEventAdd }

// usesScratch reports whether the operation moves a word of the scratch memory.
func (o Operation) usesScratch() bool { return o.atomic() || o.onEvent() }

// returnsData reports whether the peer returns data.
func (o Operation) returnsData() bool { return o == OpRead || o == OpSyncEventGet || o.atomic() }

// readAtomic reports whether the operation counts among the reads and atomics outstanding, which
// the device limits.
func (o Operation) readAtomic() bool { return o.returnsData() || o.changesWord() }

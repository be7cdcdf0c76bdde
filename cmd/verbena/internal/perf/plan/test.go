package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Op is the operation that is measured.
type Op int

// The operations.
const (
	Write Op = iota
	WriteImm
	Read
	Send
	FetchAdd
	CompareSwap
)

var opNames = [...]string{"write", "write_imm", "read", "send", "fetch_add", "compare_swap"}

// String names the operation.
func (o Op) String() string {
	if o < 0 || int(o) >= len(opNames) {
		return fmt.Sprintf("operation %d", int(o))
	}
	return opNames[o]
}

// Atomic reports whether the operation is an atomic on 8 bytes of the peer's memory.
func (o Op) Atomic() bool { return o == FetchAdd || o == CompareSwap }

// Receives reports whether the peer needs a receive for each operation.
func (o Op) Receives() bool { return o == Send || o == WriteImm }

// Kind is what is measured about an operation.
type Kind int

// The kinds.
const (
	Bandwidth Kind = iota // many operations in flight
	Latency               // one operation at a time
	Batches               // batches of package transfer
)

var kindNames = [...]string{"bw", "lat", "batch"}

// Test is an operation and what is measured about it, such as write_bw.
type Test struct {
	Op   Op
	Kind Kind
}

// BatchTests returns the tests of package transfer.
func BatchTests() []Test { return []Test{{Write, Batches}, {Read, Batches}} }

// Tests returns all other tests.
func Tests() (list []Test) {
	for op := range opNames {
		list = append(list, Test{Op(op), Bandwidth}, Test{Op(op), Latency})
	}
	return list
}

// String is the name of the test, as ParseTest takes it.
func (t Test) String() string {
	if t.Kind < 0 || int(t.Kind) >= len(kindNames) {
		return fmt.Sprintf("%v_%d", t.Op, int(t.Kind))
	}
	return t.Op.String() + "_" + kindNames[t.Kind]
}

// ParseTest finds a test by its name.
func ParseTest(name string) (Test, error) {
	var names []string
	for _, t := range slices.Concat(Tests(), BatchTests()) {
		if t.String() == name {
			return t, nil
		}
		names = append(names, t.String())
	}
	return Test{}, fmt.Errorf("there is no test %q; choose from %s", name, strings.Join(names, ", "))
}

// MarshalText implements encoding.TextMarshaler.
func (t Test) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Test) UnmarshalText(b []byte) (err error) {
	*t, err = ParseTest(string(b))
	return err
}

// EachWay reports whether the test measures the latency of one way, which is half of a round
// trip of two messages. The latency of reads and atomics is the time from request to response.
func (t Test) EachWay() bool { return t.Kind == Latency && (t.Op == Write || t.Op.Receives()) }

package transport

import (
	"testing"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// FuzzReceive tests reliable connections.
func FuzzReceive(f *testing.F) {
	addSeeds(f, append(seedPackets(wire.ServiceRC), seedScripts()...)...)
	f.Fuzz(func(t *testing.T, input []byte) { fuzzConnection(t, verbs.RC, input) })
}

// FuzzReceiveUnreliable tests unreliable connections or datagrams, by the first byte.
func FuzzReceiveUnreliable(f *testing.F) {
	for i, service := range []wire.Service{wire.ServiceUC, wire.ServiceUD} {
		for _, s := range append(seedPackets(service), seedScripts()...) {
			f.Add(append([]byte{byte(i)}, s...))
		}
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		in := fuzzInput(input)
		kind := [...]verbs.QPType{verbs.UC, verbs.UD}[in.pick(2)]
		fuzzConnection(t, kind, in)
	})
}

// fuzzConnection asserts that a peer changes and reads what it was granted and nothing else,
// that requests and receives complete once and in order, that nothing grows beyond its
// bounds, and that nothing panics or never ends.
func fuzzConnection(t *testing.T, kind verbs.QPType, input []byte) {
	in := fuzzInput(input)
	first, second := in.next(), in.next()
	for _, differs := range fuzzVariants {
		runFuzz(newFuzzWorld(t, chosen(kind, first^differs, second)), in)
	}
}

// fuzzVariants are the options with which the same input is tried: an input takes less time
// than it takes to make up the next.
var fuzzVariants = [...]byte{0, seedAdaptive | seedControlled, seedAdaptive | seedShared | seedGuarded, seedControlled | seedSmallWindow | seedSignalAll | seedFewRetries}

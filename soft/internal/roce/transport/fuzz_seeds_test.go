package transport

import (
	"testing"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// fuzzScript writes an input, step by step.
type fuzzScript []byte

// Who does a step.
const (
	atClient = iota
	atServer
	atOther
)

func (s fuzzScript) do(what, who, how byte, rest ...byte) fuzzScript {
	return append(append(s, what, who+3*how), rest...)
}

// raw has a packet arrive that names what is made to fit by its bits.
func (s fuzzScript) raw(who, fit byte, p wire.Packet) fuzzScript {
	n := p.Opcode.HeaderLen()
	b := make([]byte, n, n+len(p.Payload)+3)
	p.PutHeaders(b)
	b = append(b, p.Payload...)
	b = append(b, make([]byte, -len(p.Payload)&3)...)
	return append(s.do(stepRaw, who, 0, fit, byte(len(b)/4)), b...)
}

func addSeeds(f *testing.F, scripts ...fuzzScript) {
	for _, s := range scripts {
		f.Add([]byte(s))
	}
}

// Bits of the first byte of options, and some second ones.
const (
	seedAdaptive = 1 << iota
	seedControlled
	seedShared
	seedGuarded
	seedSignalAll
	seedFewRetries
	seedSmallWindow
	seedNoTimeout

	seedMTU4096    = 3
	seedManyReads  = 2<<2 | 2<<4
	seedNoReads    = 3 << 2
	seedNoAnswers  = 3 << 4
	seedNothingMay = 3 << 6
)

// What is forged.
const (
	forgeAckReq = 1 << iota
	_
	forgeWrongQKey
	forgePayload // of a length of its own
)

// Places of a key and of a window's, for keyAt.
const (
	seedWindow    = fuzzRegions + iota // the server's, bound on it
	seedWindow1                        // of type 1
	seedZeroBased                      // the same, of type 2
	_
	seedWrongKey
)

// Places in fuzzLengths.
const (
	seedNothing = 0
	seedWord    = 2
	seedFull    = 5 // a packet of the smallest MTU
	seedThree   = 8 // more than two packets
	seedLong    = 12
	seedVast    = 15
	seedTooLong = 17
)

// Places in the lengths of payloadOf.
const (
	seedMTU     = 5
	seedTwoMTUs = 7
)

// forge has a packet arrive: its place in the sequence, length, key, offset and last choice.
func (s fuzzScript) forge(who, how byte, op wire.Opcode, flags byte, behind int8, length, key, at, x byte, payload ...byte) fuzzScript {
	if len(payload) > 0 {
		flags |= forgePayload
	}
	return s.do(stepForge, who, how, append([]byte{byte(op), flags, byte(behind), length, key, at, x}, payload...)...)
}

// post has a request posted, with a signal.
func (s fuzzScript) post(who byte, op verbs.Opcode, flags, length, key, at byte) fuzzScript {
	return s.do(stepPost, who, 0, byte(op), flags|1, length, key, at, 0)
}

func (s fuzzScript) carry(rounds byte) fuzzScript { return s.do(stepCarry, 0, rounds-1) }

// expire has a deadline pass.
func (s fuzzScript) expire(who byte) fuzzScript { return s.do(stepTime, who, 0, 0) }

// seedPackets are all packets of a service, alone and under load.
func seedPackets(service wire.Service) (all []fuzzScript) {
	for op := range wire.Opcode(0x20) {
		if op = op.On(service); !op.Known() {
			continue
		}
		for who := range byte(2) {
			for _, key := range []byte{fuzzOpen, fuzzReadOnly, fuzzHidden, fuzzForeign, seedWindow, seedZeroBased, seedWrongKey} {
				for _, behind := range []int8{0, -1, 1} {
					s := fuzzScript{0, 0}.forge(who, 0, op, forgeAckReq, behind, seedWord, key, 0, 0)
					s = s.carry(2).forge(who, howPieces, op, forgeAckReq, behind, seedFull, key, 0, 1).carry(1)
					all = append(all, s)
				}
			}
			p := (&rig{}).forged(op, 0, 0, 8)
			all = append(all, fuzzScript{0, 0}.carry(4).raw(who, 7, p), fuzzScript{0, 0}.raw(who, 3, p).carry(1))
		}
	}
	return all
}

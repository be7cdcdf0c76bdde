package wire

import (
	"encoding/binary"
	"fmt"
	"time"
)

// AETHLen is the length of the acknowledge extended transport header in bytes.
const AETHLen = 4

// AETH is the acknowledge extended transport header (IBTA 9.3).
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // message sequence number, 24 bits
}

func (h *AETH) put(b *[AETHLen]byte) {
	binary.BigEndian.PutUint32(b[:], uint32(h.Syndrome)<<24|h.MSN&mask24)
}

func (h *AETH) get(b *[AETHLen]byte) {
	h.Syndrome = Syndrome(b[0])
	h.MSN = binary.BigEndian.Uint32(b[:]) & mask24
}

// Syndrome is the kind of an acknowledgement, in the upper three bits, and a value that
// depends on the kind, in the lower five (IBTA 9.7.5).
type Syndrome uint8

// SyndromeKind is the upper three bits of a [Syndrome].
type SyndromeKind uint8

// The kinds of syndrome.
const (
	KindAck      SyndromeKind = 0
	KindRNRNak   SyndromeKind = 1 // receiver not ready
	KindReserved SyndromeKind = 2 // every bit pattern that the standard does not define
	KindNak      SyndromeKind = 3
)

// String names the kind.
func (k SyndromeKind) String() string {
	switch k {
	case KindAck:
		return "ACK"
	case KindRNRNak:
		return "RNR NAK"
	case KindNak:
		return "NAK"
	default:
		return "reserved"
	}
}

// NakCode is the reason of a NAK (IBTA 9.7.5); 5 bits.
type NakCode uint8

// The reasons of a NAK.
const (
	NakSequence        NakCode = 0 // PSN sequence error
	NakInvalidRequest  NakCode = 1
	NakRemoteAccess    NakCode = 2
	NakRemoteOperation NakCode = 3
	NakInvalidRD       NakCode = 4
)

// String names the reason; an unknown one prints as a number.
func (c NakCode) String() string {
	switch c {
	case NakSequence:
		return "PSN sequence error"
	case NakInvalidRequest:
		return "invalid request"
	case NakRemoteAccess:
		return "remote access error"
	case NakRemoteOperation:
		return "remote operational error"
	case NakInvalidRD:
		return "invalid RD request"
	default:
		return fmt.Sprintf("NAK code %d", uint8(c))
	}
}

// AckUnlimited is the credit code of a responder that does not count credits.
const AckUnlimited = 0x1f

const (
	syndromeKindShift = 5
	syndromeValueMask = 1<<syndromeKindShift - 1
)

// Ack returns the syndrome of an acknowledgement with a credit code of 0 … 31. Of a larger
// code it uses the lower five bits.
func Ack(credits uint8) Syndrome { return makeSyndrome(KindAck, credits) }

// RNRNak returns the syndrome of a receiver-not-ready NAK with a timer code of 0 … 31 (see
// [RNRTimer]). Of a larger code it uses the lower five bits.
func RNRNak(timer uint8) Syndrome { return makeSyndrome(KindRNRNak, timer) }

// Nak returns the syndrome of a NAK with the given reason.
func Nak(code NakCode) Syndrome { return makeSyndrome(KindNak, uint8(code)) }

func makeSyndrome(kind SyndromeKind, value uint8) Syndrome {
	return Syndrome(uint8(kind)<<syndromeKindShift | value&syndromeValueMask)
}

// Kind returns the kind of the syndrome.
func (s Syndrome) Kind() SyndromeKind {
	if k := SyndromeKind(s >> syndromeKindShift); k <= KindNak {
		return k
	}
	return KindReserved
}

// Credits is the credit code of a [KindAck] syndrome, 0 … 31.
func (s Syndrome) Credits() uint8 { return uint8(s) & syndromeValueMask }

// Timer is the timer code of a [KindRNRNak] syndrome, 0 … 31.
func (s Syndrome) Timer() uint8 { return uint8(s) & syndromeValueMask }

// Code is the reason of a [KindNak] syndrome.
func (s Syndrome) Code() NakCode { return NakCode(s & syndromeValueMask) }

// IsFatal reports whether the syndrome is a NAK after which the responder enters the error
// state (IBTA 9.9.3.1, class C).
func (s Syndrome) IsFatal() bool {
	return s.Kind() == KindNak && s.Code() >= NakInvalidRequest && s.Code() <= NakRemoteOperation
}

// String names the kind and its value.
func (s Syndrome) String() string {
	switch s.Kind() {
	case KindAck:
		return fmt.Sprintf("ACK (credit code %d)", s.Credits())
	case KindRNRNak:
		return fmt.Sprintf("RNR NAK (%v)", RNRTimer(s.Timer()))
	case KindNak:
		return fmt.Sprintf("NAK (%v)", s.Code())
	default:
		return fmt.Sprintf("syndrome %#02x", uint8(s))
	}
}

// RNRTimer returns how long a requester waits after a receiver-not-ready NAK with the given
// timer code (IBTA 9.7.5, table 46): 10 µs for code 1, growing to 491.52 ms for code 31, and
// 655.36 ms for code 0. Of a code above 31 it uses the lower five bits.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&syndromeValueMask]) * 10 * time.Microsecond
}

// In units of 10 µs.
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// Package greeting is what the two ends of an exchange over connections by address tell
// each other in the private data of the connection manager's messages, and in the words of
// their landing memory. A message is the magic, the version, the kind, and the fields of the
// struct below in their order; numbers are big-endian.
//
// Private data travels without its length: what follows a greeting is zero.
package greeting

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/verbena-rdma/verbena/descriptor"
)

const (
	magic = "VBNC"
	// Version is that of the greetings and of the exchange that follows.
	Version = 1
)

type kind uint8

const (
	kindRequest kind = 1 + iota
	kindFurther
	kindAcceptance
	kindFurtherAcceptance
	kindRefusal
	kindReport
	kindAcknowledgement
)

// Token ties together the messages of one exchange. Only its two ends know it.
type Token [16]byte

// NewToken makes one.
func NewToken() (t Token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// Landing is memory that the peer is to write to: Words bytes of words, and then Size
// bytes for what it offers.
type Landing struct {
	Addr uint64
	RKey uint32
	Size uint32
}

// Request comes with the first connection.
type Request struct {
	Token       Token
	Connections uint16 // how many there will be, from 1
	Landing     Landing
	Length      uint32 // of the bundle that will come
}

// Further comes with each other connection.
type Further struct {
	Token Token
	Index uint16 // of the connection, from 1
}

// Acceptance answers a Request.
type Acceptance struct {
	Landing Landing
	Reports bool // the responder takes a Report
}

// Refusal comes with a rejection.
type Refusal struct {
	Busy bool   // another attempt may succeed
	Text string // the reason, at most MaxText bytes of UTF-8
}

// Report is how the requester has ended.
type Report struct {
	Token Token
	OK    bool
}

// The most bytes that each message of the connection manager carries for its user.
const (
	maxRequest = 56
	maxRefusal = 148
)

// MaxText is how long the text of a Refusal may be, in bytes.
const MaxText = maxRefusal - header - 3

const header = len(magic) + 2

func begin(k kind) []byte { return append([]byte(magic), Version, byte(k)) }

func appendLanding(b []byte, l Landing) []byte {
	b = binary.BigEndian.AppendUint64(b, l.Addr)
	b = binary.BigEndian.AppendUint32(b, l.RKey)
	return binary.BigEndian.AppendUint32(b, l.Size)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// Encode makes private data of it.
func (r *Request) Encode() []byte {
	b := append(begin(kindRequest), r.Token[:]...)
	b = binary.BigEndian.AppendUint16(b, r.Connections)
	return binary.BigEndian.AppendUint32(appendLanding(b, r.Landing), r.Length)
}

// Encode makes private data of it.
func (f *Further) Encode() []byte {
	return binary.BigEndian.AppendUint16(append(begin(kindFurther), f.Token[:]...), f.Index)
}

// Encode makes private data of it.
func (a *Acceptance) Encode() []byte {
	return appendBool(appendLanding(begin(kindAcceptance), a.Landing), a.Reports)
}

// FurtherAcceptance answers a Further.
func FurtherAcceptance() []byte { return begin(kindFurtherAcceptance) }

// Encode makes private data of it. A text that is too long is cut.
func (r *Refusal) Encode() []byte {
	text := Cut(r.Text, MaxText)
	b := binary.BigEndian.AppendUint16(appendBool(begin(kindRefusal), r.Busy), uint16(len(text)))
	return append(b, text...)
}

// Cut cuts a text between two characters.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Encode makes private data of it.
func (r *Report) Encode() []byte { return appendBool(append(begin(kindReport), r.Token[:]...), r.OK) }

// Acknowledgement answers a Report.
func Acknowledgement() []byte { return begin(kindAcknowledgement) }

// reader takes private data apart. What is missing reads as zero, and fails at the end.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", descriptor.ErrFormat, fmt.Sprintf(format, args...))
	}
}

// read begins with the header, and returns the kind.
func read(b []byte) (*reader, kind) {
	r := &reader{b: b}
	if len(b) < header || string(b[:len(magic)]) != magic {
		r.fail("the private data is not of a program that exchanges by connection manager, with package oob")
		return r, 0
	}
	if v := b[len(magic)]; v != Version {
		r.err = fmt.Errorf("%w: it is %d, this program has %d", descriptor.ErrVersion, v, Version)
		return r, 0
	}
	r.b = b[header:]
	return r, kind(b[len(magic)+1])
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail("the private data is cut short")
		r.b = nil
		return make([]byte, n)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }

func (r *reader) bool() bool {
	v := r.take(1)[0]
	if v > 1 {
		r.fail("a flag is %d", v)
	}
	return v == 1
}

func (r *reader) token() (t Token) {
	copy(t[:], r.take(len(t)))
	return t
}

func (r *reader) landing() Landing {
	return Landing{Addr: r.uint64(), RKey: r.uint32(), Size: r.uint32()}
}

// done fails where something other than zeroes is left.
func (r *reader) done() error {
	for _, c := range r.b {
		if c != 0 {
			r.fail("the private data goes on where it should end")
		}
	}
	return r.err
}

// ReadRequest takes the private data of a request for a connection apart: it has either a
// Request or a Further. Errors match descriptor.ErrFormat or ErrVersion.
func ReadRequest(b []byte) (*Request, *Further, error) {
	r, k := read(b)
	switch k {
	case kindRequest:
		q := &Request{Token: r.token(), Connections: r.uint16(), Landing: r.landing(), Length: r.uint32()}
		if q.Connections == 0 {
			r.fail("it announces no connections")
		}
		return q, nil, r.done()
	case kindFurther:
		f := &Further{Token: r.token(), Index: r.uint16()}
		if f.Index == 0 {
			r.fail("a further connection is the first")
		}
		return nil, f, r.done()
	}
	return nil, nil, r.unexpected(k)
}

func (r *reader) unexpected(k kind) error {
	r.fail("private data of kind %d is not expected here", k)
	return r.err
}

// ReadAcceptance takes the private data of an acceptance of the first connection apart.
func ReadAcceptance(b []byte) (*Acceptance, error) {
	r, k := read(b)
	if k != kindAcceptance {
		return nil, r.unexpected(k)
	}
	a := &Acceptance{Landing: r.landing(), Reports: r.bool()}
	return a, r.done()
}

// CheckFurtherAcceptance fails for what is not the private data of one.
func CheckFurtherAcceptance(b []byte) error { return check(b, kindFurtherAcceptance) }

// CheckAcknowledgement fails for what is not the private data of one.
func CheckAcknowledgement(b []byte) error { return check(b, kindAcknowledgement) }

func check(b []byte, want kind) error {
	r, k := read(b)
	if k != want {
		return r.unexpected(k)
	}
	return r.done()
}

// ReadRefusal takes the private data of a rejection apart.
func ReadRefusal(b []byte) (*Refusal, error) {
	r, k := read(b)
	if k != kindRefusal {
		return nil, r.unexpected(k)
	}
	f := &Refusal{Busy: r.bool()}
	n := int(r.uint16())
	if n > MaxText {
		r.fail("the text of a refusal has %d bytes", n)
		return nil, r.err
	}
	f.Text = string(r.take(n))
	return f, r.done()
}

// ReadReport takes the private data of a report apart.
func ReadReport(b []byte) (*Report, error) {
	r, k := read(b)
	if k != kindReport {
		return nil, r.unexpected(k)
	}
	p := &Report{Token: r.token(), OK: r.bool()}
	return p, r.done()
}

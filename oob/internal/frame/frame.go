// Package frame encodes what ways carry: a bundle (package descriptor) with the names of the
// two programs, whose data has the state of the exchange, and the bytes that a program gives to
// the other.
package frame

import (
	"fmt"
	"io"

	"github.com/verbena-rdma/verbena/descriptor"
)

// Outcome is how a program ended.
type Outcome uint8

// The outcomes.
const (
	Running Outcome = iota // it has not ended
	Succeeded
	Failed
)

// OutcomeOf is Succeeded or Failed.
func OutcomeOf(ok bool) Outcome {
	if ok {
		return Succeeded
	}
	return Failed
}

// MaxToken is how long Run and Seen may be, in bytes.
const MaxToken = 64

// Frame is one message of a program.
type Frame struct {
	From, To  string // the names of the programs
	Responder bool   // what it is in its pair
	// Run distinguishes runs of a program, and Seen is that of the peer, once it is known. A
	// frame whose Seen is our Run is not left over from an earlier run.
	Run, Seen string
	Outcome   Outcome
	Body      []byte // what it gives to the peer; empty: nothing
}

// Encode makes the frame's binary form, which begins with its length. It fails with
// the errors of descriptor.Bundle.Encode.
func (f *Frame) Encode() ([]byte, error) {
	var w descriptor.Writer
	w.Bool(f.Responder)
	w.Uint8(uint8(f.Outcome))
	w.Counted([]byte(f.Run))
	w.Counted([]byte(f.Seen))
	w.Counted(f.Body)
	// The container around the fields is taken off again: it is not needed twice.
	desc, err := w.Encode(descriptor.Bundled)
	if err != nil {
		return nil, err
	}
	data, err := descriptor.Decode(descriptor.Bundled, desc)
	if err != nil {
		return nil, err
	}
	return (&descriptor.Bundle{From: f.From, To: f.To, Data: data}).Encode()
}

// Decode takes a frame apart. It is strict: nothing unknown, nothing left over, no
// descriptors beside the body. Errors match those of package descriptor.
func Decode(b []byte) (Frame, error) {
	bundle, err := descriptor.DecodeBundle(b)
	if err != nil {
		return Frame{}, err
	}
	if len(bundle.Connections)+len(bundle.Maps)+len(bundle.Events) > 0 {
		return Frame{}, fmt.Errorf("%w: a bundle with descriptors is where a frame should be", descriptor.ErrFormat)
	}
	r := descriptor.NewReader(bundle.Data)
	f := Frame{From: bundle.From, To: bundle.To}
	f.Responder = r.Bool()
	f.Outcome = Outcome(r.Uint8())
	f.Run, f.Seen = string(r.Counted()), string(r.Counted())
	if body := r.Counted(); len(body) > 0 {
		f.Body = body
	}
	if err := r.Done(); err != nil {
		return Frame{}, err
	}
	if f.Outcome > Failed || len(f.Run) > MaxToken || len(f.Seen) > MaxToken {
		return Frame{}, fmt.Errorf("%w: its outcome is %d, its tokens have %d and %d bytes", descriptor.ErrFormat, f.Outcome, len(f.Run), len(f.Seen))
	}
	return f, nil
}

// Peeker is a reader that can look ahead by MaxSize bytes, such as a bufio.Reader of
// that size.
type Peeker interface {
	Peek(n int) ([]byte, error)
	Discard(n int) (int, error)
}

// The container of a bundle: what comes before the payload, and around it.
const (
	headerSize = 10
	aroundSize = headerSize + 4
	// MaxSize is the length of the longest frame, in bytes.
	MaxSize = aroundSize + descriptor.MaxPayload
)

// Read reads the next frame of a stream. Where it fails, nothing has been taken off
// the stream: after a deadline it can be called again. It reads no more than a frame
// may have, whatever the stream claims.
func Read(r Peeker) (Frame, error) {
	// Byte by byte, so that what is none is refused before more of it comes.
	var header []byte
	for n := 1; n <= headerSize; n++ {
		var err error
		if header, err = r.Peek(n); err != nil {
			return Frame{}, cut(err, n > 1)
		}
		if magic := "VRBN"; n <= len(magic) && header[n-1] != magic[n-1] {
			return Frame{}, fmt.Errorf("%w: it does not begin with %q", descriptor.ErrFormat, magic)
		}
	}
	size := uint64(header[6])<<24 | uint64(header[7])<<16 | uint64(header[8])<<8 | uint64(header[9])
	if size > descriptor.MaxPayload {
		return Frame{}, fmt.Errorf("%w: it claims %d bytes, at most %d are allowed", descriptor.ErrTooBig, size, descriptor.MaxPayload)
	}
	b, err := r.Peek(aroundSize + int(size))
	if err != nil {
		return Frame{}, cut(err, true)
	}
	f, err := Decode(b)
	if err != nil {
		return Frame{}, err
	}
	f.Body = append([]byte(nil), f.Body...)
	_, err = r.Discard(len(b))
	return f, err
}

func cut(err error, inside bool) error {
	if err == io.EOF && inside {
		return io.ErrUnexpectedEOF
	}
	return err
}

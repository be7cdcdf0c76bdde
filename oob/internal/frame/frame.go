// Package frame encodes the messages of an exchange. A frame is a bundle (package descriptor)
// with the names of the two programs. Its data holds the state of the exchange, and the bytes
// that one program gives to the other.
package frame

import (
	"fmt"
	"io"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/wirecode"
)

// Outcome is how a program ended.
type Outcome uint8

// The outcomes.
const (
	Running Outcome = iota // the program has not ended
	Succeeded
	Failed
)

// OutcomeOf returns Succeeded for true, and Failed for false.
func OutcomeOf(ok bool) Outcome {
	if ok {
		return Succeeded
	}
	return Failed
}

// MaxToken is the largest length of Run and Seen, in bytes.
const MaxToken = 64

// Frame is one message of a program.
type Frame struct {
	From, To  string // the names of the programs
	Responder bool   // the role of the sender
	// Run distinguishes runs of a program. Seen is the peer's Run, once it is known. A
	// frame whose Seen is our Run is not left over from an earlier run.
	Run, Seen string
	Outcome   Outcome
	Body      []byte // the bytes for the peer; may be empty
}

// Encode returns the frame's binary form, which has its length in its header. It fails with
// the errors of descriptor.Bundle.Encode.
func (f *Frame) Encode() ([]byte, error) {
	var c wirecode.Coder
	written := *f
	written.code(&c)
	data, err := c.Payload()
	if err != nil {
		return nil, err
	}
	return (&descriptor.Bundle{From: f.From, To: f.To, Data: data}).Encode()
}

// code codes the fields behind the names.
func (f *Frame) code(c *wirecode.Coder) {
	c.Bool(&f.Responder)
	wirecode.Int(c, &f.Outcome, 1)
	run, seen := []byte(f.Run), []byte(f.Seen)
	c.Counted(&run)
	c.Counted(&seen)
	c.Counted(&f.Body)
	if f.Run, f.Seen = string(run), string(seen); len(f.Body) == 0 {
		f.Body = nil
	}
}

// Decode decodes a frame. It refuses unknown values, trailing bytes, and descriptors outside
// the body. Errors match those of package descriptor.
func Decode(b []byte) (Frame, error) {
	bundle, err := descriptor.DecodeBundle(b)
	if err != nil {
		return Frame{}, err
	}
	if len(bundle.Connections)+len(bundle.Maps)+len(bundle.Events) > 0 {
		return Frame{}, fmt.Errorf("%w: the bundle of a frame must not have descriptors", descriptor.ErrFormat)
	}
	c := wirecode.ReadFrom(bundle.Data)
	f := Frame{From: bundle.From, To: bundle.To}
	f.code(c)
	if err := c.Done(); err != nil {
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

// The container of a bundle: the bytes before the payload, and all bytes around it.
const (
	headerSize = 10
	aroundSize = headerSize + 4
	// MaxSize is the length of the longest frame, in bytes.
	MaxSize = aroundSize + descriptor.MaxPayload
)

// Read reads the next frame of a stream. If it fails, it has consumed nothing: after a
// deadline it can be called again. It never reads more than MaxSize bytes, whatever length the
// stream claims.
func Read(r Peeker) (Frame, error) {
	// Byte by byte, so that anything but a frame is refused at its first wrong byte.
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
		return Frame{}, fmt.Errorf("%w: its header says %d bytes, but at most %d are allowed", descriptor.ErrTooBig, size, descriptor.MaxPayload)
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

package perftest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	version    = "6.06"
	versionLen = 16
	// cycleBuffer and cacheLine are the buffer, of one page, that perftest cycles through, and
	// the size of a cache line. Both ends must have the same.
	cycleBuffer = 4096
	cacheLine   = 64
)

// ending is the exchange before and after a test.
type ending struct {
	greetings int  // lines of keys that each end sends before the test
	result    bool // then one more line, and the result of the client
	goodbye   bool // then one more line, and "done"
}

// endingOf returns the ending of the program for a test, as recorded.
func endingOf(t plan.Test) (ending, error) {
	switch {
	case t.Kind == plan.Batches:
		return ending{}, errors.New("perftest has no program for batches of package transfer")
	case t.Op == plan.WriteImm:
		return ending{}, errors.New("perftest 4.5 has no program that writes with immediate")
	case t == plan.Test{Op: plan.Write, Kind: plan.Latency}:
		return ending{4, false, false}, nil
	case t.Kind == plan.Latency, t.Op == plan.Send:
		return ending{4, false, true}, nil
	}
	return ending{3, true, true}, nil
}

// Check returns an error if perftest has no program for a test.
func Check(t plan.Test) error {
	_, err := endingOf(t)
	return err
}

// Session is the exchange about one test. The client sends each item first; the server answers
// with its own.
type Session struct {
	stream io.ReadWriter
	server bool
	ending ending
	keys   Keys
}

// New makes a session.
func New(stream io.ReadWriter, t plan.Test, server bool) (*Session, error) {
	e, err := endingOf(t)
	return &Session{stream: stream, server: server, ending: e}, err
}

// exchange sends a message and receives one of the same length.
func (s *Session) exchange(own []byte) (peer []byte, err error) {
	peer = make([]byte, len(own))
	steps := []func() error{
		func() error { _, err := s.stream.Write(own); return err },
		func() error { _, err := io.ReadFull(s.stream, peer); return err },
	}
	if s.server {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, f := range steps {
		if err := f(); err != nil {
			return nil, fmt.Errorf("the other end has closed the connection: %w", err)
		}
	}
	return peer, nil
}

// same exchanges a value that must be the same at both ends.
func (s *Session) same(what string, own []byte) error {
	peer, err := s.exchange(own)
	if err == nil && !bytes.Equal(own, peer) {
		err = fmt.Errorf("%w: its %s is %q, want %q", ErrProtocol, what, bytes.TrimRight(peer, "\x00"), bytes.TrimRight(own, "\x00"))
	}
	return err
}

// Open agrees on the path MTU, and exchanges keys.
func (s *Session) Open(own Keys, mtu verbs.MTU) (peer *Keys, agreed verbs.MTU, err error) {
	if err := s.same("version", append([]byte(version), make([]byte, versionLen-len(version))...)); err != nil {
		return nil, 0, err
	}
	for _, v := range []uint32{cycleBuffer, cacheLine} {
		if err := s.same("buffer or cache line", binary.BigEndian.AppendUint32(nil, v)); err != nil {
			return nil, 0, err
		}
	}
	b, err := s.exchange([]byte{codeOf(mtu), 0})
	if err != nil {
		return nil, 0, err
	}
	agreed = 128 << (b[0] - '0')
	if b[0] < '1' || b[0] > '5' || b[1] != 0 {
		return nil, 0, fmt.Errorf("%w: its path MTU is %q", ErrProtocol, b)
	}
	s.keys = own
	peer, err = s.greet()
	return peer, min(agreed, mtu), err
}

// codeOf is the code of a path MTU (IBTA 9.4.3).
func codeOf(mtu verbs.MTU) byte {
	code := byte('1')
	for m := verbs.MTU(256); m < mtu; m *= 2 {
		code++
	}
	return code
}

// greet exchanges keys. The first exchange transfers them; the later ones synchronize the
// ends.
func (s *Session) greet() (*Keys, error) {
	b, err := s.exchange(s.keys.Append(nil))
	if err != nil {
		return nil, err
	}
	return ParseKeys(b)
}

// Begin waits until both ends are ready for the test.
func (s *Session) Begin() error {
	for range s.ending.greetings - 1 {
		if _, err := s.greet(); err != nil {
			return err
		}
	}
	return nil
}

// Result is the result that a client sends.
type Result struct {
	Size, Operations    uint64
	Peak, Average, Rate float64 // 2^20 bytes, and million operations, a second
}

// End exchanges the ending. A client calls it after it has measured; a server waits in it for
// the client.
func (s *Session) End(own Result) error {
	if s.ending.result {
		if _, err := s.greet(); err != nil {
			return err
		}
		for _, v := range []uint64{own.Size, own.Operations, math.Float64bits(own.Peak), math.Float64bits(own.Average), math.Float64bits(own.Rate)} {
			if _, err := s.exchange(binary.BigEndian.AppendUint64(nil, v)); err != nil {
				return err
			}
		}
	}
	if s.ending.goodbye {
		if _, err := s.greet(); err != nil {
			return err
		}
		if _, err := s.exchange([]byte("done\x00")); err != nil {
			return err
		}
	}
	return nil
}

// WaitGone waits until the other end closes the stream, for tests that have no ending.
func (s *Session) WaitGone() { _, _ = io.Copy(io.Discard, s.stream) }

// Goodbye reports whether the programs send "done" at the end. If not, a server learns only
// from the end of the stream that the client has measured.
func (s *Session) Goodbye() bool { return s.ending.goodbye }

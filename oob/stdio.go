package oob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/verbena-rdma/verbena/descriptor"
)

// The reports that the requester prints at its end.
const (
	succeeded = "succeeded"
	failed    = "failed"
)

// stdio exchanges bundles on the standard files: ours is printed, the peer's is
// pasted. The requester's report is one line.
type stdio struct {
	out       io.Writer
	lines     *lineReader
	ends      Ends
	exchanged bool
}

// Stdio exchanges by copy and paste: the program prints one block of text on out, and
// reads that of its peer from in. Other lines are skipped, so out may also carry other output.
// Config.Notify says what to paste, and when. A read from a terminal cannot be interrupted: a
// goroutine stays in Read until in ends, or has a line after the Peer was closed. Nor can a
// write to out be interrupted: if out is a full pipe, Exchange and Close wait until it is read.
func Stdio(in io.Reader, out io.Writer) Way { return Carried(&stdio{out: out, lines: readLines(in)}) }

func (s *stdio) String() string { return "standard input" }

func (s *stdio) Exchange(ctx context.Context, ends Ends, ours []byte) ([]byte, error) {
	s.ends = ends
	if _, err := io.WriteString(s.out, descriptor.Armor(ours)); err != nil {
		return nil, fmt.Errorf("print the bundle: %w", err)
	}
	ends.Note(fmt.Sprintf("give the lines from BEGIN to END to %s, and paste the lines that it prints here", ends.Peer))
	theirs, err := s.block(ctx)
	s.exchanged = err == nil
	return theirs, err
}

// block returns the next armored bundle; other lines are skipped.
func (s *stdio) block(ctx context.Context) ([]byte, error) {
	var block strings.Builder
	for {
		line, err := s.lines.next(ctx)
		if err != nil {
			return nil, err
		}
		if block.Len() == 0 && !strings.HasPrefix(line, "-----BEGIN ") {
			continue
		}
		if block.WriteString(line + "\n"); block.Len() > descriptor.MaxFile {
			return nil, errors.New("the pasted text is too long for a descriptor")
		}
		if !strings.HasPrefix(line, "-----END ") {
			continue
		}
		kind, _, err := descriptor.Parse([]byte(block.String()))
		switch {
		case err != nil:
			return nil, fmt.Errorf("read the pasted text: %w", err)
		case kind != descriptor.Bundled:
			return nil, fmt.Errorf("%w: the pasted text is a %v descriptor, but a bundle is needed; paste the text that %s prints", descriptor.ErrKind, kind, s.ends.Peer)
		}
		return []byte(block.String()), nil
	}
}

func (s *stdio) Done(ctx context.Context) error {
	s.ends.Note(fmt.Sprintf("when %s has ended, paste or type its last line, %s or %s", s.ends.Peer, succeeded, failed))
	for {
		line, err := s.lines.next(ctx)
		switch {
		case err != nil:
			return err
		case line == succeeded:
			return nil
		case line == failed:
			return peerFailed(s.ends.Peer)
		}
	}
}

func (s *stdio) Close(ok bool) error {
	s.lines.close()
	if !s.exchanged || s.ends.Role != Requester {
		return nil
	}
	line := failed
	if ok {
		line = succeeded
	}
	_, err := fmt.Fprintln(s.out, line)
	return err
}

package descriptor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Scanner reads armored descriptors from a stream, one after another, such as those that a
// user pastes on standard input.
type Scanner struct {
	r *bufio.Reader
	// begin is the BEGIN line that cut the previous block short.
	begin string
}

// NewScanner returns a Scanner of r. The Scanner reads ahead: it may consume bytes of r after a
// descriptor.
func NewScanner(r io.Reader) *Scanner {
	return &Scanner{r: bufio.NewReaderSize(r, MaxFile)}
}

// Next returns the next descriptor in its binary form, with its kind, as soon as its END line
// has been read. Lines outside of blocks are skipped.
//
// At the end of the stream it returns io.EOF. An invalid block gives an error that matches one
// of this package's, and the next call continues after it. Any other error is the stream's.
func (s *Scanner) Next() (Kind, []byte, error) {
	begin, err := s.findBegin()
	if err != nil {
		return 0, nil, err
	}
	block := []byte(begin + "\n")
	for {
		line, err := s.line()
		if errors.Is(err, io.EOF) {
			return 0, nil, fmt.Errorf("read descriptor: %w: the input ends before its END line; paste it from BEGIN to END", ErrTruncated)
		}
		if err != nil {
			return 0, nil, err
		}
		if _, ok := labelOf(line, beginPrefix); ok {
			s.begin = line
			return 0, nil, fmt.Errorf("read descriptor: %w: another one begins before its END line; paste it from BEGIN to END", ErrTruncated)
		}
		// One byte too many is enough for Parse to see that the block is too long.
		if room := MaxFile + 1 - len(block); room > 0 {
			block = append(block, line[:min(len(line), room)]...)
			block = append(block, '\n')
		}
		if _, ok := labelOf(line, endPrefix); ok {
			break
		}
	}
	kind, _, err := Parse(block)
	if err != nil {
		return 0, nil, fmt.Errorf("read descriptor: %w", err)
	}
	_, raw, err := unarmor(bytes.TrimSpace(block))
	return kind, raw, err
}

func (s *Scanner) findBegin() (string, error) {
	if line := s.begin; line != "" {
		s.begin = ""
		return line, nil
	}
	for {
		line, err := s.line()
		if err != nil {
			return "", err
		}
		if _, ok := labelOf(line, beginPrefix); ok {
			return line, nil
		}
	}
}

// line returns the next line without surrounding white space. A line longer than any
// descriptor is cut, but still makes its block too long.
func (s *Scanner) line() (string, error) {
	b, err := s.r.ReadSlice('\n')
	line := strings.TrimSpace(string(b))
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = s.r.ReadSlice('\n')
	}
	switch {
	case err == nil, errors.Is(err, io.EOF) && line != "":
		return line, nil
	case errors.Is(err, io.EOF):
		return "", io.EOF
	}
	return "", fmt.Errorf("read descriptor: %w", err)
}

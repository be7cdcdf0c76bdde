package descriptor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Scanner takes armored descriptors out of a stream one after the other, such as
// those that a person pastes on standard input.
type Scanner struct {
	r *bufio.Reader
	// begin is a BEGIN line that cut the block before it short.
	begin string
}

// NewScanner returns a Scanner of r. It reads ahead: what follows a descriptor
// on r belongs to the Scanner.
func NewScanner(r io.Reader) *Scanner {
	return &Scanner{r: bufio.NewReaderSize(r, MaxFile)}
}

// Next returns the next descriptor in its binary form, with its kind, as soon as
// its END line has been read. Lines outside of blocks are skipped.
//
// At the end of the stream it returns io.EOF. A bad block gives an error that
// matches one of this package's, and the next call goes on behind it; any other
// error is the stream's.
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
		// Too long by one is enough for Parse to see that it is too long.
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

// line returns the next line without the white space around it. Of one that is
// longer than any descriptor it returns as much as makes a block too long.
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

package oob

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/verbena-rdma/verbena/descriptor"
)

// lineReader reads lines on a goroutine of its own, so that a wait for a line can be given up.
// The goroutine stays in Read, since a read of a terminal cannot be interrupted. It ends at the
// end of the input, or with the first line after close.
type lineReader struct {
	in     io.Reader
	start  sync.Once
	lines  chan string
	err    error // valid once lines is closed
	ending sync.Once
	done   chan struct{}
}

func readLines(in io.Reader) *lineReader {
	return &lineReader{in: in, lines: make(chan string), done: make(chan struct{})}
}

// close ends the goroutine, with the next line at the latest.
func (r *lineReader) close() { r.ending.Do(func() { close(r.done) }) }

func (r *lineReader) next(ctx context.Context) (string, error) {
	r.start.Do(func() { go r.read() })
	select {
	case line, ok := <-r.lines:
		if !ok {
			return "", fmt.Errorf("read standard input: %w", r.err)
		}
		return line, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (r *lineReader) read() {
	defer close(r.lines)
	s := bufio.NewScanner(r.in)
	s.Buffer(nil, descriptor.MaxFile)
	for s.Scan() {
		select {
		case <-r.done:
			r.err = ErrClosed
			return
		default:
		}
		select {
		case r.lines <- strings.TrimSpace(s.Text()):
		case <-r.done:
			r.err = ErrClosed
			return
		}
	}
	if r.err = s.Err(); r.err == nil {
		r.err = errors.New("the input has ended")
	}
}

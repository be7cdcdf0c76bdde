package rig

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strings"
)

// pipes carry QEMU's output.
type pipes struct {
	read, write []*os.File
}

func openPipes(n int) (*pipes, error) {
	p := &pipes{}
	for range n {
		r, w, err := os.Pipe()
		if err != nil {
			p.close()
			return nil, err
		}
		p.read = append(p.read, r)
		p.write = append(p.write, w)
	}
	return p, nil
}

func (p *pipes) closeWriters() {
	for _, f := range p.write {
		f.Close()
	}
	p.write = nil
}

func (p *pipes) close() {
	p.closeWriters()
	for _, f := range p.read {
		f.Close()
	}
}

// A tail keeps the end of its input.
type tail struct {
	kept []byte
}

const tailBytes = 16 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b...)
	if len(t.kept) > 2*tailBytes {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-tailBytes:]...)
	}
	return len(b), nil
}

// lines returns the last n lines that are not blank.
func (t *tail) lines(n int) []string {
	var lines []string
	for line := range strings.Lines(string(t.kept)) {
		if line = strings.TrimRight(line, "\r\n \t"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-n):]
}

// linesAfter returns the last n lines after the line mark, or of all lines if there is no
// mark.
func (t *tail) linesAfter(mark string, n int) []string {
	lines := t.lines(len(t.kept))
	lines = lines[slices.Index(lines, mark)+1:]
	return lines[max(0, len(lines)-n):]
}

func newLines(from io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	return lines
}

// appendBounded appends to a report, and keeps it short.
func appendBounded(list []string, s string) []string {
	if len(list) >= 100 {
		return list
	}
	return append(list, s)
}

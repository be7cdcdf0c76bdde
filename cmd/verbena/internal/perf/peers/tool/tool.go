// Package tool knows the programs that verbena perf peers compares: how to start them, and how
// to read what they print. Their output is read strictly: what is not exactly as expected is an
// error, and no figure.
package tool

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
)

// Tool is a way to measure figures between two processes.
type Tool interface {
	// Name names it in the tables.
	Name() string
	// Program is the file that is run.
	Program() string
	// Measures reports whether it has a measurement of a figure.
	Measures(f figure.Figure) bool
	// FirstCount is how many operations a first measurement makes that finds out how many
	// the others have to make; zero: the tool measures for a time.
	FirstCount(f figure.Figure) int
	// Commands are those of both ends.
	Commands(j *Job) (server, client Command)
	// Read reads the standard output of the client.
	Read(j *Job, out string) (figure.Sample, error)
}

// Batch, Window and Depth are how many small operations are posted together and are under way,
// and how many large ones are, with programs that can be told.
const (
	Batch  = 64
	Window = 8 * Batch
	Depth  = 16
)

// firstCount is that of all programs that count: some milliseconds of work.
func firstCount(f figure.Figure) int {
	switch {
	case f.Kind == figure.Rate:
		return 256 * Batch
	case f.IsTime():
		return 16 * Batch
	}
	return max(Batch, 16<<20/f.Size)
}

// Job is one measurement.
type Job struct {
	Figure figure.Figure
	Count  int           // operations, where the tool counts; a multiple of Batch
	Time   time.Duration // otherwise
	Limit  time.Duration // after which the measurement has failed
	Server netip.Addr
	Port   int    // TCP, of the server
	Link   string // interface by which each end reaches the other
}

// Command is a command line.
type Command struct {
	Env  []string // beyond those of this process
	Args []string // the first is the program
}

// String is the command as a shell takes it.
func (c Command) String() string {
	words := append(c.Env[:len(c.Env):len(c.Env)], c.Args...)
	for i, w := range words {
		if strings.ContainsAny(w, " ?*&;'\"") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// errOutput: a program has not printed what it was expected to.
var errOutput = errors.New("its output is not understood")

func badOutput(out string, format string, args ...any) error {
	const most = 400
	if len(out) > most {
		out = out[:most] + "..."
	}
	return fmt.Errorf("%w: %s: %q", errOutput, fmt.Sprintf(format, args...), out)
}

// lines are the lines of a text that are not empty.
func lines(text string) (list []string) {
	for l := range strings.Lines(text) {
		if l = strings.TrimRight(l, "\r\n"); l != "" {
			list = append(list, l)
		}
	}
	return list
}

// positive reads numbers that have to be above zero, and finite.
func positive(words ...string) (values []float64, err error) {
	for _, w := range words {
		v, err := strconv.ParseFloat(strings.TrimSpace(w), 64)
		if err != nil || !(v > 0) || v > 1e18 {
			return nil, fmt.Errorf("%q is no positive number", w)
		}
		values = append(values, v)
	}
	return values, nil
}

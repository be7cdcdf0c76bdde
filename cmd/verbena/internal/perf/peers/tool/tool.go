// Package tool has the command lines of the programs that verbena perf peers compares, and
// parses what they print. Parsing is strict: output that is not exactly as expected is an
// error, not a figure.
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

// Tool measures figures between two processes.
type Tool interface {
	// Name names it in the tables.
	Name() string
	// Program is the file that is run.
	Program() string
	// Measures reports whether the tool can measure a figure.
	Measures(f figure.Figure) bool
	// FirstCount is the number of operations of a first measurement, which finds out how many
	// the following ones need; zero: the tool measures for a given time.
	FirstCount(f figure.Figure) int
	// Commands returns the commands of both ends.
	Commands(j *Job) (server, client Command)
	// Read reads the standard output of the client.
	Read(j *Job, out string) (figure.Sample, error)
}

// Batch is how many small operations are posted together, Window how many of them are in
// flight, and Depth how many large ones are, with programs that have options for these.
const (
	Batch  = 64
	Window = 8 * Batch
	Depth  = 16
)

// firstCount is the FirstCount of all programs that count: some milliseconds of work.
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
	Count  int           // operations, if the tool counts them; a multiple of Batch
	Time   time.Duration // if the tool measures for a time
	Limit  time.Duration // after which the measurement has failed
	Server netip.Addr
	Port   int    // TCP, of the server
	Link   string // interface by which each end reaches the other
}

// Command is a command line.
type Command struct {
	Env  []string // added to the environment of this process
	Args []string // the first is the program
}

// String returns the command in the syntax of a shell.
func (c Command) String() string {
	words := append(c.Env[:len(c.Env):len(c.Env)], c.Args...)
	for i, w := range words {
		if strings.ContainsAny(w, " ?*&;'\"") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// errOutput: a program has printed something unexpected.
var errOutput = errors.New("cannot parse its output")

func badOutput(out string, format string, args ...any) error {
	const most = 400
	if len(out) > most {
		out = out[:most] + "..."
	}
	return fmt.Errorf("%w: %s: %q", errOutput, fmt.Sprintf(format, args...), out)
}

// lines returns the non-empty lines of a text.
func lines(text string) (list []string) {
	for l := range strings.Lines(text) {
		if l = strings.TrimRight(l, "\r\n"); l != "" {
			list = append(list, l)
		}
	}
	return list
}

// positive parses numbers, which must be above zero and finite.
func positive(words ...string) (values []float64, err error) {
	for _, w := range words {
		v, err := strconv.ParseFloat(strings.TrimSpace(w), 64)
		if err != nil || !(v > 0) || v > 1e18 {
			return nil, fmt.Errorf("%q is not a positive number", w)
		}
		values = append(values, v)
	}
	return values, nil
}

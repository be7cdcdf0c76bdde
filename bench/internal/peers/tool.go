package peers

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/process"
)

// tool measures figures between two processes. It knows the command lines of a program, and parses
// what the program prints. Parsing is strict: output that is not exactly as expected is an error,
// not a figure.
type tool interface {
	// measures reports whether the tool can measure a figure.
	measures(f figure) bool
	// firstCount is the number of operations of a first measurement, which finds out how many
	// the following ones need; zero: the tool measures for a given time.
	firstCount(f figure) int
	// commands returns the commands of both ends.
	commands(j *job) (server, client process.Program)
	// read reads the standard output of the client.
	read(j *job, out string) (sample, error)
}

// batch is how many small operations are posted together, window how many of them are in flight,
// and depth how many large ones are, with programs that have options for these.
const (
	batch  = 64
	window = 8 * batch
	depth  = 16
)

// counted is part of the tools whose programs run a given number of operations.
type counted struct{}

// firstCount is some milliseconds of work.
func (counted) firstCount(f figure) int {
	switch {
	case f.kind == rate:
		return 256 * batch
	case f.isTime():
		return 16 * batch
	}
	return max(batch, 16<<20/f.size)
}

// job is one measurement.
type job struct {
	figure figure
	count  int           // operations, if the tool counts them; a multiple of batch
	time   time.Duration // if the tool measures for a time
	limit  time.Duration // after which the measurement has failed
	server netip.Addr
	port   int    // TCP, of the server
	link   string // interface by which each end reaches the other

	elapsed time.Duration // from the start of the client to its end; for read
}

// isData reports whether a figure is one of operations of RDMA, which most tools measure.
func (f figure) isData() bool { return f.kind <= bandwidth }

func number(n int) string { return strconv.Itoa(n) }

// errOutput: a program has printed something unexpected.
var errOutput = errors.New("cannot parse its output")

func badOutput(out string, format string, args ...any) error {
	const most = 400
	if len(out) > most {
		out = out[:most] + "..."
	}
	return fmt.Errorf("%w: %s: %q", errOutput, fmt.Sprintf(format, args...), out)
}

// sample reads the values of a sample, which are in a unit: median and mean of a time, or the mean
// of anything else.
func (j *job) sample(out string, unit float64, words ...string) (sample, error) {
	v, err := positive(words...)
	want := 1
	if j.figure.isTime() {
		want, unit = 2, 1
	}
	switch {
	case err != nil:
		return sample{}, badOutput(out, "%v", err)
	case len(v) != want:
		return sample{}, badOutput(out, "it has %d values, want %d", len(v), want)
	case want == 2:
		return sample{median: v[0], mean: v[1]}, nil
	}
	return sample{mean: v[0] * unit}, nil
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

package tool

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

// PingPong is fi_pingpong of libfabric 1.17, with the provider tcp. It has one message in
// flight, there and back. The tables show this bandwidth, too, beside that of programs with
// many operations in flight.
type PingPong struct{ Path string }

// Name implements Tool.
func (PingPong) Name() string { return "libfabric tcp" }

// Program implements Tool.
func (p PingPong) Program() string { return p.Path }

// Measures implements Tool.
func (PingPong) Measures(f figure.Figure) bool {
	return f.Kind == figure.OneWay || f.Kind == figure.Bandwidth
}

// FirstCount implements Tool.
func (PingPong) FirstCount(f figure.Figure) int { return firstCount(f) }

// Commands implements Tool.
func (p PingPong) Commands(j *Job) (server, client Command) {
	common := []string{"-p", "tcp", "-e", "msg", "-I", strconv.Itoa(j.Count), "-S", strconv.Itoa(j.Figure.Size)}
	server.Args = append([]string{p.Path, "-B", strconv.Itoa(j.Port)}, common...)
	client.Args = append(append([]string{p.Path, "-P", strconv.Itoa(j.Port)}, common...), j.Server.String())
	return server, client
}

const pingPongHead = "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec"

// Read implements Tool. It takes the time of a transfer, which is one way, because that figure
// has the most digits. The program cuts the number of messages to thousands or millions.
func (PingPong) Read(j *Job, out string) (s figure.Sample, err error) {
	list := lines(out)
	if len(list) != 2 || strings.Join(strings.Fields(list[0]), " ") != pingPongHead {
		return s, badOutput(out, "want the line %q and one line of figures", pingPongHead)
	}
	words := strings.Fields(list[1])
	sent := countInUnits(j.Count)
	switch {
	case len(words) != 8:
		return s, badOutput(out, "it has an unexpected number of figures, %d", len(words))
	case words[0] != sizeInUnits(j.Figure.Size):
		return s, badOutput(out, "the messages have %s bytes, want %d", words[0], j.Figure.Size)
	case words[1] != sent || words[2] != "="+sent:
		return s, badOutput(out, "%s of %s messages were acknowledged, want %d", words[2], words[1], j.Count)
	}
	v, err := positive(words[6])
	if err != nil {
		return s, badOutput(out, "%v", err)
	}
	return ofTime(j.Figure, v[0]), nil
}

// sizeInUnits formats a size as fi_pingpong prints it. The sizes of figures are whole units.
func sizeInUnits(bytes int) string {
	switch {
	case bytes >= 1<<20:
		return fmt.Sprintf("%dm", bytes>>20)
	case bytes >= 1<<10:
		return fmt.Sprintf("%dk", bytes>>10)
	}
	return strconv.Itoa(bytes)
}

// countInUnits formats a number as fi_pingpong prints it: cut to thousands or millions.
func countInUnits(n int) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%dm", n/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%dk", n/1e3)
	}
	return strconv.Itoa(n)
}

// ofTime makes the sample of a program that reports the average time of an operation, in µs.
func ofTime(f figure.Figure, micros float64) figure.Sample {
	switch f.Kind {
	case figure.Rate:
		return figure.Sample{Mean: 1e6 / micros}
	case figure.Bandwidth:
		return figure.Sample{Mean: float64(f.Size) * 1e6 / micros}
	}
	return figure.Sample{Mean: micros}
}

// RMA is fi_rma_bw of libfabric's fabtests, with the provider tcp. It measures writes with
// immediate: fi_rma_bw runs plain writes, and reads, in both directions at once.
type RMA struct{ Path string }

// Name implements Tool.
func (RMA) Name() string { return "libfabric tcp, fi_rma_bw" }

// Program implements Tool.
func (r RMA) Program() string { return r.Path }

// Measures implements Tool.
func (RMA) Measures(f figure.Figure) bool {
	return f.Kind == figure.Rate || f.Kind == figure.Bandwidth && f.Op != plan.Send
}

// FirstCount implements Tool.
func (RMA) FirstCount(f figure.Figure) int { return firstCount(f) }

// Commands implements Tool.
func (r RMA) Commands(j *Job) (server, client Command) {
	op := "writedata"
	if j.Figure.Kind == figure.Bandwidth && j.Figure.Op == plan.Read {
		op = "read"
	}
	common := []string{"-m", "-p", "tcp", "-e", "msg", "-o", op, "-I", strconv.Itoa(j.Count), "-S", strconv.Itoa(j.Figure.Size)}
	server.Args = append([]string{r.Path, "-B", strconv.Itoa(j.Port)}, common...)
	client.Args = append(append([]string{r.Path, "-P", strconv.Itoa(j.Port)}, common...), j.Server.String())
	return server, client
}

// rmaKeys are the keys of the output line with -m, in order.
var rmaKeys = []string{"xfer_size", "iterations", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"}

// Read implements Tool.
func (RMA) Read(j *Job, out string) (s figure.Sample, err error) {
	list := lines(out)
	if len(list) != 3 || list[0] != "---" || !strings.HasPrefix(list[2], "- { ") || !strings.HasSuffix(list[2], " }") {
		return s, badOutput(out, "want the line ---, one with the command, and one of figures in braces")
	}
	fields := strings.Split(list[2][len("- { "):len(list[2])-len(" }")], ", ")
	if len(fields) != len(rmaKeys) {
		return s, badOutput(out, "it has an unexpected number of figures, %d", len(fields))
	}
	for i, f := range fields {
		value, ok := strings.CutPrefix(f, rmaKeys[i]+": ")
		if !ok {
			return s, badOutput(out, "%q is not the value of %s", f, rmaKeys[i])
		}
		fields[i] = value
	}
	v, err := positive(fields...)
	switch {
	case err != nil:
		return s, badOutput(out, "%v", err)
	case v[0] != float64(j.Figure.Size) || v[1] != float64(j.Count):
		return s, badOutput(out, "it made %s operations of %s bytes, want %d of %d", fields[1], fields[0], j.Count, j.Figure.Size)
	case math.Abs(v[2]-v[0]*v[1]) > 0.5:
		return s, badOutput(out, "the total does not match the number and size of operations")
	}
	return ofTime(j.Figure, v[5]), nil
}

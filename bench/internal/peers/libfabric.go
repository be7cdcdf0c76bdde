package peers

import (
	"fmt"
	"math"
	"strings"

	"github.com/verbena-rdma/verbena/internal/process"
)

// pingPong is fi_pingpong of libfabric 1.17, with the provider tcp. It has one message in
// flight, there and back. The tables show this bandwidth, too, beside that of programs with
// many operations in flight.
type pingPong struct {
	counted
	path string
}

func (pingPong) measures(f figure) bool { return f.kind == oneWay || f.kind == bandwidth }

func (p pingPong) commands(j *job) (server, client process.Program) {
	return libfabric(p.path, j)
}

// libfabric returns the commands of a program of libfabric with some flags.
func libfabric(path string, j *job, flags ...string) (server, client process.Program) {
	common := append(flags, "-p", "tcp", "-e", "msg", "-I", number(j.count), "-S", number(j.figure.size))
	server.Args = append([]string{path, "-B", number(j.port)}, common...)
	client.Args = append(append([]string{path, "-P", number(j.port)}, common...), j.server.String())
	return server, client
}

const pingPongHead = "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec"

// read takes the time of a transfer, which is one way, because that figure has the most digits. The
// program cuts the number of messages to thousands or millions.
func (pingPong) read(j *job, out string) (s sample, err error) {
	list := lines(out)
	if len(list) != 2 || strings.Join(strings.Fields(list[0]), " ") != pingPongHead {
		return s, badOutput(out, "want the line %q and one line of figures", pingPongHead)
	}
	words := strings.Fields(list[1])
	sent := inUnits(j.count, 1000)
	switch {
	case len(words) != 8:
		return s, badOutput(out, "it has an unexpected number of figures, %d", len(words))
	case words[0] != inUnits(j.figure.size, 1024):
		return s, badOutput(out, "the messages have %s bytes, want %d", words[0], j.figure.size)
	case words[1] != sent || words[2] != "="+sent:
		return s, badOutput(out, "%s of %s messages were acknowledged, want %d", words[2], words[1], j.count)
	}
	v, err := positive(words[6])
	if err != nil {
		return s, badOutput(out, "%v", err)
	}
	return ofTime(j.figure, v[0]), nil
}

// inUnits formats a number as fi_pingpong prints it: cut to thousands or millions.
func inUnits(n, thousand int) string {
	switch {
	case n >= thousand*thousand:
		return fmt.Sprintf("%dm", n/thousand/thousand)
	case n >= thousand:
		return fmt.Sprintf("%dk", n/thousand)
	}
	return number(n)
}

// ofTime makes the sample of a program that reports the average time of an operation, in µs.
func ofTime(f figure, micros float64) sample {
	switch f.kind {
	case rate:
		return sample{mean: 1e6 / micros}
	case bandwidth:
		return sample{mean: float64(f.size) * 1e6 / micros}
	}
	return sample{mean: micros}
}

// rma is fi_rma_bw of libfabric's fabtests, with the provider tcp. It measures writes with
// immediate: fi_rma_bw runs plain writes, and reads, in both directions at once.
type rma struct {
	counted
	path string
}

func (rma) measures(f figure) bool { return f.kind == rate || f.kind == bandwidth && f.op != "send" }

func (r rma) commands(j *job) (server, client process.Program) {
	op := "writedata"
	if j.figure.op == "read" {
		op = "read"
	}
	return libfabric(r.path, j, "-m", "-o", op)
}

// rmaKeys are the keys of the output line with -m, in order.
var rmaKeys = []string{"xfer_size", "iterations", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"}

func (rma) read(j *job, out string) (s sample, err error) {
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
	case v[0] != float64(j.figure.size) || v[1] != float64(j.count):
		return s, badOutput(out, "it made %s operations of %s bytes, want %d of %d", fields[1], fields[0], j.count, j.figure.size)
	case math.Abs(v[2]-v[0]*v[1]) > 0.5:
		return s, badOutput(out, "the total does not match the number and size of operations")
	}
	return ofTime(j.figure, v[5]), nil
}

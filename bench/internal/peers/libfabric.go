package peers

import (
	"fmt"
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
	common := []string{"-p", "tcp", "-e", "msg", "-I", number(j.count), "-S", number(j.figure.size)}
	server.Args = append([]string{p.path, "-B", number(j.port)}, common...)
	client.Args = append(append([]string{p.path, "-P", number(j.port)}, common...), j.server.String())
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
	switch {
	case err != nil:
		return s, badOutput(out, "%v", err)
	case j.figure.kind == bandwidth:
		return sample{mean: float64(j.figure.size) * 1e6 / v[0]}, nil
	}
	return sample{mean: v[0]}, nil
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

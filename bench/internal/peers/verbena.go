package peers

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/bench/internal/report"
	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/verbs"
)

// verbena is verbena perf.
type verbena struct {
	path   string
	device string
	way    verbs.Path // the path that packets must take; verbs.PathUnknown: any
}

func (verbena) measures(f figure) bool { return f.isData() }
func (verbena) firstCount(figure) int  { return 0 }

func (v verbena) commands(j *job) (server, client process.Program) {
	flags := []string{"-test", testOf(j.figure), "-s", number(j.figure.size), "-D", j.time.String(), "-warm-up", (j.time / 5).String()}
	switch j.figure.kind {
	case oneWay:
	case woken:
		flags = append(flags, "-e")
	case rate:
		flags = append(flags, "-t", number(window), "-l", number(batch), "-Q", number(batch))
	default:
		flags = append(flags, "-t", number(depth))
	}
	return Perf(v.path, v.device, j.server.String(), j.port, append(flags, "-timeout", j.limit.String(), "-wait", j.limit.String())...)
}

// Perf returns the commands of both ends of verbena perf, which writes its report as JSON.
func Perf(path, device, address string, port int, flags ...string) (server, client process.Program) {
	common := []string{path, "perf", "-d", device, "-p", number(port)}
	server.Args = append(common[:len(common):len(common)], "-bind", address, "-once")
	client.Args = append(append(common[:len(common):len(common)], flags...), "-json", "-", address)
	return server, client
}

// testOf is the test that measures a figure.
func testOf(f figure) string {
	switch f.kind {
	case oneWay:
		return "write_lat"
	case woken: // a write does not wake the peer
		return "send_lat"
	case rate:
		return "write_bw"
	}
	return f.op + "_bw"
}

func (v verbena) read(j *job, out string) (s sample, err error) {
	list, err := report.Read(strings.NewReader(out))
	if err != nil {
		return s, badOutput(out, "%v", err)
	}
	r := list[0]
	if len(list) != 1 || len(r.Results) != 1 || r.Plan.Test != testOf(j.figure) || r.Results[0].Size != j.figure.size {
		return s, badOutput(out, "want one report of %s with one result of %d bytes", testOf(j.figure), j.figure.size)
	}
	if v.way != verbs.PathUnknown && r.Path.Way != v.way.String() {
		return s, fmt.Errorf("its packets went through %s, want %v", r.Path.Way, v.way)
	}
	res := &r.Results[0]
	switch {
	case j.figure.isTime():
		s = sample{median: res.Latency.Median, mean: res.Latency.Mean}
	case j.figure.kind == rate:
		s = sample{mean: res.Rate}
	default:
		s = sample{mean: res.Bandwidth}
	}
	return s, nil
}

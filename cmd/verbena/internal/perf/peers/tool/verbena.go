package tool

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
	"github.com/verbena-rdma/verbena/verbs"
)

// Verbena runs verbena perf.
type Verbena struct {
	Path   string
	Title  string
	Device string
	Way    verbs.Path // the path that packets must take; verbs.PathUnknown: any
	// OnReport, unless nil, is called with each report.
	OnReport func(*report.Report)
}

// Name implements Tool.
func (v Verbena) Name() string { return v.Title }

// Program implements Tool.
func (v Verbena) Program() string { return v.Path }

// Measures implements Tool.
func (Verbena) Measures(figure.Figure) bool { return true }

// FirstCount implements Tool.
func (Verbena) FirstCount(figure.Figure) int { return 0 }

// Commands implements Tool.
func (v Verbena) Commands(j *Job) (server, client Command) {
	common := []string{v.Path, "perf", "-d", v.Device, "-p", strconv.Itoa(j.Port), "-timeout", j.Limit.String()}
	server.Args = append(common[:len(common):len(common)], "-bind", j.Server.String(), "-once")
	client.Args = append(common[:len(common):len(common)], "-test", testOf(j.Figure).String(), "-s", strconv.Itoa(j.Figure.Size),
		"-D", j.Time.String(), "-warm-up", (j.Time / 5).String(), "-json", "-")
	switch j.Figure.Kind {
	case figure.OneWay:
	case figure.Woken:
		client.Args = append(client.Args, "-e")
	case figure.Rate:
		client.Args = append(client.Args, "-t", strconv.Itoa(Window), "-l", strconv.Itoa(Batch), "-Q", strconv.Itoa(Batch))
	default:
		client.Args = append(client.Args, "-t", strconv.Itoa(Depth))
	}
	client.Args = append(client.Args, j.Server.String())
	return server, client
}

// testOf is the test that measures a figure.
func testOf(f figure.Figure) plan.Test {
	switch f.Kind {
	case figure.OneWay:
		return plan.Test{Op: plan.Write, Kind: plan.Latency}
	case figure.Woken: // a write does not wake the peer
		return plan.Test{Op: plan.Send, Kind: plan.Latency}
	case figure.Rate:
		return plan.Test{Op: plan.Write, Kind: plan.Bandwidth}
	}
	return plan.Test{Op: f.Op, Kind: plan.Bandwidth}
}

// Read implements Tool.
func (v Verbena) Read(j *Job, out string) (s figure.Sample, err error) {
	list, err := report.ReadJSON(strings.NewReader(out))
	if err != nil {
		return s, badOutput(out, "%v", err)
	}
	if len(list) != 1 || len(list[0].Results) != 1 || list[0].Plan.Test != testOf(j.Figure) || list[0].Results[0].Size != j.Figure.Size {
		return s, badOutput(out, "want one report of %v with one result of %d bytes", testOf(j.Figure), j.Figure.Size)
	}
	r := list[0]
	if v.Way != verbs.PathUnknown && r.Path.Way != v.Way.String() {
		return s, fmt.Errorf("its packets went through %s, want %v", r.Path.Way, v.Way)
	}
	if v.OnReport != nil {
		v.OnReport(r)
	}
	res := &r.Results[0]
	switch {
	case j.Figure.IsTime():
		s = figure.Sample{Median: res.Latency.Typical, Mean: res.Latency.Avg}
	case j.Figure.Kind == figure.Rate:
		s = figure.Sample{Mean: res.Rate}
	default:
		s = figure.Sample{Mean: res.Bandwidth}
	}
	if !(s.Mean > 0) {
		return s, badOutput(out, "the report has no measurement")
	}
	return s, nil
}

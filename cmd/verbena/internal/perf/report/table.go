package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/verbs"
)

// Table prints results as they are measured. It keeps the first error of the writer.
type Table struct {
	w     io.Writer
	gbits bool
	err   error
}

// NewTable makes a table. With gbits, bandwidth is in 10^9 bits per second; otherwise in 2^20
// bytes per second, as in perftest.
func NewTable(w io.Writer, gbits bool) *Table { return &Table{w: w, gbits: gbits} }

// Err is the first error of the writer.
func (t *Table) Err() error { return t.err }

func (t *Table) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

// Head prints what the results of a report have in common.
func (t *Table) Head(r *Report) {
	p := &r.Plan
	t.printf("%s\n", strings.Repeat("-", 100))
	t.printf("test      %v: %s\n", p.Test, about(p))
	for _, end := range []struct {
		name string
		host *control.Host
	}{{"client", &r.Client}, {"server", &r.Server}} {
		h := end.host
		t.printf("%-9s %s (%s), GID %d %s %s; %s\n", end.name, h.Device, h.Link, h.GIDIndex, h.GID, h.GIDType, describeMachine(h))
	}
	t.printf("path      %s to %s", r.Path.Local, r.Path.Peer)
	if p.Test.Kind != plan.Batches {
		t.printf(", MTU %d, %d bytes inline at most", r.Path.MTU, r.Path.Inline)
	}
	t.printf("\n")
	if p.Test.Kind == plan.Latency {
		t.printf(" %-10s %-12s %-9s %-9s %-13s %-9s %-11s %-9s %-9s %-9s %-9s\n",
			"#bytes", "#iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "90%", "99%", "99.9%", "99.99% [usec]")
		return
	}
	unit := "[MB/sec]"
	if t.gbits {
		unit = "[Gb/sec]"
	}
	if p.Test.Kind == plan.Batches {
		t.printf(" %-10s %-12s %-20s %-14s %-14s %-23s %-11s %-9s %-9s %s\n",
			"#bytes", "#items", "BW average"+unit, "Items[M/sec]", "CPU[ns/item]", "CPU of server[ns/item]", "t_typical", "90%", "99%", "t_max of a batch [usec]")
		return
	}
	t.printf(" %-10s %-12s %-18s %-20s %-16s %-14s %s\n",
		"#bytes", "#iterations", "BW peak"+unit, "BW average"+unit, "MsgRate[Mpps]", "CPU[ns/op]", "CPU of server[ns/op]")
}

func about(p *plan.Plan) string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	switch {
	case p.Test.EachWay():
		add("half of a round trip")
	case p.Test.Kind == plan.Latency:
		add("from request to response")
	}
	if p.Iterations > 0 {
		add("%d iterations", p.Iterations)
	} else {
		add("%v", p.Duration)
	}
	add("warm-up %v", p.WarmUp)
	if p.Test.Kind == plan.Bandwidth {
		add("%d connections, %d engines, depth %d, batches of %d, a completion for %d", p.Connections, p.Engines, p.Depth, p.Batch, p.Moderation)
	}
	if p.Bidirectional {
		add("both directions")
	}
	if p.Test.Kind == plan.Batches {
		add("batches of %d items, %d peers, depth %d", p.Batch, p.Connections, p.Depth)
	} else if p.Events {
		add("events")
	} else {
		add("polling")
	}
	if p.Verify {
		add("verified")
	}
	if p.CM {
		add("by connection manager")
	}
	return strings.Join(words, ", ")
}

func describeMachine(h *control.Host) string {
	m := &h.Machine
	s := fmt.Sprintf("%d processors", m.CPUs)
	if m.CPU != "" {
		s += ", " + m.CPU
	}
	return strings.TrimSpace(fmt.Sprintf("%s, %s %s, %s", s, m.OS, m.Kernel, m.Go))
}

// Row prints a result.
func (t *Table) Row(p *plan.Plan, res *Result) {
	if l := res.Latency; p.Test.Kind == plan.Batches {
		t.printf(" %-10d %-12d %-20.2f %-14.6f %-14.0f %-23.0f %-11.2f %-9.2f %-9.2f %.2f\n",
			res.Size, res.Operations, t.bandwidth(res.Bandwidth), res.Rate/1e6, res.Client.CPU, res.Server.CPU, l.Typical, l.P90, l.P99, l.Max)
	} else if l != nil {
		t.printf(" %-10d %-12d %-9.2f %-9.2f %-13.2f %-9.2f %-11.2f %-9.2f %-9.2f %-9.2f %-9.2f\n",
			res.Size, res.Operations, l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P90, l.P99, l.P999, l.P9999)
	} else {
		t.printf(" %-10d %-12d %-18.2f %-20.2f %-16.6f %-14.0f %.0f\n",
			res.Size, res.Operations, t.bandwidth(res.Peak), t.bandwidth(res.Bandwidth), res.Rate/1e6, res.Client.CPU, res.Server.CPU)
	}
	if p.Verify && res.Damage == "" {
		t.printf("   verified: %d pieces of data\n", res.Checked)
	}
	if res.Damage != "" {
		t.printf("   DAMAGED: %s\n", res.Damage)
	}
}

func (t *Table) bandwidth(v float64) float64 {
	if t.gbits {
		return v * 8 / 1e9
	}
	return v / (1 << 20)
}

// Counters prints how the counters of both devices have changed in a result, warm-up included.
func (t *Table) Counters(res *Result) {
	for _, end := range []struct {
		name string
		list []control.Counter
	}{{"client", res.Client.Counters}, {"server", res.Server.Counters}} {
		for _, c := range end.list {
			t.printf("   %s %-28s %+d\n", end.name, c.Name, c.Delta)
		}
	}
}

// Foot prints the path that packets took, and why the results may not be trusted.
func (t *Table) Foot(r *Report) {
	if way := r.Path.Way; way != "" && way != verbs.PathUnknown.String() {
		t.printf("packets   went through %s\n", way)
	}
	for _, w := range r.Warnings {
		t.printf("warning: %s\n", w)
	}
}

// Package compare compares two sets of reports of verbena perf: is the second faster, and how
// certain is that?
package compare

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
)

// key holds what two results must have in common to be compared.
type key struct {
	test                                        plan.Test
	size, connections, engines                  int
	depth, batch, moderation                    int
	bidirectional, events, verified, byDuration bool
}

func keyOf(p *plan.Plan, size int) key {
	return key{p.Test, size, p.Connections, p.Engines, p.Depth, p.Batch, p.Moderation, p.Bidirectional, p.Events, p.Verify, p.Duration > 0}
}

// String names the key by the settings that usually differ between keys.
func (k key) String() string {
	s := fmt.Sprintf("%v %d", k.test, k.size)
	if k.connections > 1 {
		s += fmt.Sprintf(", %d connections", k.connections)
	}
	if k.engines > 1 {
		s += fmt.Sprintf(", %d engines", k.engines)
	}
	if k.bidirectional {
		s += ", both directions"
	}
	if k.events {
		s += ", events"
	}
	return s
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.test.Op, o.test.Op), cmp.Compare(k.test.Kind, o.test.Kind), cmp.Compare(k.connections, o.connections),
		cmp.Compare(k.engines, o.engines), cmp.Compare(k.size, o.size), cmp.Compare(k.depth, o.depth), cmp.Compare(k.batch, o.batch))
}

// values are the figures of all rounds, sorted, by key.
type values map[key][]float64

// errDamage: results with damaged data are of no use.
var errDamage = errors.New("the report contains results with damaged data")

func valuesOf(list []*report.Report, name string) (values, error) {
	v := values{}
	for _, r := range list {
		m, err := metricOf(name, r.Plan.Test.Kind)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue
		}
		for i := range r.Results {
			res := &r.Results[i]
			if res.Damage != "" {
				return nil, errDamage
			}
			x := m.of(res)
			if !(x > 0) || math.IsInf(x, 0) {
				return nil, fmt.Errorf("%v has a %s of %v; it must be positive", r.Plan.Test, m.name, x)
			}
			k := keyOf(&r.Plan, res.Size)
			v[k] = append(v[k], x)
		}
	}
	for _, list := range v {
		slices.Sort(list)
	}
	return v, nil
}

// Row compares the values that both sets have for one key.
type Row struct {
	key    key
	metric *metric
	a, b   []float64
	Shift
	enough bool // there are enough rounds to show a difference
}

// Verdict is what the row shows.
type Verdict int

// The verdicts.
const (
	NoDifference Verdict = iota
	Better
	Worse
	TooFew
)

// Verdict returns what the interval shows.
func (r *Row) Verdict() Verdict {
	switch {
	case !r.enough:
		return TooFew
	case r.Low <= 1 && r.High >= 1:
		return NoDifference
	case (r.Low > 1) == r.metric.moreIsBest:
		return Better
	}
	return Worse
}

// Comparison is the comparison of two sets of reports.
type Comparison struct {
	Rows         []Row
	Confidence   float64 // the probability that all intervals hold the true ratio
	Alpha        float64 // level of significance of each row
	OnlyA, OnlyB []key
	Differences  []string // other differences, such as the machine
}

// Compare compares two sets. The confidence holds for the intervals of all rows together: the
// probability of error is divided among the rows (Bonferroni), because among many rows one
// would look different by chance.
func Compare(a, b []*report.Report, metric string, confidence float64) (*Comparison, error) {
	va, err := valuesOf(a, metric)
	if err != nil {
		return nil, err
	}
	vb, err := valuesOf(b, metric)
	if err != nil {
		return nil, err
	}
	c := &Comparison{Confidence: confidence, Differences: differences(a, b)}
	for k, x := range va {
		y, ok := vb[k]
		if !ok {
			c.OnlyA = append(c.OnlyA, k)
			continue
		}
		m, err := metricOf(metric, k.test.Kind)
		if err != nil {
			return nil, err
		}
		c.Rows = append(c.Rows, Row{key: k, metric: m, a: x, b: y})
	}
	for k := range vb {
		if _, ok := va[k]; !ok {
			c.OnlyB = append(c.OnlyB, k)
		}
	}
	if len(c.Rows) == 0 {
		return nil, errors.New("the reports have no comparable results: tests, sizes, connections, depth and batches must be equal, and the tests must have the metric")
	}
	slices.SortFunc(c.Rows, func(x, y Row) int { return x.key.compare(y.key) })
	slices.SortFunc(c.OnlyA, key.compare)
	slices.SortFunc(c.OnlyB, key.compare)
	c.Alpha = (1 - confidence) / float64(len(c.Rows))
	for i := range c.Rows {
		r := &c.Rows[i]
		r.enough = critical(len(r.a), len(r.b), c.Alpha) > 0
		r.Shift = shiftOf(r.a, r.b, c.Alpha)
	}
	return c, nil
}

// differences finds differences other than the program that may change the figures.
func differences(a, b []*report.Report) (list []string) {
	facts := func(reports []*report.Report, of func(*report.Report) string) []string {
		var v []string
		for _, r := range reports {
			if s := of(r); !slices.Contains(v, s) {
				v = append(v, s)
			}
		}
		slices.Sort(v)
		return v
	}
	for _, f := range []struct {
		name string
		of   func(*report.Report) string
	}{
		{"client's processor", func(r *report.Report) string {
			return fmt.Sprintf("%d of %s", r.Client.Machine.CPUs, r.Client.Machine.CPU)
		}},
		{"server's processor", func(r *report.Report) string {
			return fmt.Sprintf("%d of %s", r.Server.Machine.CPUs, r.Server.Machine.CPU)
		}},
		{"client's kernel", func(r *report.Report) string { return r.Client.Machine.Kernel }},
		{"server's kernel", func(r *report.Report) string { return r.Server.Machine.Kernel }},
		{"client's boot", func(r *report.Report) string { return r.Client.Machine.ID }},
		{"server's boot", func(r *report.Report) string { return r.Server.Machine.ID }},
		{"client's Go", func(r *report.Report) string { return r.Client.Machine.Go }},
		{"client's device", func(r *report.Report) string { return r.Client.Device }},
		{"server's device", func(r *report.Report) string { return r.Server.Device }},
		{"path MTU", func(r *report.Report) string { return fmt.Sprint(r.Path.MTU) }},
	} {
		if x, y := facts(a, f.of), facts(b, f.of); !slices.Equal(x, y) {
			list = append(list, fmt.Sprintf("%s: %q and %q", f.name, x, y))
		}
	}
	return list
}

package compare

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Critical values of the Mann-Whitney test from the tables of statistics (two sides): the
// greatest U that is significant, which is one below ours.
func TestCritical(t *testing.T) {
	for _, c := range []struct {
		n, m  int
		alpha float64
		want  int
	}{
		{4, 4, 0.05, 0}, {5, 5, 0.05, 2}, {5, 8, 0.05, 6}, {8, 8, 0.05, 13}, {10, 10, 0.05, 23}, {20, 20, 0.05, 127}, {7, 12, 0.05, 18},
		{5, 5, 0.01, 0}, {10, 10, 0.01, 16}, {3, 3, 0.05, -1}, {4, 4, 0.01, -1},
	} {
		assert.Equal(t, c.want+1, critical(c.n, c.m, c.alpha), "%+v", c)
		assert.Equal(t, c.want+1, critical(c.m, c.n, c.alpha), "%+v", c)
	}
	assert.Equal(t, 4, enough(0.05))
	assert.Equal(t, 5, enough(0.01))
	assert.Equal(t, 6, enough(0.05/23)) // -a
	// The approximation goes on where the exact values end.
	exact, near := critical(50, 50, 0.05), critical(51, 51, 0.05)
	assert.InDelta(t, float64(exact)/2500, float64(near)/2601, 0.005)
}

// The interval holds the true ratio as often as it says, and more where it says more.
func TestCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sample := func(n int, factor float64) (list []float64) {
		for range n {
			list = append(list, factor*math.Exp(0.1*random.NormFloat64()))
		}
		return list
	}
	for _, alpha := range []float64{0.05, 0.2} {
		const trials = 2000
		missed := 0
		for range trials {
			if s := shiftOf(sample(7, 3), sample(9, 3.6), alpha); s.Low > 1.2 || s.High < 1.2 {
				missed++
			}
		}
		assert.LessOrEqual(t, float64(missed)/trials, alpha+0.02)
		assert.Greater(t, missed, 0, "an interval that never misses is too wide")
	}
}

// made are reports of one test with given figures of bandwidth, one in each round.
func made(size int, figures ...float64) *report.Report {
	p := plan.Plan{Test: plan.Test{Op: plan.Write}, Sizes: []int{size}, Rounds: len(figures)}
	p.Complete()
	r := &report.Report{Format: report.Format, Version: report.Version, Plan: p}
	for i, f := range figures {
		r.Results = append(r.Results, report.Result{Round: i, Size: size, Rate: f / float64(size), Bandwidth: f, Client: report.Usage{CPU: 1e9 / f}})
	}
	return r
}

func madeLatency(figures ...float64) *report.Report {
	r := made(8, figures...)
	r.Plan.Test.Kind = plan.Latency
	for i, f := range figures {
		r.Results[i].Latency = &report.Latency{Typical: f, Avg: f, P99: 2 * f, P999: 3 * f}
	}
	return r
}

func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		a, b *report.Report
		want Verdict
	}{
		"equal":                {made(8, 100, 101, 102, 103, 104), made(8, 100, 101, 102, 103, 104), NoDifference},
		"overlapping":          {made(8, 100, 110, 120, 130, 140), made(8, 105, 115, 125, 135, 145), NoDifference},
		"constant":             {made(8, 5, 5, 5, 5, 5), made(8, 5, 5, 5, 5, 5), NoDifference},
		"more":                 {made(8, 100, 101, 102, 103, 104), made(8, 105, 106, 107, 108, 109), Better},
		"less":                 {made(8, 105, 106, 107, 108, 109), made(8, 100, 101, 102, 103, 104), Worse},
		"less latency":         {madeLatency(105, 106, 107, 108, 109), madeLatency(100, 101, 102, 103, 104), Better},
		"more latency":         {madeLatency(1, 2, 3, 4, 5), madeLatency(10, 20, 30, 40, 50), Worse},
		"far apart, too few":   {made(8, 1, 2, 3), made(8, 100, 200, 300), TooFew},
		"a single one of each": {made(8, 1), made(8, 2), TooFew},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Compare([]*report.Report{c.a}, []*report.Report{c.b}, "", 0.95)
			require.NoError(t, err)
			require.Len(t, got.Rows, 1)
			assert.Equal(t, c.want, got.Rows[0].Verdict(), "%+v", got.Rows[0])
			assert.Equal(t, c.want == Worse, got.anyWorse())
			var b bytes.Buffer
			require.NoError(t, got.print(&b))
			assert.Contains(t, b.String(), []string{"no difference shown", "faster", "slower", "too few rounds"}[c.want])
		})
	}
}

// The more rows, the more a row must show, and rounds of several files count together.
func TestManyRows(t *testing.T) {
	var a, b []*report.Report
	for size := 1; size <= 1<<19; size *= 2 {
		a = append(a, made(size, 100, 101, 102, 103, 104))
		b = append(b, made(size, 110, 111, 112, 113, 114))
	}
	c, err := Compare(a, b, "", 0.95)
	require.NoError(t, err)
	require.Len(t, c.Rows, 20)
	assert.Equal(t, TooFew, c.Rows[0].Verdict(), "one row in twenty looks so by chance")
	assert.InDelta(t, 0.0025, c.Alpha, 1e-12)
	c, err = Compare(append(a, a...), append(b, b...), "", 0.95)
	require.NoError(t, err)
	for i := range c.Rows {
		assert.Equal(t, Better, c.Rows[i].Verdict())
		assert.Len(t, c.Rows[i].a, 10)
	}
}

func TestWhatIsNotInBoth(t *testing.T) {
	a, b := made(8, 1, 2), made(16, 1, 2)
	_, err := Compare([]*report.Report{a}, []*report.Report{b}, "", 0.95)
	assert.ErrorContains(t, err, "no comparable results")
	both := made(8, 1, 2)
	both.Client.Machine.CPU = "another"
	c, err := Compare([]*report.Report{a}, []*report.Report{b, both}, "", 0.95)
	require.NoError(t, err)
	assert.Len(t, c.OnlyB, 1)
	require.Len(t, c.Differences, 1)
	assert.Contains(t, c.Differences[0], "client's processor")

	_, err = Compare([]*report.Report{a}, []*report.Report{a}, "p99", 0.95)
	assert.ErrorContains(t, err, "no comparable results")
	bad := made(8, 1, 2)
	bad.Results[1].Damage = "rot"
	_, err = Compare([]*report.Report{a}, []*report.Report{bad}, "", 0.95)
	assert.ErrorIs(t, err, errDamage)
	_, err = Compare([]*report.Report{made(8, 0)}, []*report.Report{a}, "", 0.95)
	assert.ErrorContains(t, err, "positive")
}

func TestMetrics(t *testing.T) {
	for _, m := range metrics {
		for _, r := range []*report.Report{made(8, 10, 20), madeLatency(10, 20)} {
			c, err := Compare([]*report.Report{r}, []*report.Report{r}, m.name, 0.95)
			if m.ofLatency != (r.Plan.Test.Kind == plan.Latency) && m.name != "cpu" {
				assert.Error(t, err, m.name)
				continue
			}
			require.NoError(t, err, m.name)
			assert.InDelta(t, 1, c.Rows[0].Ratio, 1e-9)
		}
	}
}

func TestCommand(t *testing.T) {
	folder := t.TempDir()
	file := func(name string, r *report.Report) string {
		var b bytes.Buffer
		require.NoError(t, report.WriteJSON(&b, []*report.Report{r}))
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
		return path
	}
	a, b := file("a", made(8, 10, 11, 12)), file("b", made(8, 20, 21, 22))
	run := func(args ...string) (int, string, string) {
		var out, err bytes.Buffer
		code := Main(args, &out, &err)
		return code, out.String(), err.String()
	}
	code, out, _ := run(a+","+a, b+","+b)
	assert.Equal(t, exit.OK, code)
	assert.Contains(t, out, "faster")
	code, out, _ = run("-check", b+","+b, a+","+a)
	assert.Equal(t, exit.Failed, code)
	assert.Contains(t, out, "slower")
	for want, args := range map[string][]string{
		"2":                   {},
		"1 arguments":         {a},
		"-confidence is 1":    {"-confidence", "1", a, b},
		"no metric \"speed\"": {"-metric", "speed", a, b},
		"-nothing":            {"-nothing", a, b},
	} {
		code, _, text := run(args...)
		if len(args) == 0 {
			want = "0 arguments"
		}
		assert.Equal(t, exit.Usage, code, want)
		assert.Contains(t, text, want)
		assert.Equal(t, 1, strings.Count(text, "\n"))
	}
	code, _, text := run(a, filepath.Join(folder, "none"))
	assert.Equal(t, exit.Failed, code)
	assert.Contains(t, text, "none")
	code, _, text = run("-help")
	assert.Equal(t, exit.OK, code)
	assert.Contains(t, text, "Mann-Whitney")
}

package compare

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/bench/internal/measure"
	"github.com/verbena-rdma/verbena/bench/internal/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func value(title, unit string, of float64) measure.Value {
	return measure.Value{Row: measure.Row{Title: title, Unit: unit, Less: unit != "M/s" && unit != "GB/s"}, Of: of}
}

func TestValues(t *testing.T) {
	assert.Equal(t, []measure.Value{
		value("write_bw 8, 64 together", "M/s", 4), value("write_bw 65536, 64 together", "GB/s", 2),
		value("send_lat 8, events, median", "µs", 8), value("send_lat 8, events, least", "µs", 5), value("send_lat 8, events, 99 %", "µs", 9),
	}, valuesOf([]*report.Report{
		{Plan: report.Plan{Test: "write_bw", Batch: 64}, Results: []report.Result{{Size: 8, Rate: 4e6}, {Size: 1 << 16, Bandwidth: 2e9}}},
		{Plan: report.Plan{Test: "send_lat", Events: true}, Results: []report.Result{{Size: 8, Latency: &report.Latency{Median: 8, Min: 5, P99: 9}}}},
	}))
	assert.Equal(t, []measure.Value{value("pe Wake/far", "ns", 1500), value("pe Wake/far", "allocations", 1)},
		goValues("pe", "BenchmarkWake/far-2   \t     100\t     1600 ns/op\nBenchmarkWake/far-2   \t     100\t     1500 ns/op\t 8.00 MB/s\t      16 B/op\t       1 allocs/op\nPASS\n"))
	assert.Equal(t, []measure.Value{value("overhead, null0: rdma write/1", "ns", 400), value("overhead, null0: rdma write/1", "allocations", 0), value("overhead, null0: C, empty poll", "ns", 3)},
		overheadValues("null0\trdma write/1\t400.00\t0.00\nnull0\tC, empty poll\t3.00\t\n"))
}

func TestReports(t *testing.T) {
	folder := t.TempDir()
	file := func(name, rate string) string {
		path := filepath.Join(folder, name)
		const one = `{"format":"verbena-perf","version":1,"plan":{"test":"write_bw"},"results":[{"size":8,"operations_per_second":`
		require.NoError(t, os.WriteFile(path, []byte(one+rate+"1}]}"+one+rate+"2}]}"), 0o600))
		return path
	}
	slow, fast := file("a.json", "10"), file("b.json", "20")
	ctx := t.Context()
	require.NoError(t, Run(ctx, []string{"-check", slow + "," + slow, fast + "," + fast}))
	require.ErrorIs(t, Run(ctx, []string{"-check", fast + "," + fast, slow + "," + slow}), errWorse)
	require.NoError(t, Run(ctx, []string{fast + "," + fast, slow + "," + slow}))
	assert.ErrorIs(t, Run(ctx, []string{fast, filepath.Join(folder, "none")}), os.ErrNotExist)
	for _, args := range [][]string{{}, {slow}, {"-confidence", "1", slow, fast}, {"-before", folder, slow}} {
		assert.ErrorContains(t, Run(ctx, args), "-help", args)
	}
}

// A version beside itself.
func TestVersions(t *testing.T) {
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skip("needs Linux")
	}
	root := filepath.Join("..", "..", "..")
	r, err := run(t.Context(), options{
		folders: [2]string{root, root}, rounds: 1, duration: 20e6, device: "soft-lo", perf: []string{"-test write_lat -s 8"}, packages: []string{"pe"}, filter: "ProgressIdle",
	}, t.Output())
	require.NoError(t, err)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	_, err = r.WriteComparison(out, 0.95)
	require.NoError(t, err)
	require.NoError(t, out.Close())
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	assert.Contains(t, string(text), "write_lat 8, median, µs")
	assert.Contains(t, string(text), "pe ProgressIdle/contexts=0, ns")
}

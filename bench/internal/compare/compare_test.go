package compare

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		value("write_bw 8, depth 512, 64 together, a completion for 32, verified, timed", "M/s", 4), value("write_bw 65536, depth 512, 64 together, a completion for 32, verified, timed", "GB/s", 2),
		value("send_lat 8, events, median", "µs", 8), value("send_lat 8, events, least", "µs", 5), value("send_lat 8, events, 99 %", "µs", 9),
	}, valuesOf([]*report.Report{
		{Plan: report.Plan{Test: "write_bw", Depth: 512, Batch: 64, Moderation: 32, Verify: true, Duration: time.Second}, Results: []report.Result{{Size: 8, Rate: 4e6}, {Size: 1 << 16, Bandwidth: 2e9}}},
		{Plan: report.Plan{Test: "send_lat", Depth: 16, Batch: 1, Moderation: 1, Events: true}, Results: []report.Result{{Size: 8, Latency: &report.Latency{Median: 8, Min: 5, P99: 9}}}},
	}))
	assert.Equal(t, []measure.Value{value("pe Wake/far", "ns", 1500), value("pe Wake/far", "allocations", 1)},
		goValues("pe", "BenchmarkWake/far-2   \t     100\t     1600 ns/op\nBenchmarkWake/far-2   \t     100\t     1500 ns/op\t 8.00 MB/s\t      16 B/op\t       1 allocs/op\nPASS\n"))
	assert.Equal(t, []measure.Value{value("overhead, null0: rdma write/1", "ns", 400), value("overhead, null0: rdma write/1", "allocations", 0), value("overhead, null0: C, empty poll", "ns", 3)},
		overheadValues("null0\trdma write/1\t400.00\t0.00\nnull0\tC, empty poll\t3.00\t\n"))
}

func TestReports(t *testing.T) {
	folder := t.TempDir()
	file := func(name, rate string, depth int) string {
		path := filepath.Join(folder, name)
		text := ""
		for _, round := range []string{"1", "2"} {
			text += fmt.Sprintf(`{"format":"verbena-perf","version":1,"plan":{"test":"write_bw","depth":%d},"results":[{"size":8,"operations_per_second":%s,"bytes_per_second":8}]}`, depth, rate+round)
		}
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	slow, fast := file("a.json", "10", 128), file("b.json", "20", 128)
	ctx := t.Context()
	require.NoError(t, Run(ctx, []string{"-check", slow + "," + slow, fast + "," + fast}))
	require.ErrorIs(t, Run(ctx, []string{"-check", fast + "," + fast, slow + "," + slow}), errWorse)
	require.NoError(t, Run(ctx, []string{fast + "," + fast, slow + "," + slow}))
	assert.ErrorIs(t, Run(ctx, []string{fast, filepath.Join(folder, "none")}), os.ErrNotExist)
	assert.ErrorContains(t, Run(ctx, []string{slow, file("c.json", "20", 64)}),
		`the reports have no comparable results: A has "write_bw 8, depth 128", B has "write_bw 8, depth 64"`)
	assert.ErrorContains(t, Run(ctx, []string{slow, file("d.json", "-", 128)}), "not positive")
	for _, args := range [][]string{{}, {slow}, {"-confidence", "1", slow, fast}, {"-before", folder, slow}} {
		assert.ErrorContains(t, Run(ctx, args), "-help", args)
	}
}

func TestTitles(t *testing.T) {
	rows := map[measure.Row]int{}
	assert.Equal(t, "none", titles(rows))
	for _, title := range []string{"c", "a", "b", "e", "d"} {
		rows[measure.Row{Title: title}] = 1
	}
	assert.Equal(t, `"a", "b", "c", 2 more`, titles(rows))
}

func TestCauses(t *testing.T) {
	made := func(kernel string, mtu int) *report.Report {
		r := &report.Report{}
		r.Client.Machine.CPUs, r.Client.Machine.CPU, r.Server.Machine.Kernel, r.Path.MTU = 2, "Xeon", kernel, mtu
		return r
	}
	a, b := []*report.Report{made("6.2", 1024), made("6.1", 1024)}, []*report.Report{made("6.1", 4096), made("6.1", 4096)}
	assert.Equal(t, []string{"A difference may have other causes: path MTU: 1024 in A, 4096 in B; server's kernel: 6.1 or 6.2 in A, 6.1 in B."}, causes(a, b))
	assert.Empty(t, causes(a, []*report.Report{a[1], a[0]}))
	// Each fact is noticed, under the name that verbena perf writes.
	for _, text := range []string{`"machine":{"id":"x"}`, `"machine":{"kernel":"x"}`, `"machine":{"cpu":"x"}`, `"machine":{"cpus":7}`, `"machine":{"go":"x"}`, `"device":"x"`} {
		for _, end := range []string{"client", "server"} {
			var r report.Report
			require.NoError(t, json.Unmarshal([]byte(`{"`+end+`":{`+text+`}}`), &r))
			assert.Contains(t, strings.Join(causes([]*report.Report{{}}, []*report.Report{&r}), ""), end+"'s", text)
		}
	}
}

// A version that cannot be measured is an error, after the table of what could be.
func TestFailures(t *testing.T) {
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skip("needs Linux")
	}
	root := filepath.Join("..", "..", "..")
	err := Run(t.Context(), []string{"-before", root, "-after", root, "-rounds", "1", "-t", "20ms", "-perf", "-test none", "-packages", ""})
	assert.ErrorContains(t, err, "2 of 2 measurements failed")
}

// A version beside itself.
func TestVersions(t *testing.T) {
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skip("needs Linux")
	}
	root := filepath.Join("..", "..", "..")
	r, err := run(t.Context(), options{
		folders: [2]string{root, root}, rounds: 2, duration: 20e6, device: "soft-lo", perf: []string{"-test write_lat -s 8"}, packages: []string{"pe"}, filter: "ProgressIdle",
	}, t.Output())
	require.NoError(t, err)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	_, err = r.WriteComparison(out, 0.95)
	require.NoError(t, err)
	require.NoError(t, out.Close())
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	assert.Contains(t, string(text), "write_lat 8, timed, median, µs")
	assert.Contains(t, string(text), "pe ProgressIdle/contexts=0, ns")
}

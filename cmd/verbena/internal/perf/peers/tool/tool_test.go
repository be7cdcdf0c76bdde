package tool

import (
	"bytes"
	"embed"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is what the programs have printed: UCX 1.13.1, libfabric 1.17.0, perftest 4.5.
//
//go:embed testdata
var recorded embed.FS

func recording(t testing.TB, name string) string {
	t.Helper()
	b, err := recorded.ReadFile("testdata/" + name)
	require.NoError(t, err)
	text := strings.TrimRight(string(b), "\n")
	if i := strings.LastIndex(text, "\n---"); i > 0 { // perftest ends with a rule
		text = text[:i]
	}
	return text + "\n"
}

var (
	oneWay  = figure.Figure{Kind: figure.OneWay, Size: 8}
	woken   = figure.Figure{Kind: figure.Woken, Size: 8}
	rate    = figure.Figure{Kind: figure.Rate, Size: 8}
	write1M = figure.Figure{Kind: figure.Bandwidth, Op: plan.Write, Size: 1 << 20}
	read64K = figure.Figure{Kind: figure.Bandwidth, Op: plan.Read, Size: 64 << 10}
	send1M  = figure.Figure{Kind: figure.Bandwidth, Op: plan.Send, Size: 1 << 20}
)

// recordings are what was recorded, of what, and what it says.
var recordings = []struct {
	file   string
	tool   Tool
	figure figure.Figure
	count  int
	want   figure.Sample
}{
	{"ucx-one-way.txt", UCX{}, oneWay, 1024, figure.Sample{Median: 0.276, Mean: 0.311}},
	{"ucx-woken.txt", UCX{}, woken, 1024, figure.Sample{Median: 12.545, Mean: 15.862}},
	{"ucx-rate.txt", UCX{}, rate, 1_000_000, figure.Sample{Mean: 71240832}},
	{"ucx-write.txt", UCX{}, write1M, 64, figure.Sample{Mean: 43.71 * (1 << 20)}},
	{"ucx-read.txt", UCX{}, read64K, 2560, figure.Sample{Mean: 81631.02 * (1 << 20)}},
	{"ucx-send.txt", UCX{}, send1M, 64, figure.Sample{Mean: 764.23 * (1 << 20)}},
	{"pingpong-one-way.txt", PingPong{}, oneWay, 1024, figure.Sample{Mean: 1408.22}},
	{"pingpong-64k.txt", PingPong{}, read64K, 256, figure.Sample{Mean: 65536e6 / 396.67}},
	{"pingpong-1m.txt", PingPong{}, send1M, 64, figure.Sample{Mean: 1048576e6 / 3498.61}},
	{"rma-rate.txt", RMA{}, rate, 16384, figure.Sample{Mean: 1e6 / 80.075134}},
	{"perftest-one-way.txt", Perftest{}, oneWay, 1024, figure.Sample{Median: 11.86, Mean: 273.95}},
	{"perftest-woken.txt", Perftest{}, woken, 1024, figure.Sample{Median: 1751.96, Mean: 2120.98}},
	{"perftest-rate.txt", Perftest{}, rate, 16384, figure.Sample{Mean: 37022}},
	{"perftest-read.txt", Perftest{}, read64K, 256, figure.Sample{Mean: 37.69 * (1 << 20)}},
	{"perftest-send.txt", Perftest{}, send1M, 64, figure.Sample{Mean: 15.01 * (1 << 20)}},
	{"rma-read.txt", RMA{}, read64K, 256, figure.Sample{Mean: 65536e6 / 435.191406}},
}

func TestRead(t *testing.T) {
	for _, r := range recordings {
		t.Run(r.file, func(t *testing.T) {
			require.True(t, r.tool.Measures(r.figure))
			text := recording(t, r.file)
			got, err := r.tool.Read(&Job{Figure: r.figure, Count: r.count}, text)
			require.NoError(t, err)
			assert.InEpsilon(t, r.want.Mean, got.Mean, 1e-9)
			assert.InDelta(t, r.want.Median, got.Median, 1e-9)

			// It was asked for something else.
			_, err = r.tool.Read(&Job{Figure: r.figure, Count: 2 * r.count}, text)
			assert.ErrorIs(t, err, errOutput)
			// Not all of it is there, or more than there should be.
			all := lines(text)
			for _, part := range []string{"", all[0], strings.Join(all[:len(all)-1], "\n"), text + all[len(all)-1], text + text, "a warning\n" + text} {
				_, err = r.tool.Read(&Job{Figure: r.figure, Count: r.count}, part)
				if _, lenient := r.tool.(Perftest); lenient && strings.HasPrefix(part, "a warning") {
					assert.NoError(t, err)
					continue
				}
				assert.ErrorIs(t, err, errOutput, "%q", part)
			}
		})
	}
}

// A figure that is none is refused wherever it stands.
func TestReadNonsense(t *testing.T) {
	for _, r := range recordings {
		text := recording(t, r.file)
		all := lines(text)
		last := all[len(all)-1]
		for _, nonsense := range []string{"0", "-1", "nan", "inf", "x", "1e300", ""} {
			refused := 0
			for _, sep := range []string{",", " "} {
				words := strings.Split(last, sep)
				for i := range words {
					if strings.Trim(words[i], "0123456789.") != "" || words[i] == "" {
						continue
					}
					changed := append(words[:i:i], append([]string{nonsense}, words[i+1:]...)...)
					all[len(all)-1] = strings.Join(changed, sep)
					s, err := r.tool.Read(&Job{Figure: r.figure, Count: r.count}, strings.Join(all, "\n")+"\n")
					if err != nil {
						refused++
						continue
					}
					assert.Positive(t, s.Mean, "%s", all[len(all)-1])
				}
			}
			assert.Positive(t, refused, "%s %q", r.file, nonsense)
		}
	}
}

func FuzzRead(f *testing.F) {
	for i, r := range recordings {
		f.Add(i, recording(f, r.file))
	}
	f.Fuzz(func(t *testing.T, i int, text string) {
		if i < 0 || i >= len(recordings) {
			return
		}
		r := recordings[i]
		s, err := r.tool.Read(&Job{Figure: r.figure, Count: r.count}, text)
		if err == nil && (!(s.Mean > 0) || !(s.Median >= 0)) {
			t.Errorf("%+v of %q", s, text)
		}
	})
}

func verbenaReport(t *testing.T, test string, way verbs.Path, results ...report.Result) string {
	t.Helper()
	kind, err := plan.ParseTest(test)
	require.NoError(t, err)
	p := plan.Plan{Test: kind}
	p.Complete()
	var b bytes.Buffer
	require.NoError(t, report.WriteJSON(&b, []*report.Report{{
		Format: report.Format, Version: report.Version, Plan: p, Path: report.Path{Way: way.String()}, Results: results,
	}}))
	return b.String()
}

func TestReadVerbena(t *testing.T) {
	seen := 0
	v := Verbena{Way: verbs.PathSharedMemory, OnReport: func(*report.Report) { seen++ }}
	for _, good := range []struct {
		test   string
		figure figure.Figure
		result report.Result
		want   figure.Sample
	}{
		{"write_lat", oneWay, report.Result{Size: 8, Latency: &report.Latency{Typical: 0.8, Avg: 0.9}}, figure.Sample{Median: 0.8, Mean: 0.9}},
		{"send_lat", woken, report.Result{Size: 8, Latency: &report.Latency{Typical: 8, Avg: 9}}, figure.Sample{Median: 8, Mean: 9}},
		{"write_bw", rate, report.Result{Size: 8, Rate: 1e7, Bandwidth: 8e7}, figure.Sample{Mean: 1e7}},
		{"read_bw", read64K, report.Result{Size: 64 << 10, Rate: 1e5, Bandwidth: 6.5e9}, figure.Sample{Mean: 6.5e9}},
	} {
		j := &Job{Figure: good.figure}
		got, err := v.Read(j, verbenaReport(t, good.test, v.Way, good.result))
		require.NoError(t, err, good.test)
		assert.Equal(t, good.want, got)
	}
	assert.Equal(t, 4, seen)

	one := report.Result{Size: 64 << 10, Bandwidth: 1}
	j := &Job{Figure: read64K}
	for name, out := range map[string]string{
		"nothing":       "",
		"no report":     "{}",
		"two reports":   strings.Repeat(verbenaReport(t, "read_bw", v.Way, one), 2),
		"two results":   verbenaReport(t, "read_bw", v.Way, one, one),
		"another test":  verbenaReport(t, "write_bw", v.Way, one),
		"another size":  verbenaReport(t, "read_bw", v.Way, report.Result{Size: 8, Bandwidth: 1}),
		"no operations": verbenaReport(t, "read_bw", v.Way, report.Result{Size: 64 << 10}),
	} {
		_, err := v.Read(j, out)
		assert.ErrorIs(t, err, errOutput, name)
	}
	_, err := v.Read(j, verbenaReport(t, "read_bw", verbs.PathNetwork, one))
	assert.ErrorContains(t, err, "through network, want shared memory")
}

// Both ends are told the same, and the client where the server is.
func TestCommands(t *testing.T) {
	addr := netip.MustParseAddr("10.11.0.1")
	tools := []Tool{
		UCX{"ucx_perftest", "posix,cma"}, UCX{"ucx_perftest", "tcp"}, PingPong{"fi_pingpong"}, RMA{"fi_rma_bw"},
		Perftest{Folder: "/usr/bin", Device: "rxe0"}, Verbena{Path: "verbena", Device: "soft-lo?local=off"},
	}
	for _, tool := range tools {
		for _, f := range figure.All() {
			if !tool.Measures(f) {
				continue
			}
			assert.Zero(t, tool.FirstCount(f)%Batch)
			server, client := tool.Commands(&Job{Figure: f, Count: 640, Time: time.Second, Limit: time.Minute, Server: addr, Port: 12345, Link: "e0"})
			assert.Contains(t, server.Args, "12345", "%v", server)
			assert.Contains(t, client.Args, "12345", "%v", client)
			assert.Contains(t, client.Args, "10.11.0.1", "%v", client)
			assert.Equal(t, server.Args[0], client.Args[0])
			assert.Equal(t, server.Env, client.Env)
		}
	}
	assert.Equal(t, `A=b verbena -d 'soft-lo?local=off'`, Command{[]string{"A=b"}, []string{"verbena", "-d", "soft-lo?local=off"}}.String())
}

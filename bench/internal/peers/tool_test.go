package peers

import (
	"embed"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/verbs"
)

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
	latency = figure{kind: oneWay, size: 8}
	asleep  = figure{kind: woken, size: 8}
	small   = figure{kind: rate, size: 8}
	write1M = figure{kind: bandwidth, op: "write", size: 1 << 20}
	read64K = figure{kind: bandwidth, op: "read", size: 64 << 10}
	send1M  = figure{kind: bandwidth, op: "send", size: 1 << 20}
)

// recordings are what was recorded, of what, and what it says.
var recordings = []struct {
	file   string
	tool   tool
	figure figure
	count  int
	want   sample
}{
	{"ucx-one-way.txt", ucx{}, latency, 1024, sample{median: 0.276, mean: 0.311}},
	{"ucx-woken.txt", ucx{}, asleep, 1024, sample{median: 12.545, mean: 15.862}},
	{"ucx-rate.txt", ucx{}, small, 1_000_000, sample{mean: 71240832}},
	{"ucx-write.txt", ucx{}, write1M, 64, sample{mean: 43.71 * (1 << 20)}},
	{"ucx-read.txt", ucx{}, read64K, 2560, sample{mean: 81631.02 * (1 << 20)}},
	{"ucx-send.txt", ucx{}, send1M, 64, sample{mean: 764.23 * (1 << 20)}},
	{"pingpong-one-way.txt", pingPong{}, latency, 1024, sample{mean: 1408.22}},
	{"pingpong-64k.txt", pingPong{}, read64K, 256, sample{mean: 65536e6 / 396.67}},
	{"pingpong-1m.txt", pingPong{}, send1M, 64, sample{mean: 1048576e6 / 3498.61}},
	{"perftest-one-way.txt", perftest{}, latency, 1024, sample{median: 11.86, mean: 273.95}},
	{"perftest-woken.txt", perftest{}, asleep, 1024, sample{median: 1751.96, mean: 2120.98}},
	{"perftest-rate.txt", perftest{}, small, 16384, sample{mean: 37022}},
	{"perftest-read.txt", perftest{}, read64K, 256, sample{mean: 37.69 * (1 << 20)}},
	{"perftest-send.txt", perftest{}, send1M, 64, sample{mean: 15.01 * (1 << 20)}},
}

func TestRead(t *testing.T) {
	for _, r := range recordings {
		t.Run(r.file, func(t *testing.T) {
			require.True(t, r.tool.measures(r.figure))
			text := recording(t, r.file)
			got, err := r.tool.read(&job{figure: r.figure, count: r.count}, text)
			require.NoError(t, err)
			assert.InEpsilon(t, r.want.mean, got.mean, 1e-9)
			assert.InDelta(t, r.want.median, got.median, 1e-9)

			// It was asked for something else.
			_, err = r.tool.read(&job{figure: r.figure, count: 2 * r.count}, text)
			assert.ErrorIs(t, err, errOutput)
			// Not all of it is there, or more than there should be.
			all := lines(text)
			for _, part := range []string{"", all[0], strings.Join(all[:len(all)-1], "\n"), text + all[len(all)-1], text + text, "a warning\n" + text} {
				_, err = r.tool.read(&job{figure: r.figure, count: r.count}, part)
				if _, lenient := r.tool.(perftest); lenient && strings.HasPrefix(part, "a warning") {
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
					s, err := r.tool.read(&job{figure: r.figure, count: r.count}, strings.Join(all, "\n")+"\n")
					if err != nil {
						refused++
						continue
					}
					assert.Positive(t, s.mean, "%s", all[len(all)-1])
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
		s, err := r.tool.read(&job{figure: r.figure, count: r.count}, text)
		if err == nil && (!(s.mean > 0) || !(s.median >= 0)) {
			t.Errorf("%+v of %q", s, text)
		}
	})
}

func verbenaReport(test string, way verbs.Path, results ...string) string {
	return fmt.Sprintf(`{"format":"verbena-perf","version":1,"plan":{"test":%q},"path":{"way":%q},"results":[%s]}`, test, way, strings.Join(results, ","))
}

func TestReadVerbena(t *testing.T) {
	v := verbena{way: verbs.PathSharedMemory}
	for _, good := range []struct {
		test   string
		figure figure
		result string
		want   sample
	}{
		{"write_lat", latency, `{"size":8,"latency_us":{"min":0.5,"typical":0.8,"avg":0.9,"p99":1}}`, sample{median: 0.8, mean: 0.9}},
		{"send_lat", asleep, `{"size":8,"latency_us":{"min":5,"typical":8,"avg":9,"p99":10}}`, sample{median: 8, mean: 9}},
		{"write_bw", small, `{"size":8,"operations_per_second":1e7,"bytes_per_second":8e7}`, sample{mean: 1e7}},
		{"read_bw", read64K, `{"size":65536,"operations_per_second":1e5,"bytes_per_second":6.5e9}`, sample{mean: 6.5e9}},
	} {
		got, err := v.read(&job{figure: good.figure}, verbenaReport(good.test, v.way, good.result))
		require.NoError(t, err, good.test)
		assert.Equal(t, good.want, got)
	}
	const one = `{"size":65536,"operations_per_second":1,"bytes_per_second":1}`
	j := &job{figure: read64K}
	for name, out := range map[string]string{
		"nothing":       "",
		"no report":     "{}",
		"two reports":   strings.Repeat(verbenaReport("read_bw", v.way, one), 2),
		"two results":   verbenaReport("read_bw", v.way, one, one),
		"another test":  verbenaReport("write_bw", v.way, one),
		"another size":  verbenaReport("read_bw", v.way, `{"size":8,"operations_per_second":1,"bytes_per_second":1}`),
		"no operations": verbenaReport("read_bw", v.way, `{"size":65536}`),
	} {
		_, err := v.read(j, out)
		assert.ErrorIs(t, err, errOutput, name)
	}
	_, err := v.read(j, verbenaReport("read_bw", verbs.PathNetwork, one))
	assert.ErrorContains(t, err, "through network, want shared memory")
}

// Both ends are told the same, and the client where the server is.
func TestCommands(t *testing.T) {
	addr := netip.MustParseAddr("10.11.0.1")
	tools := []tool{
		ucx{path: "ucx_perftest", transports: "posix,cma"}, ucx{path: "ucx_perftest", transports: "tcp"}, pingPong{path: "fi_pingpong"},
		perftest{folder: "/usr/bin", device: "rxe0"}, verbena{path: "verbena", device: "soft-lo?local=off"},
		streams{path: "bench"}, verbenaSend{&payload{}, "verbena"}, &scp{payload: &payload{}},
	}
	for _, tool := range tools {
		measured := 0
		for _, f := range figures() {
			if !tool.measures(f) {
				continue
			}
			measured++
			assert.Zero(t, tool.firstCount(f)%batch)
			server, client := tool.commands(&job{figure: f, count: 640, time: time.Second, limit: time.Minute, server: addr, port: 12345, link: "e0"})
			assert.Contains(t, strings.Join(server.Args, " "), "12345", "%v", server)
			assert.Contains(t, strings.Join(client.Args, " "), "12345", "%v", client)
			assert.Contains(t, strings.Join(client.Args, " "), "10.11.0.1", "%v", client)
			assert.Equal(t, server.Env, client.Env)
		}
		assert.Positive(t, measured)
	}
	assert.Equal(t, `A=b verbena -d 'soft-lo?local=off'`, textOf(process.Program{Env: []string{"A=b"}, Args: []string{"verbena", "-d", "soft-lo?local=off"}}))
}

func TestCountFor(t *testing.T) {
	for _, c := range []struct {
		figure figure
		mean   float64
		want   int
	}{
		{latency, 5, 100_000 / 64 * 64},   // µs
		{small, 1e6, 1_000_000 / 64 * 64}, // a second
		{write1M, 1e9, 953 / 64 * 64},     // bytes a second
		{write1M, 1, 128},                 // not fewer than the first
		{small, 1e18, mostCount / 64 * 64},
	} {
		got := countFor(c.figure, sample{mean: c.mean}, time.Second, 128)
		assert.Equal(t, c.want, got, "%v", c.figure)
		assert.Zero(t, got%batch)
	}
}

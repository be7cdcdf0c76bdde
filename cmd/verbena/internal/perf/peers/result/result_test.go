package result

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func samples(means ...float64) (list []*figure.Sample) {
	for _, v := range means {
		if v == 0 {
			list = append(list, nil)
			continue
		}
		list = append(list, &figure.Sample{Mean: v})
	}
	return list
}

func example() *Result {
	const one, write = "one_way_8", "write_1048576"
	times := samples(1, 2, 4)
	times[1].Median = 1.5
	return &Result{
		Format: Format, Version: Version, Time: time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC), Rounds: 3,
		Machine: machine.Machine{CPUs: 2, CPU: "A Processor", OS: "linux", Kernel: "6.18-built", Go: "go1.26"}, Others: 0.25,
		Programs: []Program{{"Verbena", "devel"}, {"UCX", "1.13.1"}},
		Missing:  []Missing{{"libfabric", "there is no fi_pingpong; install the Debian package libfabric-bin"}},
		Scenes: []Scene{
			{
				Name: "local", Title: "Two processes of this machine", Contenders: []string{"Verbena", "UCX"},
				Ratios: []Ratio{{Ours: "Verbena", Theirs: "UCX", Title: "Verbena : UCX"}},
				Cells: []Cell{
					{Figure: one, Contender: "Verbena", Rounds: times},
					{Figure: one, Contender: "UCX", Rounds: samples(0.5, 0, 8), Failure: "round 2: it took too long"},
					{Figure: write, Contender: "Verbena", Rounds: samples(4e9, 5e9, 6e9)},
				},
			},
			{Name: "adapter", Title: "By an RDMA device", Skipped: "there is none"},
		},
		Warnings: []string{"one core"},
	}
}

func TestSpread(t *testing.T) {
	r := example()
	s := &r.Scenes[0]
	rows := figure.Rows()
	require.Equal(t, figure.Figure{Kind: figure.OneWay, Size: 8}, rows[1].Figure)
	assert.Equal(t, Spread{1.5, 1.5, 1.5, 1}, s.Of(&rows[0], "Verbena"), "only one round has a median")
	assert.Equal(t, Spread{2, 1, 4, 3}, s.Of(&rows[1], "Verbena"))
	assert.Equal(t, Spread{4.25, 0.5, 8, 2}, s.Of(&rows[1], "UCX"), "one round has failed")
	assert.Equal(t, Spread{1.25, 0.5, 2, 2}, s.Between(&rows[1], &s.Ratios[0]), "the ratio is of what is of one round")
	assert.Zero(t, s.Between(&rows[0], &s.Ratios[0]))
	last := rows[len(rows)-5]
	require.Equal(t, figure.Figure{Kind: figure.Bandwidth, Op: plan.Write, Size: 1 << 20}, last.Figure)
	assert.Equal(t, Spread{5, 4, 6, 3}, s.Of(&last, "Verbena"))
	assert.Zero(t, s.Of(&last, "UCX"))
	assert.Zero(t, s.Of(&last, "nobody"))
}

const wantMarkdown = `22 November 2026, 2 processors (A Processor), linux 6.18, go1.26. Compared: Verbena devel, UCX 1.13.1. BUSY MACHINE: meanwhile other programs took 25 % of the processors' time, and the hypervisor 0 %. Medians of 3 rounds, in turns, with the lowest and the highest in brackets. A ratio compares the figures of one round: above 1, Verbena moves more data, or takes longer.

**Two processes of this machine**

|  | Verbena | UCX |
|---|---|---|
| 8 B one way, polling, median, µs | 1.50 |  |
| 8 B one way, polling, mean, µs | 2.00 (1.00 to 4.00) | 4.25 (0.5 to 8.00) |
| 1 MiB writes, GB/s | 5.00 (4.00 to 6.00) |  |

|  | Verbena : UCX |
|---|---|
| 8 B one way, polling, mean | 1.25 (0.5 to 2.00) |

- not measured: by an RDMA device: there is none
- not measured: libfabric: there is no fi_pingpong; install the Debian package libfabric-bin
- failed: two processes of this machine, one_way_8 by UCX, 1 of 3 rounds: round 2: it took too long
- warning: one core
`

func TestMarkdown(t *testing.T) { assert.Equal(t, wantMarkdown, example().Markdown()) }

func TestText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, example().WriteText(&b))
	assert.Contains(t, b.String(), "\n                                  Verbena              UCX\n")
	assert.Contains(t, b.String(), "\n8 B one way, polling, mean, µs    2.00 (1.00 to 4.00)  4.25 (0.5 to 8.00)\n")
	assert.Contains(t, b.String(), "\n8 B one way, polling, mean  1.25 (0.5 to 2.00)\n")
	assert.Contains(t, b.String(), "warning: one core\n")
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, example().WriteJSON(&b))
	var got Result
	require.NoError(t, json.Unmarshal(b.Bytes(), &got))
	want := example()
	want.Scenes[0].Ratios = nil // follow from the rest
	assert.Equal(t, want, &got)
}

func TestDocument(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.md")
	write := func(text string) { require.NoError(t, os.WriteFile(name, []byte(text), 0o640)) }
	for _, text := range []string{"", "# a\n" + Begin + "\n", End + "\n" + Begin + "\n"} {
		write(text)
		assert.ErrorContains(t, CheckDocument(name), "no place for the tables", "%q", text)
		assert.Error(t, example().WriteDocument(name))
	}
	write("# a\n" + Begin + "\nold\n" + End + "\n## b\n")
	require.NoError(t, CheckDocument(name))
	for range 2 { // what it has written is replaced, too
		require.NoError(t, example().WriteDocument(name))
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, "# a\n"+Begin+"\n"+wantMarkdown+End+"\n## b\n", string(b))
	}
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	files, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	assert.Len(t, files, 1)
	assert.ErrorIs(t, CheckDocument(name+"x"), os.ErrNotExist)
}

func TestDigits(t *testing.T) {
	for v, want := range map[float64]string{1234.5: "1234", 123.4: "123", 12.34: "12.3", 1.234: "1.23", 0.1234: "0.123", 0.00123: "0.00123"} {
		assert.Equal(t, want, digits(v))
	}
	assert.False(t, strings.Contains(digits(1e-9), "inf"))
}

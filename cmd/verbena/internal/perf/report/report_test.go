package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/load"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// example is a report with one result of each size.
func example(test plan.Test, sizes ...int) *Report {
	p := plan.Plan{Test: test, Sizes: sizes}
	p.Complete()
	host := control.Host{Device: "soft-lo", GID: "127.0.0.2", Machine: machine.Machine{ID: "a", CPUs: 4, CPU: "X"}}
	r := &Report{Format: Format, Version: Version, Time: time.Unix(1e9, 0).UTC(), Plan: p, Client: host, Server: host, Path: Path{MTU: 4096}}
	for _, s := range p.Sizes {
		res := Result{Size: s, Operations: 1000, Seconds: 1, Rate: 1000, Bandwidth: 1000 * float64(s), Client: Usage{CPU: 300}, Server: Usage{CPU: 200}}
		if test.Kind != plan.Bandwidth {
			l := load.NewLatency()
			for i := range 1000 {
				l.Record(time.Duration(1000 + i))
			}
			res.Latency = LatencyOf(l)
		}
		r.Results = append(r.Results, res)
	}
	return r
}

func TestJSON(t *testing.T) {
	list := []*Report{example(plan.Test{Op: plan.Read}, 2, 4), example(plan.Test{Op: plan.Write, Kind: plan.Latency}, 2)}
	list[0].Results[0].Client.Counters = []control.Counter{{Name: "x", Delta: -2}}
	list[0].Warnings = []string{"w"}
	var b bytes.Buffer
	require.NoError(t, WriteJSON(&b, list))
	d := json.NewDecoder(&b)
	for _, want := range list {
		got := new(Report)
		require.NoError(t, d.Decode(got))
		assert.Equal(t, want, got)
	}
	assert.False(t, d.More())
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, WriteCSV(&b, []*Report{example(plan.Test{Op: plan.Read}, 2, 4), example(plan.Test{Op: plan.Write, Kind: plan.Latency}, 2), example(plan.Test{Op: plan.Write, Kind: plan.Batches}, 2)}))
	lines, err := csv.NewReader(&b).ReadAll() // which checks that all have as many fields
	require.NoError(t, err)
	require.Len(t, lines, 5)
	assert.Equal(t, csvHeader, lines[0])
	assert.Equal(t, "read_bw", lines[1][1])
	assert.Equal(t, "write_lat", lines[3][1])
	assert.Equal(t, "write_batch", lines[4][1])
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	table := NewTable(&b, true)
	bw, lat := example(plan.Test{Op: plan.Read}, 1e6), example(plan.Test{Op: plan.Write, Kind: plan.Latency}, 2)
	batch := example(plan.Test{Op: plan.Write, Kind: plan.Batches}, 5e6)
	bw.Warnings, bw.Path.Way = []string{"do not believe it"}, "shared memory"
	bw.Results[0].Damage = "rot"
	bw.Results[0].Server.Counters = []control.Counter{{Name: "drops", Delta: 3}}
	table.Head(bw)
	table.Row(&bw.Plan, &bw.Results[0])
	table.Counters(&bw.Results[0])
	table.Foot(bw)
	table.Head(lat)
	table.Row(&lat.Plan, &lat.Results[0])
	table.Head(batch)
	table.Row(&batch.Plan, &batch.Results[0])
	require.NoError(t, table.Err())
	for _, want := range []string{"BW average[Gb/sec]", " 8.00 ", "DAMAGED: rot", "server drops", "+3", "warning: do not believe it", "went through shared memory", "half of a round trip", "t_typical", " 1.50 ", "batches of 256 items, 1 peers, depth 64", "t_max of a batch", " 40.00 ", " 2.00"} {
		assert.Contains(t, b.String(), want)
	}
}

func TestWarningsOf(t *testing.T) {
	fresh := func() *Report { return example(plan.Test{Op: plan.Send}, 8) }
	assert.Empty(t, WarningsOf(fresh()))
	for want, change := range map[string]func(r *Report){
		"emulated":           func(r *Report) { r.Client.Machine.Emulated = true },
		"governor powersave": func(r *Report) { r.Client.Machine.Governor = "powersave" },
		"load average":       func(r *Report) { r.Client.Machine.Load = 3 },
		"of one machine":     func(r *Report) { r.Plan.Engines = 3 },
		"of the server poll": func(r *Report) { r.Server.Machine.ID, r.Server.Machine.CPUs, r.Plan.Engines = "b", 1, 2 },
		"less than":          func(r *Report) { r.Results[0].Seconds = 0.001 },
		"swapping":           func(r *Report) { r.Results[0].Server.Swapped = 1 },
		"retransmitted": func(r *Report) {
			r.Results[0].Client.Counters = []control.Counter{{Name: "completer_retry_err", Delta: 1}}
		},
		"verified": func(r *Report) { r.Plan.Verify = true },
	} {
		r := fresh()
		change(r)
		list := WarningsOf(r)
		require.Len(t, list, 1, want)
		assert.Contains(t, list[0], want)
	}
}

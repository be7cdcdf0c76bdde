package peers

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/tool"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
)

func TestCountFor(t *testing.T) {
	for _, c := range []struct {
		figure figure.Figure
		mean   float64
		want   int
	}{
		{figure.Figure{Kind: figure.OneWay, Size: 8}, 5, 100_000 / 64 * 64},        // µs
		{figure.Figure{Kind: figure.Rate, Size: 8}, 1e6, 1_000_000 / 64 * 64},      // a second
		{figure.Figure{Kind: figure.Bandwidth, Size: 1 << 20}, 1e9, 953 / 64 * 64}, // bytes a second
		{figure.Figure{Kind: figure.Bandwidth, Size: 1 << 20}, 1, 128},             // not fewer than the first
		{figure.Figure{Kind: figure.Rate, Size: 8}, 1e18, mostCount / 64 * 64},
	} {
		got := countFor(c.figure, figure.Sample{Mean: c.mean}, time.Second, 128)
		assert.Equal(t, c.want, got, "%v", c.figure)
		assert.Zero(t, got%tool.Batch)
	}
}

func TestProcessorTime(t *testing.T) {
	p := parseStat("cpu  100 20 3 1000 50 6 7 8 90 90\ncpu0 1 2 3\n")
	assert.Equal(t, processorTime{busy: 136, stolen: 8, all: 1194}, p)
	for _, text := range []string{"", "cpu", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"} {
		assert.Zero(t, parseStat(text), "%q", text)
	}
	others, stolen := startProcessorTime().others(time.Hour)
	assert.Zero(t, others, "all of it was ours")
	assert.GreaterOrEqual(t, stolen, 0.0)
}

// The load that these programs make is not held against them.
func TestMachineWarnings(t *testing.T) {
	d := newMachineWarnings(machine.Machine{CPUs: 2, Load: 0.1})
	r := func() *report.Report {
		r := &report.Report{Results: []report.Result{{Seconds: 1}}}
		r.Client.Machine, r.Server.Machine = machine.Machine{CPUs: 2, Load: 9, ID: "a"}, machine.Machine{CPUs: 2, Load: 9, ID: "a"}
		return r
	}
	d.add(r())
	short := r()
	short.Results[0].Seconds = 0.001
	d.add(short)
	list := d.list()
	if assert.Len(t, list, 1) {
		assert.Contains(t, list[0], "1 of 2 measurements of Verbena: some measurements took less than")
	}
	d = newMachineWarnings(machine.Machine{CPUs: 2, Load: 5})
	d.add(r())
	if list = d.list(); assert.Len(t, list, 1) {
		assert.Contains(t, list[0], "load average of the client was 5.00")
	}
}

func TestCell(t *testing.T) {
	s := &scene{}
	f := figure.All()[0]
	c := s.cell(f, tool.UCX{Transports: "tcp"})
	assert.Same(t, c, s.cell(f, tool.UCX{Transports: "tcp"}))
	assert.NotSame(t, c, s.cell(f, tool.UCX{Transports: "posix,cma"}))
	c.failed(0, errors.New("first"))
	c.add(figure.Sample{Mean: 1})
	c.failed(2, errors.New("second"))
	assert.False(t, c.givenUp())
	c.failed(3, errors.New("third"))
	assert.True(t, c.givenUp())
	cells := s.cellsOf(3)
	assert.Len(t, cells[0].Rounds, 3)
	assert.Equal(t, "round 1: first", cells[0].Failure)
	assert.False(t, s.ownFailed())

	own := s.cell(f, tool.Verbena{})
	own.failed(0, errors.New("no"))
	assert.True(t, s.ownFailed())
	own.add(figure.Sample{Mean: 1})
	assert.False(t, s.ownFailed())
}

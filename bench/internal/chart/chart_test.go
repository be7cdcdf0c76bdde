package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gonum.org/v1/plot/plotter"

	"github.com/verbena-rdma/verbena/bench/internal/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func made(test string, connections int, results ...report.Result) *report.Report {
	return &report.Report{Plan: report.Plan{Test: test, Connections: connections}, Results: results}
}

func bandwidth(size int, v float64) report.Result {
	return report.Result{Size: size, Bandwidth: v, Rate: v / float64(size)}
}

func latency(size int, bars ...report.Bar) report.Result {
	return report.Result{Size: size, Latency: &report.Latency{Bars: bars}}
}

func TestFigures(t *testing.T) {
	sets := []Set{{Reports: []*report.Report{
		made("write_lat", 1, latency(8, report.Bar{Nanoseconds: 1000, Count: 3}, report.Bar{Nanoseconds: 2000, Count: 1}), latency(8, report.Bar{Nanoseconds: 500, Count: 4})),
		made("write_bw", 1, bandwidth(2, 1e9), bandwidth(4, 4e9), bandwidth(2, 3e9), bandwidth(2, 2e9)),
		made("write_bw", 2, bandwidth(2, 4e9)),
		made("fetch_add_bw", 2, bandwidth(8, 1e6)),
	}}}
	list := figures(sets)
	require.Len(t, list, 3)
	require.Len(t, list[0].series, 1)
	assert.Equal(t, "write_lat, 8 bytes", list[0].series[0].name)
	assert.EqualValues(t, [][2]float64{{0.5, 0.5}, {1, 0.875}, {2, 1}}, pairs(list[0].series[0]))
	require.Len(t, list[1].series, 2, "atomics have one size")
	assert.EqualValues(t, [][2]float64{{2, 2}, {4, 4}}, pairs(list[1].series[0]), "the median of the rounds")
	require.Len(t, list[2].series, 1, "the others have one number of connections")
	assert.EqualValues(t, [][2]float64{{1, 1000}, {2, 2000}}, pairs(list[2].series[0]))
}

// A distribution of many times takes no more points than can be seen, and has both ends.
func TestDistributionIsThin(t *testing.T) {
	counts := map[int64]int64{}
	for ns := range int64(100_000) {
		counts[ns+1] = 1
	}
	points := cumulate(counts)
	assert.LessOrEqual(t, len(points), resolution+2)
	assert.Equal(t, plotter.XY{X: 0.001, Y: 0.00001}, points[0])
	assert.Equal(t, plotter.XY{X: 100, Y: 1}, points[len(points)-1])
	for i := range points[1:] {
		assert.InDelta(t, points[i].Y, points[i+1].Y, 1.01/resolution)
		assert.InDelta(t, points[i+1].X/100, points[i+1].Y, 1e-9)
	}
}

func pairs(s series) (list [][2]float64) {
	for _, p := range s.points {
		list = append(list, [2]float64{p.X, p.Y})
	}
	return list
}

// Whatever is drawn is well-formed, also where a scale would have no range.
func TestDrawings(t *testing.T) {
	for name, reports := range map[string][]*report.Report{
		"one point":   {made("read_bw", 1, bandwidth(8, 1e9))},
		"nothing yet": {made("read_bw", 1, bandwidth(8, 0))},
		"one time":    {made("read_lat", 1, latency(8, report.Bar{Nanoseconds: 7, Count: 1}))},
		"wrong times": {made("read_lat", 1, latency(8, report.Bar{Nanoseconds: 7, Count: 1}, report.Bar{Nanoseconds: -7, Count: 1}, report.Bar{Nanoseconds: 9, Count: -1}))},
		"all": {made("read_lat", 1, latency(8, report.Bar{Nanoseconds: 1, Count: 1}, report.Bar{Nanoseconds: 1e12, Count: 1})),
			made("send_bw", 1, bandwidth(1, 1), bandwidth(1<<30, 1e12)), made("send_bw", 1<<16, bandwidth(1, 5))},
	} {
		t.Run(name, func(t *testing.T) {
			sets := []Set{{"<a & b>", reports}, {"c", reports}}
			var svg bytes.Buffer
			require.NoError(t, SVG(&svg, sets))
			assert.Contains(t, svg.String(), "<svg")
			assert.NotContains(t, svg.String(), "NaN")
			for d := xml.NewDecoder(&svg); ; {
				_, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
			}
		})
	}
	assert.ErrorIs(t, SVG(io.Discard, nil), errNothing)
	assert.ErrorIs(t, SVG(io.Discard, []Set{{Reports: []*report.Report{made("fetch_add_bw", 1, bandwidth(8, 1))}}}), errNothing)
}

func TestTicks(t *testing.T) {
	list := powerTicks{}.Ticks(2, 1<<23)
	assert.Len(t, list, 23)
	assert.Equal(t, "2", list[0].Label)
	labels := 0
	for _, tick := range list {
		if tick.Label != "" {
			labels++
		}
	}
	assert.LessOrEqual(t, labels, 13)
	assert.Equal(t, "64 Ki", binary(65536))
	assert.Equal(t, "1 Mi", binary(1<<20))
}

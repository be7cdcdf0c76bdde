package measure

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	latency = Row{"latency", "µs", true}
	rate    = Row{"rate", "M/s", false}
)

// fixed gives the values of a row, one in each round; a negative one is a failure.
func fixed(row Row, values ...float64) Measurement {
	round := 0
	return Measurement{Name: row.Title, Do: func(context.Context) ([]Value, error) {
		round++
		if v := values[round-1]; v >= 0 {
			return []Value{{row, v}}, nil
		}
		return nil, errors.New("no such provider")
	}}
}

func write(t *testing.T, r *Result, markdown bool) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, r.Write(&b, markdown))
	return b.String()
}

func TestTables(t *testing.T) {
	s := &Scene{Title: "here", Ratios: []Ratio{{0, 1, "ours : theirs"}}, Contenders: []Contender{
		{Name: "ours", Own: true, Measurements: []Measurement{fixed(latency, 2, 3, 10), fixed(rate, 1, 1, 1)}},
		{Name: "theirs", Measurements: []Measurement{fixed(latency, 1, 2, -1)}},
	}}
	elsewhere := &Scene{Title: "elsewhere", Skipped: "it is far"}
	var log strings.Builder
	r, err := Run(t.Context(), []*Scene{s, elsewhere}, 3, &log)
	require.NoError(t, err)
	r.About = []string{"A machine."}
	assert.Equal(t, `A machine. Medians of 3 rounds, in turns, with the lowest and the highest in brackets. A ratio compares the values of one round.

**here**

|  | ours | theirs |
|---|---|---|
| latency, µs | 3.00 (2.00 to 10.0) | 1.50 (1.00 to 2.00) |
| rate, M/s | 1.00 (1.00 to 1.00) |  |

|  | ours : theirs |
|---|---|
| latency | 1.75 (1.50 to 2.00) |

- not measured: elsewhere: it is far
- failed: here, latency by theirs, 1 times: round 3: no such provider
`, write(t, r, true))
	assert.Contains(t, write(t, r, false), "\nlatency, µs  3.00 (2.00 to 10.0)  1.50 (1.00 to 2.00)\n")
	assert.Contains(t, log.String(), "latency by ours: 10 µs\n")
	var b strings.Builder
	require.NoError(t, r.WriteJSON(&b))
	var all struct {
		Scenes []struct {
			Rows []struct {
				Title  string
				Values map[string][]float64
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(b.String()), &all))
	assert.Equal(t, map[string][]float64{"ours": {2, 3, 10}, "theirs": {1, 2}}, all.Scenes[0].Rows[0].Values)
}

// A measurement that fails twice in a row is given up. The own ones must succeed once.
func TestFailures(t *testing.T) {
	s := &Scene{Contenders: []Contender{
		{Name: "a", Own: true, Measurements: []Measurement{fixed(rate, -1, 1, -1)}},
		{Name: "b", Measurements: []Measurement{fixed(rate, -1, -1)}},
	}}
	r, err := Run(t.Context(), []*Scene{s}, 3, &strings.Builder{})
	require.NoError(t, err)
	assert.Contains(t, write(t, r, true), "rate by b, 2 times")
	s = &Scene{Contenders: []Contender{{Name: "a", Own: true, Measurements: []Measurement{fixed(rate, -1, -1)}}}}
	_, err = Run(t.Context(), []*Scene{s}, 5, &strings.Builder{})
	assert.ErrorIs(t, err, errOwn)
	assert.ErrorContains(t, err, "1 of 1 measurements failed")
}

// The rounds that are complete stay, and no others: not even what was measured before the interrupt.
func TestInterrupted(t *testing.T) {
	for interrupted, want := range map[int]string{
		1: "",
		2: "\nlatency, µs  5.00\nrate, M/s    1.00\n",
		3: "\nlatency, µs  5.00 (5.00 to 5.00)\nrate, M/s    1.00 (1.00 to 1.00)\n",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		round := 0
		s := &Scene{Contenders: []Contender{{Name: "a", Measurements: []Measurement{fixed(latency, 5, 5, 5), {Name: "m", Do: func(context.Context) ([]Value, error) {
			if round++; round == interrupted {
				cancel()
			}
			return []Value{{rate, 1}}, nil
		}}}}}}
		r, err := Run(ctx, []*Scene{s}, 3, &strings.Builder{})
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, interrupted-1, r.Rounds)
		text := write(t, r, false)
		assert.Contains(t, text, want)
		assert.Equal(t, interrupted > 1, strings.Contains(text, "latency"))
	}
}

func TestComparison(t *testing.T) {
	for name, c := range map[string]struct {
		row   Row
		a, b  []float64
		says  string
		worse bool
	}{
		"equal":        {rate, []float64{100, 101, 102, 103, 104}, []float64{100, 101, 102, 103, 104}, "no difference shown", false},
		"overlapping":  {rate, []float64{100, 110, 120, 130, 140}, []float64{105, 115, 125, 135, 145}, "no difference shown", false},
		"more":         {rate, []float64{100, 101, 102, 103, 104}, []float64{105, 106, 107, 108, 109}, "better", false},
		"less":         {rate, []float64{105, 106, 107, 108, 109}, []float64{100, 101, 102, 103, 104}, "worse", true},
		"less latency": {latency, []float64{105, 106, 107, 108, 109}, []float64{100, 101, 102, 103, 104}, "better", false},
		"more latency": {latency, []float64{1, 2, 3, 4, 5}, []float64{10, 20, 30, 40, 50}, "worse", true},
		"too few":      {rate, []float64{1, 2, 3}, []float64{100, 200, 300}, "too few rounds: at least 4", false},
		"from nothing": {Row{"allocations", "", true}, []float64{0, 0, 0}, []float64{1, 1, 1}, "only in after: allocations: 1.00", true},
		"only before":  {rate, []float64{1}, nil, "only in before: rate: 1.00 M/s", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Scene{Contenders: []Contender{{Name: "before"}, {Name: "after"}}}
			for i, list := range [][]float64{c.a, c.b} {
				for round, v := range list {
					s.Add(Value{c.row, v}, i, round)
				}
			}
			var b strings.Builder
			worse, err := (&Result{Scenes: []*Scene{s}}).WriteComparison(&b, 0.95)
			require.NoError(t, err)
			assert.Contains(t, b.String(), c.says)
			assert.Equal(t, c.worse, worse)
		})
	}
}

// The more rows, the more a row must show.
func TestManyRows(t *testing.T) {
	for rounds, says := range map[int]string{5: "too few rounds: at least 6", 10: "better"} {
		s := &Scene{Contenders: []Contender{{Name: "before"}, {Name: "after"}}}
		for row := range 20 {
			for round := range rounds {
				x := Row{strings.Repeat("r", row+1), "M/s", false}
				s.Add(Value{x, 100 + float64(round)}, 0, round)
				s.Add(Value{x, 200 + float64(round)}, 1, round)
			}
		}
		var b strings.Builder
		_, err := (&Result{Scenes: []*Scene{s}}).WriteComparison(&b, 0.95)
		require.NoError(t, err)
		assert.Equal(t, 20, strings.Count(b.String(), says), "one row in twenty looks so by chance")
	}
}

func TestLoad(t *testing.T) {
	assert.Equal(t, Load{busy: 136, stolen: 8, all: 1194}, parseStat("cpu  100 20 3 1000 50 6 7 8 90 90\ncpu0 1 2 3\n"))
	for _, text := range []string{"", "cpu", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8"} {
		assert.Zero(t, parseStat(text), "%q", text)
	}
	if l := StartLoad(); l.all > 0 {
		l.all--
		assert.Contains(t, l.Others(time.Hour), "other programs took 0 %", "all of it was ours")
	}
	assert.Contains(t, Machine(), "processors")
}

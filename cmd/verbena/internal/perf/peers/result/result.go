// Package result has the results of verbena perf peers, as text, Markdown and JSON.
package result

import (
	"encoding/json"
	"io"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
)

// Format and Version are in every Result.
const (
	Format  = "verbena-perf-peers"
	Version = 1
)

// Result is everything that was found.
type Result struct {
	Format   string          `json:"format"`
	Version  int             `json:"version"`
	Time     time.Time       `json:"time"` // of the beginning
	Seconds  float64         `json:"seconds"`
	Machine  machine.Machine `json:"machine"`
	Others   float64         `json:"others"` // share of the processors' time that other programs took
	Stolen   float64         `json:"stolen"` // share that the hypervisor gave to other machines
	Rounds   int             `json:"rounds"`
	Programs []Program       `json:"programs"` // the programs that were found
	Missing  []Missing       `json:"missing,omitempty"`
	Scenes   []Scene         `json:"scenes"`
	Warnings []string        `json:"warnings,omitempty"`
}

// Program is a program that was compared.
type Program struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// Missing is something that could not be compared.
type Missing struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// Scene is a place where the ends ran, and what they measured there.
type Scene struct {
	Name       string   `json:"name"`
	Title      string   `json:"title"`
	Skipped    string   `json:"skipped,omitempty"` // why nothing was measured
	Contenders []string `json:"contenders,omitempty"`
	Ratios     []Ratio  `json:"-"`
	Cells      []Cell   `json:"figures,omitempty"`
}

// Ratio is two contenders to compare.
type Ratio struct {
	Ours, Theirs string // names of contenders
	Title        string
}

// Cell is one figure of one contender.
type Cell struct {
	Figure    string           `json:"figure"`
	Contender string           `json:"contender"`
	Rounds    []*figure.Sample `json:"rounds"` // null: that measurement failed
	Failure   string           `json:"failure,omitempty"`
}

// Busy reports whether other programs have distorted the figures.
func (r *Result) Busy() bool { return r.Others > 0.1 || r.Stolen > 0.05 }

// WriteJSON writes the result as JSON.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// Cell finds a cell; nil: there is none.
func (s *Scene) Cell(f figure.Figure, contender string) *Cell {
	for i := range s.Cells {
		if c := &s.Cells[i]; c.Figure == f.String() && c.Contender == contender {
			return c
		}
	}
	return nil
}

// Spread is the median of some values, the lowest and the highest. N is how many there are.
type Spread struct {
	Median, Low, High float64
	N                 int
}

// spreadOf returns the spread of values, which it sorts.
func spreadOf(values []float64) (s Spread) {
	if len(values) == 0 {
		return s
	}
	slices.Sort(values)
	n := len(values)
	return Spread{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1], n}
}

// value returns the value of one row in one round; zero: there is none.
func (c *Cell) value(row *figure.Row, round int) float64 {
	if round >= len(c.Rounds) || c.Rounds[round] == nil {
		return 0
	}
	return row.Value(*c.Rounds[round])
}

// Of is the spread of a row over a contender's rounds.
func (s *Scene) Of(row *figure.Row, contender string) Spread {
	var values []float64
	if c := s.Cell(row.Figure, contender); c != nil {
		for round := range c.Rounds {
			if v := c.value(row, round); v > 0 {
				values = append(values, v)
			}
		}
	}
	return spreadOf(values)
}

// Between is the spread of a ratio. The ratio is computed within each round, because its two
// figures were measured shortly after each other.
func (s *Scene) Between(row *figure.Row, r *Ratio) Spread {
	ours, theirs := s.Cell(row.Figure, r.Ours), s.Cell(row.Figure, r.Theirs)
	var values []float64
	if ours != nil && theirs != nil {
		for round := range ours.Rounds {
			if a, b := ours.value(row, round), theirs.value(row, round); a > 0 && b > 0 {
				values = append(values, a/b)
			}
		}
	}
	return spreadOf(values)
}

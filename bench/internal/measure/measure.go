// Package measure has contenders measure the same rows in turns, in rounds, and prints what they
// measured as tables.
package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Row is a line of the tables.
type Row struct {
	Title string `json:"title"`
	Unit  string `json:"unit"`
	Less  bool   `json:"less,omitempty"` // less is better
}

// Value is a value of a row.
type Value struct {
	Row
	Of float64
}

// Measurement is one thing that a contender does in each round. It may give values of several rows.
type Measurement struct {
	Name string
	Do   func(ctx context.Context) ([]Value, error)

	succeeded   bool  // at least once
	first       error // of those with which it has failed
	failed      int   // how often
	consecutive int   // failures since it has succeeded
}

// Contender is a program, or a version of one.
type Contender struct {
	Name         string
	Own          bool // each of its measurements must succeed at least once
	Measurements []Measurement
}

// Ratio is two contenders to compare, by their numbers.
type Ratio struct {
	Of, To int
	Title  string
}

// Scene is a place where contenders measure.
type Scene struct {
	Title      string
	Skipped    string // why nothing is measured
	Contenders []Contender
	Ratios     []Ratio

	rows   []Row
	values map[Row][][]float64 // by contender and round; 0: there is none
}

// mostFailures is how often a measurement may fail in a row. Another try would waste time.
const mostFailures = 2

// Result is what was measured.
type Result struct {
	About  []string // the machine, the programs
	Notes  []string // what was not measured, and what else a reader must know
	Rounds int
	Scenes []*Scene
}

// errOwn: measurements of the own program failed. The tables list what failed.
var errOwn = errors.New("measurements failed, and are left out; see the failures listed above")

// Run measures all scenes. If it is interrupted, the result has the rounds that are complete. If
// measurements of Own contenders never succeeded, it returns the result and an error. It writes each
// value to log.
func Run(ctx context.Context, scenes []*Scene, rounds int, log io.Writer) (*Result, error) {
	r := &Result{Scenes: scenes}
	start := time.Now()
	for round := range rounds {
		for _, s := range scenes {
			if s.Skipped != "" {
				continue
			}
			if err := s.round(ctx, round, log); err != nil {
				for _, s := range scenes {
					s.cut(r.Rounds)
				}
				return r, err
			}
		}
		r.Rounds++
		_, _ = fmt.Fprintf(log, "round %d of %d: %v since the start\n", r.Rounds, rounds, time.Since(start).Round(time.Second))
	}
	failed, all := 0, 0
	for _, s := range scenes {
		for _, c := range s.Contenders {
			for _, m := range c.Measurements {
				if c.Own && s.Skipped == "" {
					all++
					if m.failed > 0 && !m.succeeded {
						failed++
					}
				}
			}
		}
	}
	if failed > 0 {
		return r, fmt.Errorf("%d of %d %w", failed, all, errOwn)
	}
	return r, nil
}

// round makes each measurement once: all contenders one after the other. They alternate in going
// first, since the speed of a machine changes from minute to minute.
func (s *Scene) round(ctx context.Context, round int, log io.Writer) error {
	for _, name := range s.names() {
		for i := range s.Contenders {
			at := (i + round) % len(s.Contenders)
			c := &s.Contenders[at]
			m := c.find(name)
			if m == nil || m.consecutive == mostFailures {
				continue
			}
			values, err := m.Do(ctx)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				_, _ = fmt.Fprintf(log, "%s, %s by %s: %v\n", s.Title, name, c.Name, err)
				if m.failed == 0 {
					m.first = fmt.Errorf("round %d: %w", round+1, err)
				}
				m.failed++
				m.consecutive++
				continue
			}
			m.succeeded, m.consecutive = true, 0
			for _, v := range values {
				_, _ = fmt.Fprintf(log, "%s by %s: %.4g %s\n", v.Title, c.Name, v.Of, v.Unit)
				s.Add(v, at, round)
			}
		}
	}
	return nil
}

// names returns the names of all measurements, in order.
func (s *Scene) names() (list []string) {
	seen := map[string]bool{}
	for _, c := range s.Contenders {
		for _, m := range c.Measurements {
			if !seen[m.Name] {
				seen[m.Name] = true
				list = append(list, m.Name)
			}
		}
	}
	return list
}

func (c *Contender) find(name string) *Measurement {
	for i := range c.Measurements {
		if c.Measurements[i].Name == name {
			return &c.Measurements[i]
		}
	}
	return nil
}

// Add adds a value of a contender.
func (s *Scene) Add(v Value, contender, round int) {
	if s.values == nil {
		s.values = map[Row][][]float64{}
	}
	all := s.values[v.Row]
	if all == nil {
		s.rows = append(s.rows, v.Row)
		all = make([][]float64, len(s.Contenders))
		s.values[v.Row] = all
	}
	for len(all[contender]) <= round {
		all[contender] = append(all[contender], 0)
	}
	all[contender][round] = v.Of
}

// cut removes the values of later rounds, and rows that have no others.
func (s *Scene) cut(rounds int) {
	s.rows = slices.DeleteFunc(s.rows, func(r Row) bool {
		kept := false
		for i, list := range s.values[r] {
			s.values[r][i] = list[:min(len(list), rounds)]
			kept = kept || len(s.values[r][i]) > 0
		}
		return !kept
	})
}

// of returns the values that a contender has of a row.
func (s *Scene) of(r Row, contender int) (list []float64) {
	for _, v := range s.values[r][contender] {
		if v > 0 {
			list = append(list, v)
		}
	}
	return list
}

// ratios returns the ratios of a row within each round: two values that were measured shortly after
// each other.
func (s *Scene) ratios(r Row, x Ratio) (list []float64) {
	a, b := s.values[r][x.Of], s.values[r][x.To]
	for round := range min(len(a), len(b)) {
		if a[round] > 0 && b[round] > 0 {
			list = append(list, a[round]/b[round])
		}
	}
	return list
}

// WriteJSON writes all values.
func (r *Result) WriteJSON(w io.Writer) error {
	type row struct {
		Row
		Values map[string][]float64 `json:"values"` // by contender; 0: the measurement failed
	}
	type scene struct {
		Title   string `json:"title"`
		Skipped string `json:"skipped,omitempty"`
		Rows    []row  `json:"rows"`
	}
	all := struct {
		About  []string `json:"about"`
		Notes  []string `json:"notes"`
		Rounds int      `json:"rounds"`
		Scenes []scene  `json:"scenes"`
	}{r.About, r.notes(), r.Rounds, nil}
	for _, s := range r.Scenes {
		one := scene{Title: s.Title, Skipped: s.Skipped}
		for _, x := range s.rows {
			values := map[string][]float64{}
			for i, c := range s.Contenders {
				values[c.Name] = s.values[x][i]
			}
			one.Rows = append(one.Rows, row{x, values})
		}
		all.Scenes = append(all.Scenes, one)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(all)
}

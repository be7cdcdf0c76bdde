// Package figure defines what verbena perf peers measures, independent of the program that
// measures it.
package figure

import (
	"fmt"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

// Kind is what is measured.
type Kind int

// The kinds.
const (
	OneWay    Kind = iota // latency of a message from end to end, while both ends poll
	Woken                 // the same, while both ends sleep until a message arrives
	Rate                  // small operations, posted in batches
	Bandwidth             // large operations
)

// Figure is one thing to measure. It is comparable.
type Figure struct {
	Kind Kind
	Op   plan.Op // of Bandwidth
	Size int     // bytes of each operation
}

// All returns all figures, in the order in which they are measured.
func All() []Figure {
	list := []Figure{{Kind: OneWay, Size: 8}, {Kind: Woken, Size: 8}, {Kind: Rate, Size: 8}}
	for _, op := range []plan.Op{plan.Write, plan.Read, plan.Send} {
		for _, size := range []int{64 << 10, 1 << 20} {
			list = append(list, Figure{Bandwidth, op, size})
		}
	}
	return list
}

// String is the name of the figure, such as read_65536.
func (f Figure) String() string {
	name := f.Op.String()
	switch f.Kind {
	case OneWay:
		name = "one_way"
	case Woken:
		name = "woken"
	case Rate:
		name = "rate"
	}
	return fmt.Sprintf("%s_%d", name, f.Size)
}

// Title describes the figure in words.
func (f Figure) Title() string {
	size := fmt.Sprintf("%d B", f.Size)
	switch {
	case f.Size%(1<<20) == 0:
		size = fmt.Sprintf("%d MiB", f.Size>>20)
	case f.Size%(1<<10) == 0:
		size = fmt.Sprintf("%d KiB", f.Size>>10)
	}
	switch f.Kind {
	case OneWay:
		return size + " one way, polling"
	case Woken:
		return size + " one way, asleep"
	case Rate:
		return size + " writes in batches"
	}
	return fmt.Sprintf("%s %vs", size, f.Op)
}

// IsTime reports whether the figure is a time rather than an amount per second.
func (f Figure) IsTime() bool { return f.Kind == OneWay || f.Kind == Woken }

// Sample is the result of one measurement.
type Sample struct {
	Median float64 `json:"median,omitempty"` // µs, for times; zero: the program does not report it
	Mean   float64 `json:"mean"`             // µs; for Rate, operations a second; for Bandwidth, bytes a second
}

// Each is the average time of an operation, in seconds.
func (f Figure) Each(s Sample) float64 {
	switch f.Kind {
	case Rate:
		return 1 / s.Mean
	case Bandwidth:
		return float64(f.Size) / s.Mean
	}
	return s.Mean / 1e6
}

// Row is a line of the tables: one statistic of one figure.
type Row struct {
	Figure Figure
	Title  string
	Unit   string
	Value  func(Sample) float64 // in Unit; zero: there is none
}

// Rows returns the lines of the tables. Times have two lines, because not every program
// reports the median.
func Rows() (list []Row) {
	for _, f := range All() {
		switch f.Kind {
		case Rate:
			list = append(list, Row{f, f.Title(), "M/s", func(s Sample) float64 { return s.Mean / 1e6 }})
		case Bandwidth:
			list = append(list, Row{f, f.Title(), "GB/s", func(s Sample) float64 { return s.Mean / 1e9 }})
		default:
			list = append(list,
				Row{f, f.Title() + ", median", "µs", func(s Sample) float64 { return s.Median }},
				Row{f, f.Title() + ", mean", "µs", func(s Sample) float64 { return s.Mean }})
		}
	}
	return list
}

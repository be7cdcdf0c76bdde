// Package report has the results of verbena perf, and prints them in perftest's columns, as
// JSON, and as CSV.
package report

import (
	"encoding/json"
	"io"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/load"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

// Format and Version are in every report.
const (
	Format  = "verbena-perf"
	Version = 1
)

// Report is everything about one test.
type Report struct {
	Format   string       `json:"format"`
	Version  int          `json:"version"`
	Time     time.Time    `json:"time"`
	Plan     plan.Plan    `json:"plan"`
	Client   control.Host `json:"client"`
	Server   control.Host `json:"server"`
	Path     Path         `json:"path"`
	Results  []Result     `json:"results"`
	Warnings []string     `json:"warnings,omitempty"`
}

// Path describes the first connection.
type Path struct {
	Local  string `json:"local"`
	Peer   string `json:"peer"`
	MTU    int    `json:"mtu"`
	Inline int    `json:"inline"` // most bytes of data that travel inline in a work request
	Way    string `json:"way"`    // the path that packets took in the end, if the device reports it
}

// Result is one measurement.
type Result struct {
	Round      int     `json:"round"` // from 0
	Size       int     `json:"size"`  // bytes of each operation
	Operations int64   `json:"operations"`
	Seconds    float64 `json:"seconds"`
	Rate       float64 `json:"operations_per_second"`
	Bandwidth  float64 `json:"bytes_per_second"`
	Peak       float64 `json:"peak_bytes_per_second,omitempty"`
	Client     Usage   `json:"client"`
	Server     Usage   `json:"server"`
	Checked    int64   `json:"checked,omitempty"`
	Damage     string  `json:"damage,omitempty"`

	Latency *Latency `json:"latency_us,omitempty"`
}

// Usage is the resources that an end used.
type Usage struct {
	Busy     float64           `json:"processors"`       // on average
	CPU      float64           `json:"ns_per_operation"` // of processor time
	Counters []control.Counter `json:"counters,omitempty"`
	Swapped  uint64            `json:"swapped_pages,omitempty"`
}

// Latency is a distribution of times, in microseconds.
type Latency struct {
	Min     float64    `json:"min"`
	Max     float64    `json:"max"`
	Typical float64    `json:"typical"` // the median
	Avg     float64    `json:"avg"`
	Stdev   float64    `json:"stdev"`
	P90     float64    `json:"p90"`
	P99     float64    `json:"p99"`
	P999    float64    `json:"p99.9"`
	P9999   float64    `json:"p99.99"`
	Bars    []load.Bar `json:"histogram"`
}

// LatencyOf returns the statistics of a distribution.
func LatencyOf(l *load.Latency) *Latency {
	return &Latency{
		Min: l.Min(), Max: l.Max(), Typical: l.Percentile(50), Avg: l.Mean(), Stdev: l.Deviation(),
		P90: l.Percentile(90), P99: l.Percentile(99), P999: l.Percentile(99.9), P9999: l.Percentile(99.99), Bars: l.Bars(),
	}
}

// WriteJSON writes reports, one JSON object after the other.
func WriteJSON(w io.Writer, list []*Report) error {
	e := json.NewEncoder(w)
	for _, r := range list {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

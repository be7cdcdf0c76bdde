// Package report reads the reports of verbena perf -json.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// The format of the reports.
const (
	format  = "verbena-perf"
	version = 1
)

// Report is what is used of the report of one test.
type Report struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Plan    Plan   `json:"plan"`
	Client  Host   `json:"client"`
	Server  Host   `json:"server"`
	Path    struct {
		MTU int    `json:"mtu"`
		Way string `json:"way"` // the path that packets took in the end, if the device reports it
	} `json:"path"`
	Results []Result `json:"results"`
}

// Plan is the test. Its name ends with _bw or _lat.
type Plan struct {
	Test          string        `json:"test"`
	Connections   int           `json:"connections"`
	Engines       int           `json:"engines"`
	Depth         int           `json:"depth"`       // operations in flight on each connection
	Batch         int           `json:"batch"`       // operations that are posted together
	Moderation    int           `json:"moderation"`  // operations for each completion
	Duration      time.Duration `json:"duration_ns"` // zero: a number of operations is measured
	Bidirectional bool          `json:"bidirectional"`
	Events        bool          `json:"events"`
	Verify        bool          `json:"verify"`
}

// Host is one end.
type Host struct {
	Machine struct {
		Boot   string `json:"id"` // equal for all processes since a boot
		Kernel string `json:"kernel"`
		CPU    string `json:"cpu"`
		CPUs   int    `json:"cpus"`
		Go     string `json:"go"`
	} `json:"machine"`
	Device string `json:"device"`
}

// IsLatency reports whether the test measures times.
func (p *Plan) IsLatency() bool { return strings.HasSuffix(p.Test, "_lat") }

// Result is one measurement.
type Result struct {
	Round     int      `json:"round"`
	Size      int      `json:"size"` // bytes of each operation
	Rate      float64  `json:"operations_per_second"`
	Bandwidth float64  `json:"bytes_per_second"`
	Damage    string   `json:"damage"`
	Latency   *Latency `json:"latency_us"` // in latency tests
}

// Latency is a distribution of times, in microseconds.
type Latency struct {
	Min    float64 `json:"min"`
	Median float64 `json:"typical"`
	Mean   float64 `json:"avg"`
	P99    float64 `json:"p99"`
	Bars   []Bar   `json:"histogram"`
}

// Bar is how often a time was measured.
type Bar struct {
	Nanoseconds int64 `json:"ns"`
	Count       int64 `json:"n"`
}

// Read reads reports, one JSON object after the other.
func Read(r io.Reader) (list []*Report, err error) {
	for d := json.NewDecoder(r); ; {
		var one Report
		switch err := d.Decode(&one); {
		case errors.Is(err, io.EOF):
			if len(list) == 0 {
				return nil, errors.New("there is no report of verbena perf -json")
			}
			return list, nil
		case err != nil:
			return nil, fmt.Errorf("not a report of verbena perf -json: %w", err)
		case one.Format != format || one.Version != version:
			return nil, fmt.Errorf("not a report of verbena perf -json: its format is %q, version %d; this program reads %q, version %d", one.Format, one.Version, format, version)
		}
		for i := range one.Results {
			switch r := &one.Results[i]; {
			case one.Plan.IsLatency() != (r.Latency != nil):
				return nil, fmt.Errorf("a result of %s has the wrong kind of figures", one.Plan.Test)
			case r.Damage != "":
				return nil, fmt.Errorf("a result of %s has damaged data: %s", one.Plan.Test, r.Damage)
			}
			if err := one.Results[i].validate(); err != nil {
				return nil, fmt.Errorf("a result of %s %d is of no use: %w; measure it again", one.Plan.Test, one.Results[i].Size, err)
			}
		}
		list = append(list, &one)
	}
}

// validate checks that the figures are positive. No measurement takes no time.
func (r *Result) validate() error {
	type figure struct {
		name string
		v    float64
	}
	list := []figure{{"operations per second", r.Rate}, {"bytes per second", r.Bandwidth}}
	if l := r.Latency; l != nil {
		list = []figure{{"minimum", l.Min}, {"median", l.Median}, {"mean", l.Mean}, {"99th percentile", l.P99}}
	}
	for _, f := range list {
		if !(f.v > 0) {
			return fmt.Errorf("its %s is %v, which is not positive", f.name, f.v)
		}
	}
	return nil
}

// ReadFiles reads the reports in files.
func ReadFiles(names []string) (list []*Report, err error) {
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		some, err := Read(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		list = append(list, some...)
	}
	return list, nil
}

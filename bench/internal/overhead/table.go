package overhead

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/verbena-rdma/verbena/bench/internal/stats"
)

// figures has what was measured on each device, in the order of the cases.
type figures map[string][]*result

// result is what all rounds measured of one case.
type result struct {
	name        string
	ns          []float64 // of an operation
	allocations string    // of an operation, in the last round; empty for C
}

func (f figures) add(device, name string, ns float64, allocations []string) {
	r := f.find(device, name)
	if r == nil {
		r = &result{name: name}
		f[device] = append(f[device], r)
	}
	r.ns = append(r.ns, ns)
	r.allocations = strings.Join(allocations, "")
}

func (f figures) find(device, name string) *result {
	for _, r := range f[device] {
		if r.name == name {
			return r
		}
	}
	return nil
}

// floors has the case of the C loop that does the same on one thread.
var floors = map[string]string{
	"verbs write/1":                  "C, fields set/1",
	"verbs write/64":                 "C, fields set/64",
	"verbs write/64, one completion": "C, fields set/64, one completion",
	"verbs, empty poll":              "C, empty poll",
	"rdma write/1":                   "C, fields set/1",
	"rdma write/64":                  "C, fields set/64",
	"rdma write/64, one completion":  "C, fields set/64, one completion",
	"rdma write, allocated anew/1":   "C, fields set/1",
	"rdma, idle Progress":            "C, empty poll",
	"await write, one caller/1":      "C, fields set/1",
}

// table has a row for each case whose name contains a text: medians of the rounds.
func (f figures) table(device, only string) string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "ns per operation\tnull\tabove C\tallocations\t%s\tallocations\t\n", device)
	for _, r := range f[nullDevice] {
		if !strings.Contains(r.name, only) {
			continue
		}
		above, soft, allocations := "", "", ""
		ns := stats.Median(r.ns)
		if floor := f.find(nullDevice, floors[r.name]); floor != nil {
			above = fmt.Sprintf("%.0f", ns-stats.Median(floor.ns))
		}
		if other := f.find(device, r.name); other != nil {
			soft, allocations = fmt.Sprintf("%.0f", stats.Median(other.ns)), other.allocations
		}
		fmt.Fprintf(w, "%s\t%.1f\t%s\t%s\t%s\t%s\t\n", r.name, ns, above, r.allocations, soft, allocations)
	}
	_ = w.Flush()
	return s.String()
}

// columns has the medians of the cases whose name contains a text, for programs.
func (f figures) columns(only string) string {
	var s strings.Builder
	for device, results := range f {
		for _, r := range results {
			if strings.Contains(r.name, only) {
				fmt.Fprintf(&s, "%s\t%s\t%.2f\t%s\n", device, r.name, stats.Median(r.ns), r.allocations)
			}
		}
	}
	return s.String()
}

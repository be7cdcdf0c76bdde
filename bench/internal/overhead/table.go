package overhead

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/verbena-rdma/verbena/bench/internal/median"
)

// figures has what was measured on each device, by case.
type figures map[string]*[]result

// result is what all rounds measured of one case.
type result struct {
	name        string
	ns          []float64 // of an operation
	allocations string    // of an operation, in the last round; empty for C
}

func (f figures) add(device, name string, ns float64, allocations []string) {
	if f[device] == nil {
		f[device] = &[]result{}
	}
	r := f.find(device, name)
	if r == nil {
		*f[device] = append(*f[device], result{name: name})
		r = f.find(device, name)
	}
	r.ns = append(r.ns, ns)
	r.allocations = strings.Join(allocations, "")
}

func (f figures) find(device, name string) *result {
	if f[device] == nil {
		return nil
	}
	for i, r := range *f[device] {
		if r.name == name {
			return &(*f[device])[i]
		}
	}
	return nil
}

// floors has the case of the C loop to which a case is compared, by what its name ends with.
var floors = []struct{ suffix, floor string }{
	{"/64, one completion", "C, fields set/64, one completion"},
	{"/64", "C, fields set/64"},
	{"/1", "C, fields set/1"},
}

func (f figures) floorOf(name string) *result {
	if strings.HasPrefix(name, "C,") {
		return nil
	}
	for _, c := range floors {
		if strings.HasSuffix(name, c.suffix) {
			return f.find(nullDevice, c.floor)
		}
	}
	return nil
}

// table has a row for each case: medians of the rounds.
func (f figures) table(device string) string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "ns per operation\tnull\tabove C\tallocations\t%s\tallocations\t\n", device)
	for _, r := range *f[nullDevice] {
		above, soft, allocations := "", "", ""
		ns := median.Of(r.ns)
		if floor := f.floorOf(r.name); floor != nil {
			above = fmt.Sprintf("%.0f", ns-median.Of(floor.ns))
		}
		if other := f.find(device, r.name); other != nil {
			soft, allocations = fmt.Sprintf("%.0f", median.Of(other.ns)), other.allocations
		}
		fmt.Fprintf(w, "%s\t%.1f\t%s\t%s\t%s\t%s\t\n", r.name, ns, above, r.allocations, soft, allocations)
	}
	_ = w.Flush()
	return s.String()
}

// columns has all medians, for programs.
func (f figures) columns() string {
	var s strings.Builder
	for device, results := range f {
		for _, r := range *results {
			fmt.Fprintf(&s, "%s\t%s\t%.2f\t%s\n", device, r.name, median.Of(r.ns), r.allocations)
		}
	}
	return s.String()
}

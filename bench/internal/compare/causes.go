package compare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/bench/internal/report"
)

// fact is something that changes figures, but is not the program.
type fact struct {
	name string
	of   func(*report.Report) string
}

func facts() []fact {
	list := []fact{{"path MTU", func(r *report.Report) string { return fmt.Sprint(r.Path.MTU) }}}
	for _, end := range []struct {
		name string
		of   func(*report.Report) *report.Host
	}{{"client's ", func(r *report.Report) *report.Host { return &r.Client }}, {"server's ", func(r *report.Report) *report.Host { return &r.Server }}} {
		list = append(list,
			fact{end.name + "processor", func(r *report.Report) string {
				m := &end.of(r).Machine
				return fmt.Sprintf("%d of %s", m.CPUs, m.CPU)
			}},
			fact{end.name + "kernel", func(r *report.Report) string { return end.of(r).Machine.Kernel }},
			fact{end.name + "boot", func(r *report.Report) string { return end.of(r).Machine.Boot }},
			fact{end.name + "Go", func(r *report.Report) string { return end.of(r).Machine.Go }},
			fact{end.name + "device", func(r *report.Report) string { return end.of(r).Device }},
		)
	}
	return list
}

// causes returns a note of what differs between two sets of reports besides the program, if anything
// does.
func causes(a, b []*report.Report) []string {
	values := func(reports []*report.Report, f fact) string {
		var list []string
		for _, r := range reports {
			list = append(list, f.of(r))
		}
		slices.Sort(list)
		return strings.Join(slices.Compact(list), " or ")
	}
	var list []string
	for _, f := range facts() {
		if x, y := values(a, f), values(b, f); x != y {
			list = append(list, fmt.Sprintf("%s: %s in A, %s in B", f.name, x, y))
		}
	}
	if len(list) == 0 {
		return nil
	}
	return []string{"A difference may have other causes: " + strings.Join(list, "; ") + "."}
}

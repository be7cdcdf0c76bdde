package incast

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/bench/internal/median"
)

// figures are the results of one measurement.
type figures struct {
	rate     float64 // bytes of data a second
	fairness float64
	dropped  int // by the queue
	failed   int // connections
	counters map[string]uint64
}

func (f figures) String() string {
	return fmt.Sprintf("%.1f MB/s, fairness %.3f, %d dropped, %d failed, %d repetitions, %d notifications",
		f.rate/1e6, f.fairness, f.dropped, f.failed, f.counters["completer_retry_err"], f.counters["np_cnp_sent"])
}

// table returns the results in Markdown. Without a rate for the link, it shows no share of it.
func table(o options, variants []string, results [][]figures) string {
	var s strings.Builder
	link := "no limit"
	if o.rate > 0 {
		link = fmt.Sprintf("%d Mbit/s, a queue of %d packets", o.rate, o.queue)
	}
	fmt.Fprintf(&s, "%d connections of %d processes, each with %d × %s of %d bytes; MTU %d; %s; medians of %d rounds:\n\n",
		o.senders, o.processes, o.window, o.operation, o.size, o.mtu, link, o.rounds)
	s.WriteString("| options | MB/s | of the link | fairness, the worst | dropped | failed connections | repetitions | notifications sent, obeyed |\n|---|---|---|---|---|---|---|---|\n")
	for i, v := range variants {
		rate := median.By(results[i], func(f figures) float64 { return f.rate })
		share := "–"
		if o.rate > 0 {
			share = fmt.Sprintf("%.2f", rate/(float64(o.rate)*1e6/8))
		}
		worst, failed := 1.0, 0
		for _, f := range results[i] {
			worst = min(worst, f.fairness)
			failed += f.failed
		}
		count := func(name string) float64 {
			return median.By(results[i], func(f figures) float64 { return float64(f.counters[name]) })
		}
		fmt.Fprintf(&s, "| `%s` | %.1f | %s | %.3f, %.3f | %.0f | %d | %.0f | %.0f, %.0f |\n", v, rate/1e6, share,
			median.By(results[i], func(f figures) float64 { return f.fairness }), worst,
			median.By(results[i], func(f figures) float64 { return float64(f.dropped) }), failed,
			count("completer_retry_err"), count("np_cnp_sent"), count("rp_cnp_handled"))
	}
	return s.String()
}

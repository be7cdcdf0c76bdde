package perftest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-rdma/verbena/bench/internal/median"
)

// Programs, in the order in which a round runs them.
const (
	perftest = "perftest" // for connections, cmtime
	rxe      = "rxe"      // the SDK on the kernel's rxe
	soft     = "soft"     // the SDK on the software device
)

// figures has the values of all rounds, by measurement and program.
type figures map[[2]string][]float64

func parse(output string) (figures, error) {
	f := figures{}
	for line := range strings.Lines(output) {
		_, rest, found := strings.Cut(line, "FIGURE ")
		if !found {
			continue
		}
		words := strings.Fields(rest)
		if len(words) != 3 {
			return nil, fmt.Errorf("%q is not a result line", line)
		}
		v, err := strconv.ParseFloat(words[2], 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a result line: %w", line, err)
		}
		key := [2]string{words[0], words[1]}
		f[key] = append(f[key], v)
	}
	return f, nil
}

// table returns the medians, the best rounds and their ratios, in Markdown.
func table(f figures) string {
	var s strings.Builder
	s.WriteString("| measurement | rounds | perftest on rxe | SDK on rxe | SDK on soft-lo | SDK : perftest | soft-lo : rxe | each round, SDK : perftest |\n|---|---|---|---|---|---|---|---|\n")
	for _, m := range measurements {
		unit, best := "GB/s", slices.Max[[]float64]
		if strings.HasSuffix(m, "_lat") || m == "dials" {
			unit, best = "µs", slices.Min[[]float64]
		}
		a, b, c := f[[2]string{m, perftest}], f[[2]string{m, rxe}], f[[2]string{m, soft}]
		if len(a) == 0 || len(b) == 0 || len(c) == 0 {
			continue
		}
		value := func(v []float64) string { return fmt.Sprintf("%.3g (%.3g) %s", median.Of(v), best(v), unit) }
		ratio := func(v, w []float64) string {
			return fmt.Sprintf("%.2f (%.2f)", median.Of(v)/median.Of(w), best(v)/best(w))
		}
		var rounds []string
		for i := range min(len(a), len(b)) {
			rounds = append(rounds, fmt.Sprintf("%.2f", b[i]/a[i]))
		}
		fmt.Fprintf(&s, "| `%s` | %d | %s | %s | %s | %s | %s | %s |\n", m, len(a),
			value(a), value(b), value(c), ratio(b, a), ratio(c, b), strings.Join(rounds, ", "))
	}
	s.WriteString("\nMedians of the rounds, and the best round in brackets. Processors are emulated: ratios alone mean something. `dials` is the time of each of 100 connections made at the same moment, beside cmtime.\n")
	return s.String()
}

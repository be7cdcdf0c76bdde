package scp

import (
	"fmt"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/median"
)

// names are the names of the contenders, in the order of the table.
var names = [2]string{"verbena send", "scp"}

// figures are the results of one file.
type figures struct {
	elapsed          time.Duration
	sender, receiver time.Duration // processor time; that of sshd is measured for all files together
}

// table returns the results in Markdown. sshd is its processor time for one file.
func table(bytes int64, results [2][]figures, sshd time.Duration) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d MiB, seconds; medians of %d rounds:\n\n", bytes>>20, len(results[0]))
	s.WriteString("| | time | MiB a second | each round | processor time: sender | receiver |\n|---|---|---|---|---|---|\n")
	for i, rounds := range results {
		taken := median.By(rounds, elapsed)
		receiver := median.By(rounds, func(f figures) float64 { return f.receiver.Seconds() })
		if i == 1 {
			receiver = sshd.Seconds()
		}
		fmt.Fprintf(&s, "| `%s` | %.2f | %.0f | %s | %.2f | %.2f |\n", names[i], taken, float64(bytes>>20)/taken, each(rounds),
			median.By(rounds, func(f figures) float64 { return f.sender.Seconds() }), receiver)
	}
	fmt.Fprintf(&s, "\nscp takes %.2f times as long, by the medians; in each round:", median.By(results[1], elapsed)/median.By(results[0], elapsed))
	for i := range results[0] {
		fmt.Fprintf(&s, " %.2f", elapsed(results[1][i])/elapsed(results[0][i]))
	}
	s.WriteString(".\n")
	return s.String()
}

func elapsed(f figures) float64 { return f.elapsed.Seconds() }

func each(rounds []figures) string {
	list := make([]string, len(rounds))
	for i, f := range rounds {
		list[i] = fmt.Sprintf("%.2f", elapsed(f))
	}
	return strings.Join(list, " ")
}

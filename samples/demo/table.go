package main

import (
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// table prints the results.
type table struct {
	*sample.Session
	dev            string
	rows, failures int
}

func (t *table) row(name, dev, way, bytes, time, result string) {
	t.Print("%-46s %-10s %-6s %12s %9s  %s", name, dev, way, bytes, time, result)
}

// add adds the row of one sample. If the sample has failed, it also prints all output of its
// programs.
func (t *table) add(name, way, bytes string, elapsed time.Duration, err error, sides ...pair.Side) {
	t.rows++
	verdict := "PASS"
	if err != nil {
		verdict = "FAIL"
		t.failures++
	}
	t.row(name, t.dev, way, bytes, elapsed.Round(time.Millisecond).String(), verdict)
	if err == nil {
		return
	}
	t.Print("  %v", err)
	for _, side := range sides {
		t.Print("  %s: exit code %d", strings.Join(side.Command, " "), side.Code)
		for line := range strings.Lines(side.Stdout + side.Stderr) {
			t.Print("    %s", strings.TrimRight(line, "\n"))
		}
	}
}

package perf

import (
	"io"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/report"
)

func plottable(string) bool                        { return false }
func plotTo(string, []*report.Report) error        { return nil }
func plotMain(args []string, stderr io.Writer) int { return exitUsage }

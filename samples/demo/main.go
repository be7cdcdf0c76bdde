// Command demo runs every pair of sample programs as two processes, over all ways that
// descriptors can travel, and checks that both sides saw the same data. It also runs the
// programs without a peer, which check their data themselves. It prints a row for each. For a
// failure it also prints all output of the programs, and it exits with 1.
//
// The programs have to be in the same folder as demo.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

func main() {
	sample.Main(sample.Program{
		Name:  "demo",
		About: "Runs all sample programs, each pair as two processes.",
		Role:  sample.Alone,
	}, run)
}

const rowFormat = "%-46s %-10s %-6s %12s %9v  %s"

func run(ctx context.Context, s *sample.Session) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dev := s.Device
	if dev == "" {
		dev = "soft-lo"
	}
	// Without a usable device, fail once instead of in every program.
	attr, err := try(dev)
	if err != nil {
		return err
	}
	rows, failures := rows(filepath.Dir(self), dev, attr.MaxMulticastGroups > 0), 0
	s.Print(rowFormat, "SAMPLE", "DEVICE", "WAY", "BYTES", "TIME", "RESULT")
	for _, r := range rows {
		result, err := r.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		verdict, bytes := "PASS", "-"
		if r.way != "-" {
			bytes = fmt.Sprint(result.Bytes())
		}
		if err != nil {
			verdict = "FAIL"
			failures++
		}
		s.Print(rowFormat, r.name, dev, r.way, bytes, result.Elapsed.Round(time.Millisecond), verdict)
		if err != nil {
			show(s, result, err)
		}
	}
	if failures > 0 {
		return fmt.Errorf("%d of %d samples failed", failures, len(rows))
	}
	return nil
}

func try(name string) (attr verbs.DeviceAttr, err error) {
	dev, err := device.Open(name)
	if err != nil {
		return attr, err
	}
	defer sample.Close(&err, dev.Close)
	return dev.Query()
}

// show prints all output of programs that have failed.
func show(s *sample.Session, result pair.Result, err error) {
	s.Print("  %v", err)
	for _, side := range []pair.Side{result.Requester, result.Responder} {
		if len(side.Command) == 0 {
			continue
		}
		s.Print("  %s: exit code %d", strings.Join(side.Command, " "), side.Code)
		for line := range strings.Lines(side.Stdout + side.Stderr) {
			s.Print("    %s", strings.TrimRight(line, "\n"))
		}
	}
}

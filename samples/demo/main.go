// Command demo runs every pair of sample programs as two processes, over all the
// ways that descriptors can travel, and checks that both sides saw the same data.
// It prints a row for each pair, the output of both programs where one failed, and
// exits with 1 if any did.
//
// The programs have to be in the folder that demo itself is in.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/samples/internal/pair"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
)

// patience is how long a program may take.
const patience = "20s"

// demonstration is one row.
type demonstration struct {
	pair pair.Pair
	way  pair.Way
	size int      // zero: a text
	args []string // for both programs
}

func main() {
	sample.Main(sample.Program{
		Name:  "demo",
		About: "Runs every pair of sample programs as two processes.",
		Role:  sample.Alone,
	}, run)
}

// plan gives each pair one row, and spreads ways and sizes over them.
func plan() []demonstration {
	const mebi = 1 << 20
	ways := pair.Ways()
	sizes := []int{64 * mebi, 0, 64*mebi + 1, mebi, 0, 4*mebi + 3, 0, 0}
	var rows []demonstration
	for i, p := range pair.All() {
		d := demonstration{pair: p, way: ways[i%len(ways)], size: sizes[i%len(sizes)]}
		if p.Messages > 1 {
			d.pair.Messages = 8
			d.args = []string{"-nc", "8"}
		}
		rows = append(rows, d)
	}
	return rows
}

func run(ctx context.Context, s *sample.Session) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dev := s.Device
	if dev == "" {
		dev = "soft-lo"
	}
	// Better one line than one for every program.
	if err := try(dev); err != nil {
		return err
	}
	const columns = "%-46s %-10s %-6s %12s %9s  %s"
	s.Print(columns, "PAIR", "DEVICE", "WAY", "BYTES", "TIME", "RESULT")
	failures := 0
	for _, d := range plan() {
		result, err := d.run(ctx, filepath.Dir(self), dev)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		verdict := "PASS"
		if err != nil {
			verdict = "FAIL"
			failures++
		}
		s.Print(columns, d.pair.Name, dev, d.way, fmt.Sprint(result.Bytes()), result.Elapsed.Round(time.Millisecond).String(), verdict)
		if err != nil {
			s.Print("  %v", err)
			show(s, result.Requester)
			show(s, result.Responder)
		}
	}
	if failures > 0 {
		return fmt.Errorf("%d of %d pairs failed", failures, len(plan()))
	}
	return nil
}

func try(name string) error {
	dev, err := device.Open(name)
	if err != nil {
		return err
	}
	return dev.Close()
}

func (d *demonstration) run(ctx context.Context, bin, dev string) (result pair.Result, err error) {
	scratch, err := os.MkdirTemp("", "verbena-demo-")
	if err != nil {
		return result, err
	}
	defer sample.Close(&err, func() error { return os.RemoveAll(scratch) })
	args := append([]string{"-d", dev, "-timeout", patience}, d.args...)
	result, err = pair.Run(ctx, d.pair, pair.Options{
		Bin: bin, Scratch: scratch, Way: d.way, Size: d.size,
		RequesterArgs: args, ResponderArgs: args,
	})
	if err != nil {
		return result, err
	}
	return result, result.Verify(d.pair, d.pair.Messages, d.size)
}

// show prints all that a program has printed.
func show(s *sample.Session, side pair.Side) {
	s.Print("  %s: exit code %d", strings.Join(side.Command, " "), side.Code)
	for line := range strings.Lines(side.Stdout + side.Stderr) {
		s.Print("    %s", strings.TrimRight(line, "\n"))
	}
}

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

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/samples/internal/sample"
	"github.com/verbena-rdma/verbena/verbs"
)

// patience is how long a program may take.
const patience = "20s"

func main() {
	sample.Main(sample.Program{
		Name:  "demo",
		About: "Runs all sample programs, each pair as two processes.",
		Role:  sample.Alone,
	}, run)
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
	// Without a usable device, fail once instead of in every program.
	attr, err := try(dev)
	if err != nil {
		return err
	}
	table := table{Session: s, dev: dev}
	table.row("SAMPLE", "DEVICE", "WAY", "BYTES", "TIME", "RESULT")
	bin := filepath.Dir(self)
	for _, d := range demoRows(attr.MaxMulticastGroups > 0) {
		result, err := d.run(ctx, bin, dev)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		table.add(d.pair.Name, string(d.way), fmt.Sprint(result.Bytes()), result.Elapsed, err, result.Requester, result.Responder)
	}
	for _, e := range pair.Examples() {
		args := []string{"-d", dev, "-timeout", patience}
		result, err := e.Run(ctx, pair.Options{Bin: bin, RequesterArgs: args, ResponderArgs: args})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		table.add(e.Name, "-", "-", result.Elapsed, err, result.Requester, result.Responder)
	}
	for _, name := range standalone() {
		side, elapsed, err := runStandalone(ctx, bin, dev, name)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		table.add(name, "-", "-", elapsed, err, side)
	}
	if table.failures > 0 {
		return fmt.Errorf("%d of %d samples failed", table.failures, table.rows)
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

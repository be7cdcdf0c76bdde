package overhead

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/verbs"
)

// bench measures the cases of one device, and prints a line for each.
type bench struct {
	device   verbs.Device
	duration time.Duration
	only     string
	out      io.Writer
}

// measureDevice measures all layers over a device.
func measureDevice(ctx context.Context, o options, out io.Writer) (err error) {
	dev, err := device.Open(o.child)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	b := &bench{device: dev, duration: o.duration, only: o.only, out: out}
	for _, layer := range []func(context.Context, *bench) error{measureVerbs, measureRDMA, measureEngines, measureAwait} {
		if err := layer(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// repetitions is how often a step runs between two readings of the clock.
const repetitions = 200

// measure runs step, which does n operations, again and again.
func (b *bench) measure(name string, n int, step func() error) error {
	if !strings.Contains(name, b.only) {
		return nil
	}
	repeat := func() error {
		for range repetitions/n + 1 {
			if err := step(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	}
	if err := repeat(); err != nil { // the first time allocates what stays
		return err
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	operations := 0
	begin := time.Now()
	for time.Since(begin) < b.duration {
		if err := repeat(); err != nil {
			return err
		}
		operations += (repetitions/n + 1) * n
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	_, err := fmt.Fprintf(b.out, "%s\t%.2f\t%.2f\n", name, float64(took.Nanoseconds())/float64(operations), float64(after.Mallocs-before.Mallocs)/float64(operations))
	return err
}

// batches are how many operations are posted together.
var batches = []int{1, 64}

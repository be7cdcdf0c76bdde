package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/figure"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/hosts"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/pair"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/result"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/peers/tool"
)

// errOwn: Verbena's own measurements must succeed. Those of other programs may fail.
var errOwn = errors.New("some figures of Verbena could not be measured; see the failures listed above")

// measure measures all scenes. If it is interrupted, it returns the rounds that are complete.
func measure(ctx context.Context, o *options, log io.Writer) (r *result.Result, err error) {
	// The processes that it starts are killed when this thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m := &measurer{o: o, log: log, warnings: newMachineWarnings(machine.Describe())}
	inv := findInstalled(ctx)
	r = &result.Result{
		Format: result.Format, Version: result.Version, Time: time.Now().UTC().Round(time.Second),
		Machine: m.warnings.machine, Programs: inv.programs(m.warnings.machine.Verbena), Missing: inv.missing,
	}
	scenes, err := m.newScenes(ctx, self, inv)
	defer func() {
		for _, s := range scenes {
			if s.remove != nil {
				err = errors.Join(err, s.remove())
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	meanwhile := startProcessorTime()
	for round := range o.rounds {
		for _, s := range scenes {
			if err = m.round(ctx, s, round); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
		r.Rounds++
		_, _ = fmt.Fprintf(log, "round %d of %d: %v since the start\n", r.Rounds, o.rounds, time.Since(r.Time).Round(time.Second))
	}
	if r.Rounds == 0 {
		return nil, err
	}
	r.Seconds = time.Since(r.Time).Seconds()
	r.Others, r.Stolen = meanwhile.others(m.cpu)
	r.Warnings = m.warnings.list()
	for _, s := range scenes {
		s.Cells = s.cellsOf(r.Rounds)
		r.Scenes = append(r.Scenes, s.Scene)
		if err == nil && s.ownFailed() {
			err = errOwn
		}
	}
	return r, err
}

// measurer makes measurements.
type measurer struct {
	o        *options
	log      io.Writer
	warnings *machineWarnings
	cpu      time.Duration // processor time of all measured programs
	ports    int           // ports given to servers in namespaces so far
}

// round makes every measurement of a scene once.
func (m *measurer) round(ctx context.Context, s *scene, round int) error {
	if s.Skipped != "" {
		return nil
	}
	for _, f := range figure.All() {
		for _, t := range s.tools {
			if !t.Measures(f) {
				continue
			}
			c := s.cell(f, t)
			sample, err := m.sample(ctx, s, c)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				c.failed(round, err)
				m.verbose("%s, %v by %s: %v", s.Title, f, t.Name(), err)
				continue
			}
			c.add(sample)
			m.verbose("%s, %v by %s: %s", s.Title, f, t.Name(), textOf(f, sample))
		}
	}
	return nil
}

func (m *measurer) verbose(format string, args ...any) {
	if m.o.verbose {
		_, _ = fmt.Fprintf(m.log, format+"\n", args...)
	}
}

func textOf(f figure.Figure, s figure.Sample) string {
	switch {
	case f.Kind == figure.Rate:
		return fmt.Sprintf("%.3g M/s", s.Mean/1e6)
	case f.Kind == figure.Bandwidth:
		return fmt.Sprintf("%.3g GB/s", s.Mean/1e9)
	case s.Median > 0:
		return fmt.Sprintf("median %.3g µs, mean %.3g µs", s.Median, s.Mean)
	}
	return fmt.Sprintf("mean %.3g µs", s.Mean)
}

// sample makes one measurement. A program that runs a given number of operations is measured
// once more before, to find out how many the others need; that first measurement is not a
// result.
func (m *measurer) sample(ctx context.Context, s *scene, c *cell) (figure.Sample, error) {
	if c.givenUp() {
		return figure.Sample{}, errGivenUp
	}
	if first := c.tool.FirstCount(c.figure); first > 0 && c.count == 0 {
		found, err := m.run(ctx, s, c, first)
		if err != nil {
			return found, err
		}
		c.count = countFor(c.figure, found, m.o.time, first)
	}
	return m.run(ctx, s, c, c.count)
}

// mostCount is the most operations of a measurement, so that programs can hold it in their
// integers.
const mostCount = 1 << 30

// countFor estimates, from one measurement, how many operations take the time t. It returns at
// least first, rounded down to batches.
func countFor(f figure.Figure, found figure.Sample, t time.Duration, first int) int {
	n := t.Seconds() / f.Each(found)
	if f.IsTime() {
		n /= 2 // a round trip is two times
	}
	count := int(min(n, mostCount))
	return max(count, first) / tool.Batch * tool.Batch
}

// run runs a pair of programs.
func (m *measurer) run(ctx context.Context, s *scene, c *cell, count int) (figure.Sample, error) {
	port, err := m.port(s)
	if err != nil {
		return figure.Sample{}, err
	}
	j := &tool.Job{
		Figure: c.figure, Count: count, Time: m.o.time, Limit: m.o.limit,
		Server: s.hosts[0].Addr, Port: port, Link: s.hosts[0].Link,
	}
	server, client := c.tool.Commands(j)
	p := &pair.Pair{Port: port, Proc: s.hosts[0].Proc, Limit: m.o.limit, Server: m.at(&s.hosts[0], server), Client: m.at(&s.hosts[1], client)}
	out, err := pair.Run(ctx, p)
	m.cpu += out.CPU
	if err != nil {
		return figure.Sample{}, err
	}
	return c.tool.Read(j, out.Output)
}

// at returns the command that runs c on a host.
func (m *measurer) at(h *hosts.Host, c tool.Command) pair.Command {
	c.Args = append(h.Run[:len(h.Run):len(h.Run)], c.Args...)
	m.verbose("%v", c)
	return pair.Command{Args: c.Args, Env: c.Env}
}

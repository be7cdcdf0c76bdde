package load

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/device"
)

// pair makes both ends of a test.
func pair(t *testing.T, p *plan.Plan) (client, server *Endpoint) {
	t.Helper()
	p.Complete()
	require.NoError(t, p.Validate(plan.Limits{Memory: 1 << 28, Connections: 100, Engines: 8}))
	var ends [2]*Endpoint
	var offers [2][]*control.End
	for i := range ends {
		dev, err := device.Open("soft-lo")
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, dev.Close()) })
		ends[i], err = Open(t.Context(), Config{Device: dev, Plan: p, Server: i == 1, Timeout: 5 * time.Minute})
		require.NoError(t, err)
		t.Cleanup(func() {
			ends[0].ExpectClose()
			ends[1].ExpectClose()
			assert.NoError(t, ends[i].Close())
		})
		require.NoError(t, ends[i].Offer(func(e *control.End) error { offers[i] = append(offers[i], e); return nil }))
	}
	for i := range ends {
		next := 0
		require.NoError(t, ends[i].Connect(func() (*control.End, error) { next++; return offers[1-i][next-1], nil }, DialTo{}))
	}
	for _, s := range ends {
		require.NoError(t, s.WaitReady())
	}
	return ends[0], ends[1]
}

// prepare prepares a step at both ends.
func prepare(t *testing.T, step int, ends ...*Endpoint) {
	t.Helper()
	for _, s := range ends {
		require.NoError(t, s.Prepare(step))
	}
}

// damage changes a byte of the memory of an end.
func damage(t *testing.T, s *Endpoint, at func(l plan.Layout) int) {
	t.Helper()
	w := s.workers[0]
	require.NoError(t, w.do(t.Context(), func() error {
		w.local.Bytes()[at(w.layout)] ^= 0x20
		return nil
	}))
}

// One byte that is wrong is found, at the end that can.
func TestDamageIsFound(t *testing.T) {
	const size = 100
	out := func(l plan.Layout) int { return l.OutOffset(1) + size - 1 }
	in := func(l plan.Layout) int { return l.InOffset(0) }
	for op, c := range map[plan.Op]struct {
		before     func(t *testing.T, client, server *Endpoint)
		at         string // the end that finds it
		wantDamage string
	}{
		plan.Write:       {func(t *testing.T, c, _ *Endpoint) { damage(t, c, out) }, "server", "the data that the peer wrote: first difference at byte 99"},
		plan.WriteImm:    {func(t *testing.T, c, _ *Endpoint) { damage(t, c, out) }, "server", "the data that the peer wrote: first difference at byte 99"},
		plan.Read:        {func(t *testing.T, _, s *Endpoint) { damage(t, s, out) }, "client", "the data that was read: first difference at byte 99"},
		plan.Send:        {func(t *testing.T, c, _ *Endpoint) { damage(t, c, out) }, "server", "the data of a message: first difference at byte 99"},
		plan.FetchAdd:    {func(t *testing.T, _, s *Endpoint) { damage(t, s, in) }, "client", "atomic operation 0 returned"},
		plan.CompareSwap: {func(t *testing.T, _, s *Endpoint) { damage(t, s, in) }, "client", "atomic operation 0 returned"},
	} {
		t.Run(op.String(), func(t *testing.T) {
			p := &plan.Plan{Test: plan.Test{Op: op}, Sizes: []int{size}, Rounds: 2, Iterations: 20, Depth: 4, Verify: true}
			client, server := pair(t, p)
			for step := range p.Steps() {
				prepare(t, step, client, server)
				if step == 1 { // the first is as it should be
					c.before(t, client, server)
				}
				_, err := client.Measure()
				require.NoError(t, err)
				for name, s := range map[string]*Endpoint{"client": client, "server": server} {
					checked, damage, err := s.Verified()
					require.NoError(t, err)
					if step == 1 && name == c.at {
						assert.Contains(t, damage, c.wantDamage)
					} else {
						assert.Empty(t, damage)
					}
					if name == c.at {
						assert.GreaterOrEqual(t, checked, int64(4))
					}
				}
			}
		})
	}
}

// Iterations count exactly without a warm-up, for each connection and batch.
func TestIterations(t *testing.T) {
	for name, c := range map[string]struct {
		plan plan.Plan
		want int64
	}{
		"one":           {plan.Plan{Iterations: 1}, 1},
		"many":          {plan.Plan{Iterations: 1000, Depth: 7}, 1000},
		"connections":   {plan.Plan{Iterations: 10, Connections: 5, Engines: 2, Depth: 3}, 50},
		"whole batches": {plan.Plan{Iterations: 10, Depth: 8, Batch: 4}, 12},
		"moderation":    {plan.Plan{Iterations: 100, Depth: 8, Batch: 2, Moderation: 8}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.plan
			p.Sizes = []int{8}
			client, server := pair(t, &p)
			prepare(t, 0, client, server)
			list, err := client.Measure()
			require.NoError(t, err)
			f := Sum(list)
			assert.Equal(t, c.want, f.Operations)
			assert.Positive(t, f.Rate)
			assert.GreaterOrEqual(t, f.Peak, f.Rate)
		})
	}
}

// An end that fails says why, to all that wait.
func TestFailure(t *testing.T) {
	p := &plan.Plan{Test: plan.Test{Op: plan.Send}, Duration: time.Hour, Depth: 2}
	client, server := pair(t, p)
	prepare(t, 0, client, server)
	done := make(chan error)
	go func() {
		_, err := client.Measure()
		done <- err
	}()
	require.NoError(t, server.Close())
	require.ErrorContains(t, <-done, "connection")
	<-client.Context().Done()
	require.Error(t, client.Prepare(0))
	_, _, err := client.Verified()
	require.Error(t, err)
}

// Ends that are not those of the plan are refused.
func TestWrongEnds(t *testing.T) {
	p := &plan.Plan{Connections: 2, Engines: 1}
	p.Complete()
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	for name, list := range map[string][]*control.End{
		"engine":               {{Engine: 1}},
		"no connection":        {{Last: true}},
		"not the last":         {{Memory: []byte{1}, Connections: [][]byte{{}, {}}}},
		"too many connections": {{Memory: []byte{1}, Connections: make([][]byte, 3), Last: true}},
		"no memory":            {{Connections: [][]byte{{}, {}}, Last: true}},
	} {
		s, err := Open(t.Context(), Config{Device: dev, Plan: p, Timeout: time.Minute})
		require.NoError(t, err)
		require.NoError(t, s.Offer(func(*control.End) error { return nil }))
		err = s.Connect(func() (*control.End, error) {
			e := list[0]
			list = slices.Delete(list, 0, 1)
			return e, nil
		}, DialTo{})
		assert.Error(t, err, name)
		require.NoError(t, s.Close())
	}
}

// allocated returns how many objects this package, or what it called, has allocated so far. Others of
// the process allocate too, as the goroutine that reads the addresses of the host when an interface changes.
func allocated(t *testing.T) (objects int64) {
	runtime.GC() // the profile has what was allocated before the last but one collection
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1<<16)
	n, ok := runtime.MemProfile(records, true)
	require.True(t, ok)
	for _, r := range records[:n] {
		counts, more := false, true
		for frames := runtime.CallersFrames(r.Stack()); more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			if strings.HasSuffix(frame.Function, "/perf/load.allocated") {
				counts = false
				break
			}
			counts = counts || strings.Contains(frame.Function, "/perf/load.")
		}
		if counts {
			objects += r.AllocObjects
		}
	}
	return objects
}

// Nothing is allocated for an operation, at either end.
func TestNothingIsAllocated(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	for _, test := range plan.Tests() {
		t.Run(test.String(), func(t *testing.T) {
			p := &plan.Plan{Test: test, Iterations: 4000, Depth: 32}
			if test.Kind == plan.Latency {
				p.Iterations = 800 // two pollers may take turns on one processor
			}
			client, server := pair(t, p)
			prepare(t, 0, client, server)
			before := allocated(t)
			_, err := client.Measure()
			require.NoError(t, err)
			assert.Less(t, allocated(t)-before, int64(p.Iterations/2)) // queues and the histogram grow at first
		})
	}
}

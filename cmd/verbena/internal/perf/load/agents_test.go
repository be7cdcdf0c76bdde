package load

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
	"github.com/verbena-rdma/verbena/device"
)

// pairOfAgents makes both ends of a test of batches.
func pairOfAgents(t *testing.T, ctx context.Context, p *plan.Plan) (client, server *agents) {
	t.Helper()
	p.Complete()
	require.NoError(t, p.Validate(plan.Limits{Memory: 1 << 28, Connections: 100, Engines: 8}))
	var ends [2]End
	for i := range ends {
		dev, err := device.Open("soft-lo")
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, dev.Close()) })
		ends[i], err = OpenEnd(ctx, Config{Device: dev, Plan: p, Server: i == 1, Timeout: 5 * time.Minute})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, ends[i].Close()) })
	}
	var offers []*control.End
	require.NoError(t, ends[1].Offer(func(e *control.End) error { offers = append(offers, e); return nil }))
	require.Len(t, offers, p.Connections)
	next := 0
	require.NoError(t, ends[0].Connect(func() (*control.End, error) { next++; return offers[next-1], nil }, DialTo{}))
	return ends[0].(*agents), ends[1].(*agents)
}

// Batches are counted by items, and timed; and one byte that is wrong is found, at the end that can.
func TestBatches(t *testing.T) {
	for _, test := range plan.BatchTests() {
		t.Run(test.String(), func(t *testing.T) {
			p := &plan.Plan{Test: test, Sizes: []int{100}, Rounds: 2, Iterations: 9, Batch: 5, Connections: 2, Verify: true}
			client, server := pairOfAgents(t, t.Context(), p)
			from, to := client, server
			if test.Op == plan.Read {
				from, to = server, client
			}
			for step := range p.Steps() {
				require.NoError(t, client.Prepare(step))
				require.NoError(t, server.Prepare(step))
				if step == 1 { // the first is as it should be
					from.mem[from.layout.OutOffset(4)+99] ^= 0x20
				}
				list, err := client.Measure()
				require.NoError(t, err)
				f := Sum(list)
				assert.EqualValues(t, 9*5, f.Operations)
				assert.Positive(t, f.Rate)
				assert.EqualValues(t, 9, f.Latency.n)
				checked, damage, err := from.Verified()
				require.NoError(t, err)
				assert.Zero(t, checked)
				assert.Empty(t, damage)
				checked, damage, err = to.Verified()
				require.NoError(t, err)
				assert.EqualValues(t, 5, checked)
				if step == 0 {
					assert.Empty(t, damage)
				} else {
					assert.Contains(t, damage, "first difference at byte 99")
				}
			}
			var items uint64
			for _, agent := range client.list {
				items += agent.Counters().Items
			}
			assert.EqualValues(t, 2*9*5, items)
		})
	}
}

// A batch ends when its test does, and so does its connecting.
func TestBatchesInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	p := &plan.Plan{Test: plan.BatchTests()[0], Duration: time.Hour}
	client, _ := pairOfAgents(t, ctx, p)
	require.NoError(t, client.Prepare(0))
	done := make(chan error)
	go func() {
		_, err := client.Measure()
		done <- err
	}()
	require.Eventually(t, func() bool { return client.list[0].Counters().Items > 0 }, time.Minute, time.Millisecond)
	why := errors.New("enough")
	cancel(why)
	require.ErrorIs(t, <-done, why)
	require.ErrorIs(t, client.Connect(func() (*control.End, error) {
		return &control.End{Agent: client.remote[0].Peer().Addrs()[0], Last: true}, nil
	}, DialTo{}), why)
}

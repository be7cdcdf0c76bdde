package rdma_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// Both ends count what a connection carries, on every path, and the contexts keep it when the
// connection has ended.
func TestCounters(t *testing.T) {
	for name, open := range map[string]func(*testing.T) verbs.Device{
		"shared memory": openSoft, "network": openByUDP,
		"loss": func(t *testing.T) verbs.Device {
			return closed(t, must(soft.Open(soft.Config{Faults: soft.Faults{Loss: 0.1, Seed: 1}})))
		},
	} {
		t.Run(name, func(t *testing.T) {
			const writes, reads, adds, size = 200, 50, 5, 4096
			cfg := rdma.Config{Keepalive: time.Hour}
			r := newRigOn(t, open(t), open(t), cfg, cfg)
			var done outcome[*rdma.Task]
			pool := must(r.a.ctx.Pool(1, done.ok, done.bad))
			require.Zero(t, r.a.ctx.Counters().QueuePairs)
			r.connect(1)
			if name == "shared memory" {
				r.settle()
			}
			a, b := r.a.conns[0], r.b.conns[0]
			r.until("nothing is under way", func() bool { return a.Counters().SendQueue+b.Counters().SendQueue == 0 })
			from := [2]verbs.QPCounters{a.Counters(), b.Counters()}
			for range writes {
				done = outcome[*rdma.Task]{}
				require.NoError(t, must(pool.Write(a, r.a.bufs.Source(r.a.mem, 0, 8), r.a.bufs.Target(r.a.peer, 0, 8))).Submit())
				r.until("it is written", func() bool { return done.count() == 1 })
				require.Empty(t, done.errs)
				freeEach(t, []anyTask{done.done[0]})
			}
			for range reads {
				done = outcome[*rdma.Task]{}
				require.NoError(t, must(pool.Read(a, r.a.bufs.Source(r.a.peer, 0, size), r.a.bufs.Target(r.a.mem, 0, size))).Submit())
				r.until("it is read", func() bool { return done.count() == 1 })
				require.Empty(t, done.errs)
				freeEach(t, []anyTask{done.done[0]})
			}
			for range adds {
				done = outcome[*rdma.Task]{}
				require.NoError(t, must(pool.FetchAdd(a, r.a.bufs.Target(r.a.peer, 0, 8), 1)).Submit())
				r.until("it is added", func() bool { return done.count() == 1 })
				require.Empty(t, done.errs)
				freeEach(t, []anyTask{done.done[0]})
			}
			to := [2]verbs.QPCounters{a.Counters(), b.Counters()}
			require.EqualValues(t, writes+reads+adds, to[0].SentMessages-from[0].SentMessages)
			require.EqualValues(t, writes+reads+adds, to[1].ReceivedMessages-from[1].ReceivedMessages)
			require.Equal(t, from[0].ReceivedMessages, to[0].ReceivedMessages)
			require.EqualValues(t, 8*writes, to[0].SentBytes-from[0].SentBytes)
			require.EqualValues(t, 8*writes, to[1].ReceivedBytes-from[1].ReceivedBytes)
			require.EqualValues(t, size*reads+8*adds, to[0].ReceivedBytes-from[0].ReceivedBytes)
			require.EqualValues(t, size*reads+8*adds, to[1].SentBytes-from[1].SentBytes)
			require.Positive(t, to[0].RoundTrip)
			require.Positive(t, to[0].Window)
			if name == "loss" {
				require.Positive(t, to[0].Retransmissions)
			}

			require.EqualValues(t, 1, r.a.ctx.Counters().QueuePairs)
			require.EqualValues(t, 1, r.a.ctx.Counters().Established)
			require.EqualValues(t, 1, r.a.ctx.Counters().Ready)
			require.Equal(t, a.Counters().SentBytes, r.a.ctx.Counters().SentBytes)
			objects := slices.Collect(r.a.ctx.Metrics(true))
			require.Equal(t, []string{"context", "connection"}, []string{objects[0].Kind, objects[1].Kind})
			require.Len(t, slices.Collect(r.a.ctx.Metrics(false)), 1)
			require.NoError(t, a.Close())
			require.Zero(t, r.a.ctx.Counters().Ready)
			r.until("it has ended", func() bool { return r.a.ctx.Counters().QueuePairs+r.b.ctx.Counters().QueuePairs == 0 })
			require.GreaterOrEqual(t, r.a.ctx.Counters().SentBytes, to[0].SentBytes)
			require.GreaterOrEqual(t, r.b.ctx.Counters().SentBytes, to[1].SentBytes)
			require.Zero(t, r.a.ctx.Counters().SendQueue+r.b.ctx.Counters().Ready)
			require.Len(t, slices.Collect(r.a.ctx.Metrics(true)), 1)
		})
	}
}

// A peer without a receive makes both ends count.
func TestRNRCounters(t *testing.T) {
	r := newRig(t, rdma.Config{}, rdma.Config{})
	var done outcome[*rdma.Task]
	pool := must(r.a.ctx.Pool(1, done.ok, done.bad))
	var got outcome[*rdma.ReceiveTask]
	receives := must(r.b.ctx.ReceivePool(1, got.ok, got.bad))
	r.connect(1)
	require.NoError(t, must(pool.Send(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 8))).Submit())
	r.until("both ends have counted", func() bool { return r.a.ctx.Counters().RNRReceived > 0 && r.b.ctx.Counters().RNRSent > 0 })
	require.NoError(t, must(receives.Alloc(r.b.bufs.Target(r.b.mem, 0, 8))).Submit())
	r.until("the message has come", func() bool { return len(got.done) == 1 && len(done.done) == 1 })
	freeEach(t, []anyTask{done.done[0], got.done[0]})
}

// Endpoints of datagrams count, on queue pairs that count and on others.
func TestDatagramCounters(t *testing.T) {
	for _, transport := range []verbs.QPType{verbs.UD, verbs.SRD} {
		engine := newEngine(t)
		a := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "a", Transport: transport})
		b := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "b", Transport: transport})
		peer := a.peerOf(b)
		_ = b.peerOf(a)
		a.send(peer, "12345678")
		a.until("it has come", func() bool { return b.ctx.Counters().ReceivedMessages == 1 && a.ctx.Counters().SentMessages == 1 })
		require.EqualValues(t, 8, a.ctx.Counters().SentBytes, "%v", transport)
		require.EqualValues(t, 8, b.ctx.Counters().ReceivedBytes, "%v", transport)
		for o := range b.ctx.Metrics(true) {
			for _, c := range o.Counters {
				require.NotEqual(t, "silence", c.Name)
			}
		}
	}
}

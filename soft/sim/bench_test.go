package sim_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// BenchmarkPingPong is one message there and back between two hosts.
func BenchmarkPingPong(b *testing.B) {
	rounds := b.N
	packets, events := uint64(0), uint64(0)
	run(b, func(s *sim.Sim) {
		x, y := s.Host("a"), s.Host("b")
		done := 0
		x.Run(func(ctx context.Context, dev verbs.Device) error { return pingPong(ctx, dev, "", rounds, &done) })
		y.Run(func(ctx context.Context, dev verbs.Device) error {
			return pingPong(ctx, dev, x.Addr().String()+":7471", rounds, &done)
		})
		s.RunUntil(func() bool { return done == 2 }, 1000*time.Hour)
		packets, events = s.Packets(), s.Events()
	})
	b.ReportMetric(float64(packets)/b.Elapsed().Seconds(), "packets/s")
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(events)/float64(b.N), "events/op")
}

// BenchmarkSeeds is 200 messages there and back while the network is bad.
func BenchmarkSeeds(b *testing.B) {
	sim.Benchmark(b, func(s *sim.Sim) {
		x, y := s.Host("a"), s.Host("b")
		done := 0
		x.Run(func(ctx context.Context, dev verbs.Device) error { return pingPong(ctx, dev, "", 200, &done) })
		y.Run(func(ctx context.Context, dev verbs.Device) error {
			return pingPong(ctx, dev, x.Addr().String()+":7471", 200, &done)
		})
		s.Nemesis(sim.Chaos{BadLinks: 1, Interval: time.Millisecond})
		s.RunUntil(func() bool { return done == 2 }, time.Hour)
	})
}

// run runs a simulation in virtual time in a benchmark.
func run(b *testing.B, f func(s *sim.Sim)) {
	testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "x", F: func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(sim.New(t, 1)) })
	}}})
}

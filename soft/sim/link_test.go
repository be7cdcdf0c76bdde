package sim_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// A link that the test has changed joins its hosts as before, and others find their way too.
func TestChangedLink(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		const rounds = 5
		a, b, c := s.Host("a"), s.Host("b"), s.Host("c")
		s.Link(a, b).Set(sim.LinkConfig{Latency: time.Millisecond})
		done := 0
		a.Run(func(ctx context.Context, dev verbs.Device) error { return pingPong(ctx, dev, "", rounds, &done) })
		c.Run(func(ctx context.Context, dev verbs.Device) error {
			return pingPong(ctx, dev, a.Addr().String()+":7471", rounds, &done)
		})
		s.RunUntil(func() bool { return done == 2 }, time.Minute)
		s.SetDefaultLink(sim.LinkConfig{Latency: time.Second})
		assert.Equal(s, time.Millisecond, s.Link(a, b).Config().Latency)
		assert.Equal(s, time.Second, s.Link(b, a).Config().Latency)
	})
}

// Each call of Rand goes on with the same numbers.
func TestRand(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) { assert.NotEqual(s, s.Rand().Uint64(), s.Rand().Uint64()) })
}

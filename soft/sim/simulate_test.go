package sim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestSimulate(t *testing.T) {
	digest := func() (d uint64) {
		require.NoError(t, sim.Simulate(7, func(s *sim.Sim) {
			done := 0
			a, b := s.Host("a"), s.Host("b")
			a.Run(func(ctx context.Context, dev verbs.Device) error { return pingPong(ctx, dev, "", 10, &done) })
			b.Run(func(ctx context.Context, dev verbs.Device) error {
				return pingPong(ctx, dev, a.Addr().String()+":7471", 10, &done)
			})
			s.RunUntil(func() bool { return done == 2 }, time.Minute)
			d = s.Digest()
		}))
		return d
	}
	assert.Equal(t, digest(), digest())
}

func TestSimulateFails(t *testing.T) {
	after := false
	for name, c := range map[string]struct {
		f    func(s *sim.Sim)
		want string
	}{
		"error":   {func(s *sim.Sim) { s.Errorf("wrong %d", 1) }, "wrong 1"},
		"fatal":   {func(s *sim.Sim) { s.Fatal("wrong"); after = true }, "wrong"},
		"fail":    {func(s *sim.Sim) { s.FailNow(); after = true }, "without saying why"},
		"require": {func(s *sim.Sim) { require.Equal(s, 1, 2); after = true }, "Not equal"},
		"panic":   {func(*sim.Sim) { panic("broken") }, "broken"},
		"time":    {func(s *sim.Sim) { s.RunUntil(func() bool { return false }, time.Hour); after = true }, "does not hold after 1h"},
		"host": {func(s *sim.Sim) {
			s.Host("a").Run(func(context.Context, verbs.Device) error { return errors.New("broken program") })
			s.Run(time.Second)
			after = true
		}, "broken program"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorContains(t, sim.Simulate(1, c.f), c.want)
			assert.False(t, after)
		})
	}
}

package sim

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// forgetful counts over all runs, so that no two are the same.
func forgetful(runs *atomic.Int64) func(s *Sim) {
	return func(s *Sim) {
		h, number := s.Host("a"), time.Duration(runs.Add(1))
		h.Run(func(context.Context, verbs.Device) error {
			h.Sleep(time.Second)
			h.Sleep(number * time.Millisecond)
			return nil
		})
		s.Run(2 * time.Second)
	}
}

// A difference of two runs comes with its place, and with the goroutines that worked before it.
func TestWhyDiffers(t *testing.T) {
	var runs atomic.Int64
	var first, second *Sim
	require.NoError(t, Simulate(1, func(s *Sim) { first = s; s.trace.keep = true; forgetful(&runs)(s) }))
	require.NoError(t, Simulate(1, func(s *Sim) { second = s; s.trace.expect = first.trace.records; forgetful(&runs)(s) }))
	text := whyDiffers(first, second, forgetful(&runs))
	require.Contains(t, text, "call at 1.001s at host a in the first run, and call at 1.002s at host a in the second")
	require.Contains(t, text, "forgetful.func")
	require.Contains(t, text, "Host.Go")
}

// No goroutines are named where the third run took another way before.
func TestWhyDiffersThirdRunDiffers(t *testing.T) {
	var runs atomic.Int64
	var first, second *Sim
	require.NoError(t, Simulate(1, func(s *Sim) { first = s; s.trace.keep = true; forgetful(&runs)(s) }))
	require.NoError(t, Simulate(1, func(s *Sim) { second = s; s.trace.expect = first.trace.records; forgetful(&runs)(s) }))
	first.trace.records[0].size++
	require.NotContains(t, whyDiffers(first, second, forgetful(&runs)), "forgetful.func")
}

// A run that ends earlier differs by its end, also from one with more hosts.
func TestEndsEarlier(t *testing.T) {
	test := func(s *Sim) { s.Run(time.Second) }
	var first, second *Sim
	require.NoError(t, Simulate(1, func(s *Sim) { first = s; s.trace.keep = true; test(s) }))
	more := append(first.trace.records, record{at: time.Minute, host: 3})
	require.NoError(t, Simulate(1, func(s *Sim) { second = s; s.trace.expect = more; test(s) }))
	require.Nil(t, second.trace.differs)
	second.trace.end()
	require.Contains(t, second.trace.differs.String(), "call at 1m0s in the first run, and the end in the second")
}

func TestProgramOfElidedStack(t *testing.T) {
	require.Equal(t, "main.f", program("main.g(0x1)\n\t/a.go:1\n...22 frames elided...\nmain.f()\n\t/a.go:2\ncreated by main.main\n"))
}

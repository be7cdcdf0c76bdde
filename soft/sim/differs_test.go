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

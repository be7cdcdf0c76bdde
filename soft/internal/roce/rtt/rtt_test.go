package rtt

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The numbers of RFC 6298, section 2.
func TestEstimate(t *testing.T) {
	var e Estimate
	timeout := func() time.Duration { return e.Timeout(time.Second, 10) }
	require.Equal(t, time.Second, timeout())
	e.Sample(800)
	require.Equal(t, Estimate{Smoothed: 800, Variation: 400}, e)
	require.Equal(t, time.Duration(800+4*400), timeout())
	e.Sample(1600)
	require.Equal(t, Estimate{Smoothed: 900, Variation: 500}, e)
	for range 1000 {
		e.Sample(900)
	}
	require.InDelta(t, 900+10, timeout(), 8, "the variation is less than the clock shows")
	for range 1000 {
		e.Sample(-5)
	}
	require.True(t, e.Measured())
	require.GreaterOrEqual(t, e.Smoothed, time.Duration(1))
}

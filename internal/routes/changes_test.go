package routes

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Changes ends with its context.
func TestChangesEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	subscribed, ended := make(chan struct{}), make(chan struct{})
	go func() {
		Changes(ctx, func() { close(subscribed) }, func() {})
		close(ended)
	}()
	<-subscribed
	cancel()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		require.Fail(t, "it goes on")
	}
}

// If the system's reports end, or there are none, Changes looks on its own, and has subscribed once.
func TestChangesWithoutReports(t *testing.T) {
	for name, follow := range map[string]func(context.Context, func(), func()) bool{
		"none":        func(context.Context, func(), func()) bool { return false },
		"none longer": func(_ context.Context, subscribed, _ func()) bool { subscribed(); return false },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				subscribed, changed := 0, 0
				changes(ctx, follow, func() { subscribed++ }, func() {
					if changed++; changed == 3 {
						cancel()
					}
				})
				require.Equal(t, 1, subscribed)
				require.Equal(t, 3, changed)
			})
		})
	}
}

// Whoever waits for the subscription goes on if there is none because ctx has ended.
func TestChangesEndEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	subscribed := 0
	changes(ctx, func(context.Context, func(), func()) bool { return false }, func() { subscribed++ }, func() {})
	require.Equal(t, 1, subscribed)
}

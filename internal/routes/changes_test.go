package routes

import (
	"context"
	"testing"
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

package oob

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/host"
)

func TestWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := withTimeout(context.Background(), host.System, time.Minute)
		defer cancel()
		<-ctx.Done()
		assert.Equal(t, time.Minute, time.Since(start))
		require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
		early, cancel := withTimeout(context.Background(), host.System, time.Minute)
		cancel()
		require.ErrorIs(t, context.Cause(early), context.Canceled)
	})
}

package syncevent

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// Where everybody reports changes, whoever waits is blocked, and no timer runs:
// synctest.Wait returns when all goroutines are blocked, and the clock of the bubble
// jumps to the next timer, which is the end of the wait.
func TestWaitersSleep(t *testing.T) {
	dev := openSoft(t)
	for name, c := range map[string]struct {
		dev verbs.Device
		cfg Config
	}{
		"local":                           {},
		"on a device that reports writes": {dev, Config{Publishers: bothPublish}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := open(t, c.dev, c.cfg)
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						_, err := e.Wait(ctx, Greater(0))
						assert.ErrorIs(t, err, context.DeadlineExceeded)
					})
				}
				synctest.Wait()
				assert.Equal(t, int64(4), e.sleepers.Load())
				polling, _ := e.polled()
				assert.False(t, polling)
				assert.False(t, e.timer.Stop(), "a timer runs while nothing is polled")
				wg.Wait()
			})
		})
	}
}

// An engine whose only tasks are waits sleeps in Run.
func TestEngineSleepsOnWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, nil, Config{})
		s := newTasks(t, 3)
		require.NoError(t, s.ctx.Start())
		w := must(s.waits.Wait(e, Greater(0)))
		s.submit(w)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- s.engine.Run(ctx) }()
		synctest.Wait()
		polling, _ := e.polled()
		assert.False(t, polling)
		require.ErrorIs(t, <-ended, pe.ErrTasksHeld)
		s.free(w)
		s.progress()
		require.NoError(t, s.engine.Close())
	})
}

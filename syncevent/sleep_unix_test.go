//go:build unix

package syncevent

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/pe"
)

// processorTime is what the process has used of all processors.
func processorTime(t *testing.T) time.Duration {
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// leastTime is what f, which takes a second, uses of the processors at least:
// the best of several tries, for a machine where others run too.
func leastTime(t *testing.T, f func()) time.Duration {
	least := time.Hour
	for range 5 {
		runtime.GC() // not while it counts
		before := processorTime(t)
		f()
		if least = min(least, processorTime(t)-before); least < 20*time.Millisecond {
			break
		}
	}
	t.Logf("%v of processor time", least)
	return least
}

func TestSleepCostsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	dev := openSoft(t)
	for name, cfg := range map[string]settings{
		"local": {},
		"told":  {Config{Publishers: bothPublish}, dev},
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t, cfg.dev, cfg.Config)
			assert.Less(t, leastTime(t, func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						_, err := e.WaitGreater(ctx, 0, all)
						assert.ErrorIs(t, err, context.DeadlineExceeded)
					})
				}
				wg.Wait()
			}), 20*time.Millisecond)
		})
	}
	t.Run("tasks", func(t *testing.T) {
		e := open(t, nil, Config{})
		s := newTasks(t, 3)
		assert.Less(t, leastTime(t, func() {
			require.NoError(t, s.ctx.Start())
			w := must(s.waits.Greater(e, 0, all))
			s.submit(w)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			require.ErrorIs(t, s.engine.Run(ctx), pe.ErrTasksHeld)
			s.free(w)
			s.progress()
		}), 20*time.Millisecond)
		require.NoError(t, s.engine.Close())
	})
}

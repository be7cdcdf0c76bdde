package goroutine_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/internal/goroutine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Goroutines that live at the same time have different IDs, and keep them when they move
// to other threads and their stacks to other memory.
func TestCurrent(t *testing.T) {
	const count = 200
	ids := make([]goroutine.ID, count)
	var known, done sync.WaitGroup
	known.Add(count)
	for i := range ids {
		done.Go(func() {
			ids[i] = goroutine.Current()
			known.Done()
			known.Wait()
			for n := range 50 {
				runtime.Gosched()
				assert.Equal(t, ids[i], deep(n*20))
			}
		})
	}
	done.Wait()
	seen := map[goroutine.ID]bool{0: true, goroutine.Current(): true}
	for _, id := range ids {
		assert.False(t, seen[id], "%d is zero, or of two goroutines", id)
		seen[id] = true
	}
}

//go:noinline
func deep(n int) goroutine.ID {
	var frame [128]byte
	if n == 0 {
		return goroutine.Current()
	}
	id := deep(n - 1)
	runtime.KeepAlive(&frame)
	return id
}

func BenchmarkCurrent(b *testing.B) {
	for b.Loop() {
		goroutine.Current()
	}
}

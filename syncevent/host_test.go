package syncevent

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/host"
)

// simulated is a host with a scheduler, which keeps what it is to wake.
type simulated struct {
	host.Host
	scheduler *scheduler
}

func (s simulated) Scheduler() host.Scheduler { return s.scheduler }

type scheduler struct {
	host.Scheduler
	woken chan func()
	notes []string
}

func (s *scheduler) Wake(f func()) { s.woken <- f }

func (s *scheduler) Ticket() uint64 { return 0 }

func (s *scheduler) Turn(uint64) {}

func (s *scheduler) Report(what fmt.Stringer) func() {
	s.notes = append(s.notes, what.String())
	return func() { s.notes = append(s.notes, "over") }
}

// In a simulation the scheduler wakes a wait, even one whose context ends meanwhile.
func TestSchedulerWakes(t *testing.T) {
	s := &scheduler{woken: make(chan func(), 1)}
	e := open(t, nil, Config{Name: "count"})
	e.host = simulated{host.System, s}
	for _, ends := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		value := make(chan uint64, 1)
		go func() {
			v, err := e.Wait(ctx, Greater(0))
			assert.NoError(t, err)
			value <- v
		}()
		for e.sleepers.Load() == 0 {
			runtime.Gosched()
		}
		require.NoError(t, e.Set(7))
		wake := <-s.woken
		require.NoError(t, e.Set(0)) // the wait returns the value that it was woken for
		if ends {
			cancel()
		}
		require.Empty(t, value)
		wake()
		assert.Equal(t, uint64(7), <-value)
		cancel()
	}
	note := `a wait for sync event "count" > 0x0`
	assert.Equal(t, []string{note, "over", note, "over"}, s.notes)
}

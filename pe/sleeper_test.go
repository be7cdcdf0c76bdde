package pe_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

// sleepyContext is a context that sleeps for the engine, unless it refuses.
type sleepyContext struct {
	*pe.Core
	ctl     *pe.Control
	ended   chan struct{} // has room for one
	asleep  func()        // is called before it sleeps
	refuses atomic.Bool
	sleeps  int
}

type sleepyBackend struct{ *sleepyContext }

func newSleepy(e *pe.Engine, t *testing.T) *sleepyContext {
	c := &sleepyContext{ended: make(chan struct{}, 1)}
	c.Core, c.ctl = pe.NewCore("sleepy", sleepyBackend{c})
	require.NoError(t, e.Connect(c))
	require.NoError(t, c.Start())
	return c
}

func (sleepyBackend) Start() (bool, error) { return true, nil }
func (sleepyBackend) Progress() int        { return 0 }
func (sleepyBackend) Arm() bool            { return true }
func (b sleepyBackend) Stop()              { b.ctl.Stopped() }
func (sleepyBackend) Idle()                {}

func (b sleepyBackend) Sleep() bool {
	if b.asleep != nil {
		b.asleep()
	}
	if b.refuses.Load() {
		return false
	}
	b.sleeps++
	<-b.ended
	return true
}

func (b sleepyBackend) EndSleep() {
	select {
	case b.ended <- struct{}{}:
	default:
	}
}

// TestSleepInContext: Do, Wake and the end of Run's context end a sleep, also one that is about
// to begin.
func TestSleepInContext(t *testing.T) {
	for name, refuses := range map[string]bool{"it sleeps": false, "it refuses": true} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, pe.Config{Spin: -1})
			c := newSleepy(e, t)
			c.refuses.Store(refuses)
			ctx, cancel := context.WithCancelCause(t.Context())
			ran, turns := 0, 0
			c.asleep = func() {
				switch turns++; {
				case turns < 100:
					go func() { assert.NoError(t, e.Do(func() { ran++ })) }()
				case turns < 200:
					assert.NoError(t, e.Do(func() { ran++ }))
				case turns < 300:
					go c.ctl.Wake()
				default:
					cancel(errFlushed)
				}
			}
			require.ErrorIs(t, e.Run(ctx), errFlushed)
			assert.Equal(t, 199, ran)
			assert.Equal(t, refuses, c.sleeps == 0)
			assert.Equal(t, pe.Idle, c.State())
			require.NoError(t, e.Close())
		})
	}
}

// TestTwoContextsSleepTogether: no context sleeps for an engine that has others.
func TestTwoContextsSleepTogether(t *testing.T) {
	e := newEngine(t, pe.Config{Spin: -1})
	c, other := newSleepy(e, t), newDevice(t, 1)
	require.NoError(t, e.Connect(other))
	require.NoError(t, other.Start())
	go func() { assert.NoError(t, e.Do(func() { assert.NoError(t, other.Stop()) })) }()
	var stop sync.Once
	c.asleep = func() {
		assert.Equal(t, pe.Idle, other.State())
		stop.Do(func() {
			go func() { assert.NoError(t, e.Do(func() { assert.NoError(t, c.Stop()) })) }()
		})
	}
	require.NoError(t, e.Run(t.Context()))
	require.NoError(t, e.Close())
}

// TestCloseOfSleepy drives a context to Idle without Run.
func TestCloseOfSleepy(t *testing.T) {
	e := newEngine(t, pe.Config{Spin: -1})
	c := newSleepy(e, t)
	require.NoError(t, c.Close())
	assert.Zero(t, c.sleeps)
	require.NoError(t, e.Close())
}

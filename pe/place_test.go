package pe_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/internal/goroutine"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/pe/backend"
)

// fakeSleeper is a place to sleep at.
type fakeSleeper struct {
	refuses        func() bool
	wakeup         chan struct{}
	sleeps, leaves atomic.Int64
	wakes          atomic.Int64
	by             atomic.Uintptr // the goroutine that sleeps
}

func newFakeSleeper(refuses func() bool) *fakeSleeper {
	return &fakeSleeper{refuses: refuses, wakeup: make(chan struct{}, 1)}
}

func (b *fakeSleeper) Sleep(ended *atomic.Bool) bool {
	if b.refuses() {
		return false
	}
	b.sleeps.Add(1)
	b.by.Store(uintptr(goroutine.Current()))
	defer b.by.Store(0)
	for !ended.Load() {
		<-b.wakeup
	}
	return true
}

func (b *fakeSleeper) Wake() {
	b.wakes.Add(1)
	select {
	case b.wakeup <- struct{}{}:
	default:
	}
}

func (b *fakeSleeper) Leave() { b.leaves.Add(1) }

// sleepyBackend is a backend that is Running and has a place to sleep at.
type sleepyBackend struct {
	control backend.Control
	sleeper func() host.Sleeper
	arms    atomic.Int64
}

func (b *sleepyBackend) Start() (bool, error)  { return true, nil }
func (b *sleepyBackend) Progress() int         { return 0 }
func (b *sleepyBackend) Arm() bool             { b.arms.Add(1); return true }
func (b *sleepyBackend) Stop()                 { b.control.Stopped() }
func (b *sleepyBackend) Idle()                 {}
func (b *sleepyBackend) Sleeper() host.Sleeper { return b.sleeper() }

// sleepy is a context with that backend.
type sleepy struct {
	*pe.Core
	backend *sleepyBackend
}

func newSleepy(t *testing.T, e *pe.Engine, sleeper func() host.Sleeper) (*sleepy, backend.Control) {
	b := &sleepyBackend{sleeper: sleeper}
	s := &sleepy{backend: b}
	s.Core, b.control = backend.New("sleepy", b)
	require.NoError(t, e.Connect(s))
	require.NoError(t, s.Start())
	return s, b.control
}

// runs has Run drive the engine until cancel is called, and returns what it returns.
func runs(t *testing.T, e *pe.Engine) (ctx context.Context, cancel context.CancelFunc, ended chan error) {
	ctx, cancel = context.WithCancel(t.Context())
	ended = make(chan error)
	go func() { ended <- e.Run(ctx) }()
	return ctx, cancel, ended
}

// Run sleeps at the device of its context, and is woken there by Do, by the backend and by the end of
// its context.Context. It leaves the device when it returns.
func TestSleepAtDevice(t *testing.T) {
	e := newEngine(t, pe.Config{Spin: -1})
	b := newFakeSleeper(func() bool { return false })
	s, control := newSleepy(t, e, func() host.Sleeper { return b })
	_, cancel, ended := runs(t, e)
	for range 20 {
		ran := make(chan struct{})
		require.NoError(t, e.Do(func() { close(ran) }))
		<-ran
		control.Wake()
	}
	require.Zero(t, b.leaves.Load())
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.EqualValues(t, 1, b.leaves.Load())
	require.NoError(t, s.Close())
	require.NoError(t, e.Close())
}

// Run returns when its context.Context ends while it is choosing where to sleep.
func TestEndBeforeSleepAtDevice(t *testing.T) {
	e := newEngine(t, pe.Config{Spin: -1})
	b := newFakeSleeper(func() bool { return false })
	ctx, cancel := context.WithCancel(t.Context())
	s, _ := newSleepy(t, e, func() host.Sleeper {
		cancel()
		for range 10_000 { // until the goroutine that notices it has run
			runtime.Gosched()
		}
		return b
	})
	require.ErrorIs(t, e.Run(ctx), context.Canceled)
	require.NoError(t, s.Close())
	require.NoError(t, e.Close())
}

// Run returns when its context.Context ends while another goroutine is in Dispatch, which takes the wake-up.
func TestEndDuringDispatch(t *testing.T) {
	e := newEngine(t, pe.Config{Spin: -1})
	b := newFakeSleeper(func() bool { return false })
	s, _ := newSleepy(t, e, func() host.Sleeper { return b })
	ctx, cancel, ended := runs(t, e)
	defer cancel()
	me := uintptr(goroutine.Current())
	for ctx.Err() == nil {
		for b.by.Load() == 0 {
			runtime.Gosched()
		}
		ran := make(chan struct{})
		require.NoError(t, e.Dispatch(func() {
			if uintptr(goroutine.Current()) == me {
				cancel()
				for range 10_000 { // until the goroutine that notices it has run
					runtime.Gosched()
				}
			}
			close(ran)
		}))
		<-ran
	}
	require.ErrorIs(t, <-ended, context.Canceled) // for ever, if Run sleeps on
	require.NoError(t, s.Close())
	require.NoError(t, e.Close())
}

// An engine that was refused a place does not leave it: another goroutine does the work there.
func TestRefusedPlaceIsNotLeft(t *testing.T) {
	e := newEngine(t, pe.Config{Spin: -1})
	b := newFakeSleeper(func() bool { return true })
	s, _ := newSleepy(t, e, func() host.Sleeper { return b })
	_, cancel, ended := runs(t, e)
	for range 20 {
		ran := make(chan struct{})
		require.NoError(t, e.Do(func() { close(ran) }))
		<-ran
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Zero(t, b.leaves.Load())
	require.NoError(t, s.Close())
	require.NoError(t, e.Close())
}

// Where there is no place to sleep at, DriveUntil does nothing.
func TestDriveUntilWithoutAPlace(t *testing.T) {
	e := newEngine(t, pe.Config{Spin: -1})
	s, _ := newSleepy(t, e, func() host.Sleeper { return nil })
	_, cancel, ended := runs(t, e)
	for asleep := 0; asleep < 2; asleep++ { // Run is, when Dispatch calls the function here, and has nothing to do after it
		var by atomic.Uintptr
		require.NoError(t, e.Dispatch(func() { by.Store(uintptr(goroutine.Current())) }))
		if by.Load() != uintptr(goroutine.Current()) {
			asleep = -1
			runtime.Gosched()
		}
	}
	arms := s.backend.arms.Load()
	require.False(t, e.DriveUntil(func() bool { return false }))
	require.Equal(t, arms, s.backend.arms.Load())
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, s.Close())
	require.NoError(t, e.Close())
}

// Dispatch runs its function on the caller's goroutine while DriveUntil sleeps, and wakes it only if that
// has done what it waits for. Run takes the engine back from DriveUntil.
func TestDispatchWhileDriveUntilSleeps(t *testing.T) {
	e := newEngine(t, pe.Config{Spin: -1})
	b := newFakeSleeper(func() bool { return false })
	s, _ := newSleepy(t, e, func() host.Sleeper { return b })
	ctx, cancel, ended := runs(t, e)
	var set atomic.Bool
	drive := func() (drove chan bool) {
		drove = make(chan bool, 1)
		id := make(chan uintptr, 1)
		go func() {
			id <- uintptr(goroutine.Current())
			for ctx.Err() == nil {
				if e.DriveUntil(set.Load) {
					drove <- true
					return
				}
				runtime.Gosched()
			}
			drove <- false
		}()
		for by := <-id; b.by.Load() != by; {
			runtime.Gosched()
		}
		return drove
	}
	drove := drive()
	wakes := b.wakes.Load()
	for range 3 {
		var by uintptr
		require.NoError(t, e.Dispatch(func() {
			by = uintptr(goroutine.Current())
			require.False(t, e.DriveUntil(set.Load)) // as in a callback
		}))
		require.Equal(t, uintptr(goroutine.Current()), by)
		require.False(t, e.DriveUntil(set.Load)) // another goroutine does
		require.False(t, e.DriveUntil(nil))
	}
	require.Equal(t, wakes, b.wakes.Load())
	require.NoError(t, e.Dispatch(func() { set.Store(true) }))
	require.True(t, <-drove)
	set.Store(false)
	drove = drive()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.False(t, <-drove)
	require.NoError(t, s.Close())
	require.NoError(t, e.Close())
}

// No wake-up is lost, whoever calls when: a device that refuses the engine at times or that has no place
// for a while, goroutines that call Do and Dispatch or drive the engine in place of Run, and the backend.
func TestNoWakeupIsLost(t *testing.T) {
	const callers, calls = 4, 2000
	e := newEngine(t, pe.Config{Spin: -1})
	one, other := newFakeSleeper(func() bool { return rand.IntN(3) == 0 }), newFakeSleeper(func() bool { return rand.IntN(2) == 0 })
	s, control := newSleepy(t, e, func() host.Sleeper {
		switch rand.IntN(4) {
		case 0:
			return nil
		case 1:
			return other
		}
		return one
	})
	_, cancel, ended := runs(t, e)
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			ran := make(chan struct{}, 1)
			f := func() { ran <- struct{}{} }
			for range calls {
				queue := e.Do
				if i%2 == 0 {
					queue = e.Dispatch
				}
				if !assert.NoError(t, queue(f)) {
					return
				}
				<-ran // for ever, if the engine sleeps on
				control.Wake()
			}
		})
	}
	for range 2 {
		work.Go(func() {
			friends := e.Friends(friend.Package{})
			var set atomic.Bool
			for i := range calls {
				set.Store(false)
				var other sync.WaitGroup
				switch i % 3 {
				case 0:
					assert.NoError(t, e.Do(func() { set.Store(true) }))
				case 1:
					other.Go(func() { assert.NoError(t, e.Dispatch(func() { set.Store(true) })) })
				default:
					other.Go(func() {
						set.Store(true)
						friends.Wake()
					})
				}
				for !friends.DriveUntil(set.Load) && !set.Load() {
					runtime.Gosched() // Run drives, or another goroutine
				}
				other.Wait()
			}
		})
	}
	work.Wait()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NotZero(t, one.sleeps.Load())
	require.NoError(t, s.Close())
	require.NoError(t, e.Close())
}

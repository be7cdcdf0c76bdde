package pe_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
)

func TestProgressInsideCallbacks(t *testing.T) {
	e, d := connected(t, 1)
	var errs []error
	try := func() {
		_, err := e.Progress()
		errs = append(errs, err, e.Run(t.Context()), e.Close())
	}
	d.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			try()
		}
	})
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	j.done = func(*job, error) { try() }
	require.NoError(t, d.submit(j, 0))
	d.complete(0, nil)
	require.NoError(t, e.Do(func() { deep(100, try) }))
	quiesce(t, e)
	require.Len(t, errs, 9)
	for _, err := range errs {
		assert.ErrorIs(t, err, pe.ErrReentrant)
		assert.NotErrorIs(t, err, pe.ErrBusy)
	}
}

// deep calls f below a stack that is deep.
func deep(n int, f func()) {
	if n == 0 {
		f()
		return
	}
	deep(n-1, f)
}

func TestTwoGoroutinesAtOnce(t *testing.T) {
	e, d := connected(t, 1)
	spare := newDevice(t, 1)
	require.NoError(t, d.Start())
	entered, leave := make(chan struct{}), make(chan struct{})
	require.NoError(t, e.Do(func() { close(entered); <-leave }))
	var wg sync.WaitGroup
	wg.Go(func() { quiesce(t, e) })
	<-entered
	_, err := e.Progress()
	for name, err := range map[string]error{
		"progress": err, "run": e.Run(t.Context()), "close engine": e.Close(),
		"start": d.Start(), "stop": d.Stop(), "close": d.Close(), "connect": e.Connect(spare),
		"a rare call of the context's": d.ctl.Owned("do it"),
	} {
		assert.ErrorIs(t, err, pe.ErrBusy, name)
		assert.NotErrorIs(t, err, pe.ErrReentrant, name)
	}
	close(leave)
	wg.Wait()
	require.NoError(t, e.Do(func() { assert.NoError(t, d.ctl.Owned("do it")) }))
	quiesce(t, e)
	require.NoError(t, d.ctl.Owned("do it"), "nobody drives the engine")
	require.NoError(t, spare.ctl.Owned("do it"), "it has no engine")
	require.NoError(t, d.Stop())
	require.NoError(t, e.Close())
}

func TestClosedEngine(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	_, err := e.Progress()
	assert.ErrorIs(t, err, pe.ErrClosed)
	assert.ErrorIs(t, e.Run(t.Context()), pe.ErrClosed)
	assert.ErrorIs(t, e.Do(func() {}), pe.ErrClosed)
	assert.ErrorIs(t, e.Arm(), pe.ErrClosed)
	assert.ErrorIs(t, e.Clear(), pe.ErrClosed)
	_, err = e.NotificationFD()
	assert.ErrorIs(t, err, pe.ErrClosed)
	assert.ErrorIs(t, e.Connect(newDevice(t, 1)), pe.ErrClosed)

	assert.ErrorIs(t, d.Start(), pe.ErrNotConnected, "its context is free again")
	other := newEngine(t, pe.Config{})
	require.NoError(t, other.Connect(d))
	assert.Same(t, other, d.Engine())
	require.NoError(t, d.Start())
}

func TestCloseDeliversWhatIsQueued(t *testing.T) {
	e, d := connected(t, 1)
	var order []string
	var late []error
	d.OnStateChange(func(_, next pe.State) {
		order = append(order, next.String())
		late = append(late, d.Start(), e.Do(func() {}), e.Connect(newDevice(t, 1)))
	})
	require.NoError(t, d.Start())
	require.NoError(t, e.Do(func() { order = append(order, "done") }))
	require.NoError(t, d.Stop())
	require.NoError(t, e.Close())
	assert.Equal(t, []string{"Running", "Stopping", "Idle", "done"}, order)
	for _, err := range late {
		assert.ErrorIs(t, err, pe.ErrClosed)
	}
}

func TestDoFromManyGoroutines(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	const goroutines, each = 8, 2000
	seen := make([][]int, goroutines)
	left := goroutines * each
	for g := range goroutines {
		go func() {
			for i := range each {
				assert.NoError(t, e.Do(func() {
					seen[g] = append(seen[g], i)
					if left--; left == 0 {
						assert.NoError(t, d.Stop())
					}
				}))
				if i%64 == 0 {
					runtime.Gosched() // lets Run sleep now and then
				}
			}
		}()
	}
	require.NoError(t, e.Run(t.Context()))
	for g := range seen {
		require.Len(t, seen[g], each)
		for i, v := range seen[g] {
			require.Equal(t, i, v, "in the order of the calls")
		}
	}
	assert.ErrorIs(t, e.Do(nil), pe.ErrInvalid)
	require.NoError(t, e.Close())
}

func TestDoDuringClose(t *testing.T) {
	for range 200 {
		e := newEngine(t, pe.Config{})
		var accepted, ran int
		var wg sync.WaitGroup
		begun := make(chan struct{})
		wg.Go(func() {
			for i := range 100 {
				if e.Do(func() { ran++ }) == nil {
					accepted++
				}
				if i == 10 {
					close(begun)
				}
			}
		})
		<-begun
		require.NoError(t, e.Close())
		wg.Wait()
		require.Equal(t, accepted, ran, "a function that was taken runs")
	}
}

func TestPanicInACallback(t *testing.T) {
	e, d := connected(t, 2)
	require.NoError(t, d.Start())
	for i := range 2 {
		j, err := d.jobs.Alloc()
		require.NoError(t, err)
		j.done = func(j *job, _ error) {
			require.NoError(t, d.jobs.Free(j))
			if i == 0 {
				panic("mine")
			}
		}
		require.NoError(t, d.submit(j, 0))
	}
	require.NoError(t, d.Stop())
	require.NoError(t, e.Do(func() { panic("mine too") }))
	require.NoError(t, e.Do(func() {}))
	assert.PanicsWithValue(t, "mine too", func() { _, _ = e.Progress() })
	assert.PanicsWithValue(t, "mine", func() { _, _ = e.Progress() })
	quiesce(t, e)
	assert.Equal(t, pe.Idle, d.State())
	require.NoError(t, e.Close())
}

func TestProgressCountsEveryKindOfEvent(t *testing.T) {
	e, d := connected(t, 1)
	require.NoError(t, d.Start())
	j, err := d.jobs.Alloc()
	require.NoError(t, err)
	j.done = d.free(t)
	require.NoError(t, d.submit(j, 0))
	d.complete(0, nil)
	require.NoError(t, e.Do(func() {}))
	n, err := e.Progress()
	require.NoError(t, err)
	assert.Equal(t, 3, n, "one change of state, one function, one task")
	n, err = e.Progress()
	require.NoError(t, err)
	assert.Zero(t, n)
}

package syncevent

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// patience is far above what any test takes that does not hang.
func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Who sleeps is roused by the first value that fulfils the condition when it is
// looked at, and by nothing else.
func TestSleepersModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, err := New(nil, Config{})
		require.NoError(t, err)
		var asleep []*waiter
		var value uint64
		look := func(t *rapid.T) {
			var still []*waiter
			for _, w := range asleep {
				if !w.holds(value) {
					require.Empty(t, w.wakeup, "%v with %#x", w.Condition, value)
					still = append(still, w)
					continue
				}
				require.Len(t, w.wakeup, 1, "%v with %#x", w.Condition, value)
				require.Equal(t, value, w.seen)
				require.False(t, e.cancelWaiter(w))
				<-w.wakeup
				e.reuseWaiter(w)
			}
			asleep = still
		}
		small := rapid.Uint64Range(0, 7)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				value = small.Draw(t, "value")
				require.NoError(t, e.Set(value))
				look(t)
			},
			"add": func(t *rapid.T) {
				n := rapid.SampledFrom([]uint64{1, 2, all}).Draw(t, "number")
				old, err := e.Add(n)
				require.NoError(t, err)
				require.Equal(t, value, old)
				value += n
				look(t)
			},
			"reported write of a peer": func(t *rapid.T) {
				value = small.Draw(t, "value")
				atomic.StoreUint64(e.word, value)
				e.changed()
				look(t)
			},
			"another's write found": func(t *rapid.T) {
				value = small.Draw(t, "value")
				atomic.StoreUint64(e.word, value)
				e.wakeSatisfied()
				look(t)
			},
			"sleep": func(t *rapid.T) {
				c := Condition{
					conditionKind(rapid.IntRange(int(equal), int(greater)).Draw(t, "kind")), small.Draw(t, "value"),
					rapid.SampledFrom([]uint64{1, 2, 3, 6, 7, all}).Draw(t, "mask"),
				}
				if c.check() != nil {
					t.Skip()
				}
				asleep = append(asleep, e.startWaiter(c))
				look(t)
			},
			"withdraw": func(t *rapid.T) {
				if len(asleep) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(asleep)-1).Draw(t, "who")
				require.True(t, e.cancelWaiter(asleep[i]))
				e.reuseWaiter(asleep[i])
				asleep = append(asleep[:i], asleep[i+1:]...)
			},
			"": func(t *rapid.T) {
				require.Equal(t, value, e.load())
				require.Len(t, e.waiting, len(asleep))
				require.Equal(t, int64(len(asleep)), e.sleepers.Load())
			},
		})
		for _, w := range asleep {
			require.True(t, e.cancelWaiter(w))
		}
		require.NoError(t, e.Close())
	})
}

// Two that always sleep wake each other: one lost wake-up and both hang.
func TestPingPong(t *testing.T) {
	e := open(t, nil, Config{})
	ctx := patience(t)
	const rounds = 20000
	half := func(parity uint64) {
		for i := parity; i < rounds; i += 2 {
			if _, err := e.sleep(ctx, Equal(i)); !assert.NoError(t, err) {
				return
			}
			if !assert.NoError(t, e.Set(i+1)) {
				return
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { half(0) })
	wg.Go(func() { half(1) })
	wg.Wait()
	assert.Equal(t, uint64(rounds), get(t, e))
}

func TestManyWritersManyWaiters(t *testing.T) {
	const writers, waiters, each = 8, 24, 500
	e := open(t, nil, Config{})
	ctx := patience(t)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			wait := e.Wait
			if i%2 == 0 {
				wait = e.sleep
			}
			for v := uint64(0); v < writers*each; {
				next, err := wait(ctx, Greater(v))
				if !assert.NoError(t, err) {
					return
				}
				assert.Greater(t, next, v)
				v = next
			}
		})
	}
	for range waiters {
		wg.Go(func() { // each waits for its own number, which comes and goes
			wanted := rand.Uint64N(writers * each)
			_, err := e.Wait(ctx, Greater(wanted))
			assert.NoError(t, err)
		})
	}
	for range writers {
		wg.Go(func() {
			for i := range each {
				_, err := e.Add(1)
				assert.NoError(t, err)
				if i%16 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	assert.Equal(t, uint64(writers*each), get(t, e))
	assert.Zero(t, e.sleepers.Load())
}

func (e *Event) polled() (polling bool, due time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pollScheduled, e.pollDue
}

// A change that nobody reports is found within the poll interval, by one timer that runs
// only while somebody sleeps.
func TestPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := words(1)
		e, err := New(nil, Config{Memory: mem, PollInterval: 10 * time.Millisecond})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				v, err := e.Wait(context.Background(), Equal(1))
				assert.NoError(t, err, "waiter %d", i)
				assert.Equal(t, uint64(1), v)
			})
		}
		for _, slept := range []time.Duration{400 * time.Microsecond, 8 * time.Millisecond, 2 * time.Second} {
			time.Sleep(slept)
			synctest.Wait()
			polling, due := e.polled()
			assert.True(t, polling)
			assert.Greater(t, time.Until(due), time.Duration(0))
			assert.LessOrEqual(t, time.Until(due), min(slept/8+100*time.Microsecond, 10*time.Millisecond))
		}
		late, start := make(chan time.Duration), time.Now()
		go func() { // a young sleeper does not wait for the next look at the old ones
			_, err := e.Wait(context.Background(), NotEqual(0))
			assert.NoError(t, err)
			late <- time.Since(start)
		}()
		synctest.Wait()
		write(mem, 1)
		assert.Equal(t, minPollInterval, <-late)
		wg.Wait()
		rests := func(why string) {
			t.Helper()
			polling, _ := e.polled()
			assert.False(t, polling, why)
			assert.False(t, e.timer.Stop(), "a timer runs while nobody sleeps: %s", why)
		}
		rests("the last was roused by a look")
		w := e.startWaiter(Greater(1))
		require.NoError(t, e.Set(2))
		<-w.wakeup
		rests("the last was roused by Set")
		require.True(t, e.cancelWaiter(e.startWaiter(Equal(1))))
		rests("the last gave up")
		require.NoError(t, e.Close())
	})
}

// A sleeper is looked after often at first, and then twenty times a second.
func TestPollingSlowsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(nil, Config{Memory: words(1)})
		require.NoError(t, err)
		start := time.Now()
		w := e.startWaiter(Equal(1))
		looks := map[time.Duration]int{}
		for time.Since(start) < 10*time.Second {
			_, due := e.polled()
			time.Sleep(time.Until(due))
			synctest.Wait()
			for _, d := range []time.Duration{time.Millisecond, time.Second, 10 * time.Second} {
				if time.Since(start) <= d {
					looks[d]++
				}
			}
		}
		assert.Less(t, looks[time.Millisecond], 20)
		assert.Less(t, looks[time.Second], 90)
		assert.Less(t, looks[10*time.Second], 290)
		assert.Greater(t, looks[10*time.Second], 200)
		require.True(t, e.cancelWaiter(w))
		require.NoError(t, e.Close())
	})
}

// Where all changes are reported, nothing is polled.
func TestNoPolling(t *testing.T) {
	for _, cfg := range []settings{
		{},
		{Config{Publishers: bothPublish}, openSoft(t)},
		{Config{}, newAdapter(openSoft(t))},
	} {
		e := open(t, cfg.dev, cfg.Config)
		w := e.startWaiter(Equal(1))
		polling, _ := e.polled()
		assert.False(t, polling)
		assert.False(t, e.timer.Stop())
		require.True(t, e.cancelWaiter(w))
	}
}

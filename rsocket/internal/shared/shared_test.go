package shared

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The last user closes a value, and the next one opens another when that has been done.
func TestOneAtATime(t *testing.T) {
	opened, closing, goOn := 0, make(chan int), make(chan struct{})
	values := Values[int]{
		Open:  func(string) (int, error) { opened++; return opened, nil },
		Close: func(n int) error { closing <- n; <-goOn; return nil },
		Dead:  func(int) bool { return false },
	}
	first, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	again, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	require.Same(t, first, again)
	first.Retain()
	for range 2 {
		require.NoError(t, first.Release())
	}
	go func() { _ = again.Release() }()
	require.Equal(t, 1, <-closing)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	_, err = values.Acquire(ctx, "a")
	require.ErrorIs(t, err, context.Canceled)
	other, err := values.Acquire(context.Background(), "b")
	require.NoError(t, err)

	acquired := make(chan *Ref[int])
	go func() {
		r, err := values.Acquire(context.Background(), "a")
		if err != nil {
			panic(err)
		}
		acquired <- r
	}()
	select {
	case <-acquired:
		t.Fatal("two values of one name are open")
	case goOn <- struct{}{}: // the first one is closed
	}
	third := <-acquired
	require.Equal(t, 3, third.Value)
	for _, r := range []*Ref[int]{other, third} {
		go func() { _ = r.Release() }()
		require.Equal(t, r.Value, <-closing)
		goOn <- struct{}{}
		<-r.closed
	}
}

// A value that nobody uses, but that has something left to do, is taken back, unless it is dead.
func TestTakenBack(t *testing.T) {
	opened, closed, dead := 0, []int{}, false
	var drained chan struct{}
	waiting := make(chan int)
	values := Values[int]{
		Open:    func(string) (int, error) { opened++; return opened, nil },
		Close:   func(n int) error { closed = append(closed, n); return nil },
		Dead:    func(n int) bool { return n == 1 && dead },
		Drained: func(n int) <-chan struct{} { waiting <- n; return drained },
	}
	drained = make(chan struct{})
	release := func(r *Ref[int]) (done chan struct{}) {
		done = make(chan struct{})
		go func() {
			defer close(done)
			assert.NoError(t, r.Release())
		}()
		require.Equal(t, r.Value, <-waiting)
		return done
	}
	acquire := func() *Ref[int] {
		r, err := values.Acquire(context.Background(), "a")
		require.NoError(t, err)
		return r
	}
	first := acquire()
	for range 3 {
		done := release(first)
		require.Same(t, first, acquire())
		<-done // it is not the last user any more
	}
	require.Empty(t, closed)

	done := release(first)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	dead = true
	_, err := values.Acquire(ctx, "a")
	require.ErrorIs(t, err, context.Canceled)
	close(drained)
	<-done
	require.Equal(t, []int{1}, closed)
	second := acquire()
	require.Equal(t, 2, second.Value)
	<-release(second)
	require.Equal(t, []int{1, 2}, closed)
}

// A value that is dead is closed behind its last user, and others get another one.
func TestDead(t *testing.T) {
	opened, closed := 0, []int{}
	values := Values[int]{
		Open:  func(string) (int, error) { opened++; return opened, nil },
		Close: func(n int) error { closed = append(closed, n); return nil },
		Dead:  func(n int) bool { return n == 1 },
	}
	first, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	second, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	require.Equal(t, 2, second.Value)
	require.NoError(t, first.Release())
	third, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	require.Same(t, second, third)
	require.NoError(t, third.Release())
	require.Equal(t, []int{1}, closed)
	require.NoError(t, second.Release())
	require.Equal(t, []int{1, 2}, closed)
	require.Equal(t, 2, opened)
}

// A value that takes long to open delays nobody who asks for another, and those who do not want to
// wait for it give up. It is closed if all of them have.
func TestSlowOpen(t *testing.T) {
	goOn, closed := make(chan error), make(chan string, 4)
	values := Values[string]{
		Open: func(name string) (string, error) {
			if name == "slow" {
				return name, <-goOn
			}
			return name, nil
		},
		Close: func(name string) error { closed <- name; return nil },
		Dead:  func(string) bool { return false },
	}
	ctx, stop := context.WithCancelCause(context.Background())
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			_, err := values.Acquire(ctx, "slow")
			assert.ErrorIs(t, err, errGaveUp)
		})
	}
	for values.users("slow") < 3 {
		runtime.Gosched()
	}
	quick, err := values.Acquire(context.Background(), "quick")
	require.NoError(t, err)
	require.NoError(t, quick.Release())
	require.Equal(t, "quick", <-closed)
	stop(errGaveUp)
	waiting.Wait()
	goOn <- nil
	require.Equal(t, "slow", <-closed)

	// Those who wait for the same value get it, or the same error.
	for _, want := range []error{nil, errGaveUp} {
		var refs [3]*Ref[string]
		for i := range refs {
			waiting.Go(func() {
				var err error
				refs[i], err = values.Acquire(context.Background(), "slow")
				assert.Equal(t, want, err)
			})
		}
		for values.users("slow") < 3 {
			runtime.Gosched()
		}
		goOn <- want
		waiting.Wait()
		for _, r := range refs {
			require.NoError(t, r.Release())
		}
	}
	require.Equal(t, "slow", <-closed)
	require.Empty(t, closed)
	require.Empty(t, values.refs)
}

var errGaveUp = errors.New("the caller gave up")

// users is the number of users of a value.
func (v *Values[T]) users(name string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r := v.refs[name]; r != nil {
		return r.users
	}
	return 0
}

// A set that keeps its values closes them in the end, in use or not. Those that have died meanwhile
// are closed with their last user.
func TestKeep(t *testing.T) {
	opened, closes := 0, map[int]int{}
	values := Values[int]{
		Open:  func(string) (int, error) { opened++; return opened, nil },
		Close: func(n int) error { closes[n]++; return errGaveUp },
		Dead:  func(n int) bool { return n == 1 || n == 2 && opened == 2 && closes[1] > 0 },
		Keep:  true,
	}
	acquire := func(want int) *Ref[int] {
		r, err := values.Acquire(context.Background(), "a")
		require.NoError(t, err)
		require.Equal(t, want, r.Value)
		return r
	}
	first := acquire(1)
	second := acquire(2) // 1 is dead
	require.Empty(t, closes)
	require.ErrorIs(t, first.Release(), errGaveUp)
	require.Equal(t, map[int]int{1: 1}, closes)
	require.NoError(t, second.Release())
	third := acquire(3) // 2 is dead, and has no user
	require.Equal(t, map[int]int{1: 1, 2: 1}, closes)
	require.NoError(t, third.Release())
	fourth := acquire(3)
	require.ErrorIs(t, values.End(), errGaveUp)
	require.Equal(t, map[int]int{1: 1, 2: 1, 3: 1}, closes)
	require.ErrorIs(t, fourth.Release(), errGaveUp)
	_, err := values.Acquire(context.Background(), "a")
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, values.End())
}

// Closing a value may release users of all of them, as a listener on several stacks does, and be called
// while a release waits for what a value has left to do.
func TestEndReleasesUsers(t *testing.T) {
	for _, keep := range []bool{false, true} {
		type value struct {
			once   sync.Once
			closed chan struct{}
		}
		var listener []*Ref[*value] // the users of a listener
		ended := sync.OnceFunc(func() {
			for _, r := range listener {
				assert.NoError(t, r.Release())
			}
		})
		busy, drained := make(chan struct{}), make(chan struct{})
		values := Values[*value]{
			Open: func(string) (*value, error) { return &value{closed: make(chan struct{})}, nil },
			Close: func(v *value) error {
				v.once.Do(func() { ended(); close(v.closed) })
				<-v.closed // as the first call
				return nil
			},
			Dead: func(*value) bool { return false },
			Drained: func(v *value) <-chan struct{} {
				select {
				case <-v.closed:
					return v.closed
				default:
				}
				close(busy)
				return drained
			},
			Keep: keep,
		}
		for _, name := range []string{"a", "b", "a"} {
			r, err := values.Acquire(context.Background(), name)
			require.NoError(t, err)
			listener = append(listener, r)
		}
		other, err := values.Acquire(context.Background(), "c")
		require.NoError(t, err)
		released := make(chan error)
		go func() { released <- other.Release() }()
		if !keep {
			<-busy // it waits
		}
		require.NoError(t, values.End())
		require.NoError(t, <-released)
		require.Empty(t, values.refs)
	}
}

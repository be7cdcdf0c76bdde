package shared

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The last user closes a value, and the next one opens another when that has been done.
func TestOneAtATime(t *testing.T) {
	opened, closing, goOn := 0, make(chan int), make(chan struct{})
	values := Values[int]{
		Open:  func(string) (int, error) { opened++; return opened, nil },
		Close: func(n int) { closing <- n; <-goOn },
		Dead:  func(int) bool { return false },
	}
	first, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	again, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	require.Same(t, first, again)
	first.Retain()
	for range 2 {
		first.Release()
	}
	go again.Release()
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
		go r.Release()
		require.Equal(t, r.Value, <-closing)
		goOn <- struct{}{}
		<-r.closed
	}
}

// A value that is dead is closed behind its last user, and others get another one.
func TestDead(t *testing.T) {
	opened, closed := 0, []int{}
	values := Values[int]{
		Open:  func(string) (int, error) { opened++; return opened, nil },
		Close: func(n int) { closed = append(closed, n) },
		Dead:  func(n int) bool { return n == 1 },
	}
	first, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	second, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	require.Equal(t, 2, second.Value)
	first.Release()
	third, err := values.Acquire(context.Background(), "a")
	require.NoError(t, err)
	require.Same(t, second, third)
	third.Release()
	require.Equal(t, []int{1}, closed)
	second.Release()
	require.Equal(t, []int{1, 2}, closed)
	require.Equal(t, 2, opened)
}

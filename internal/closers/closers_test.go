package closers

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClose(t *testing.T) {
	var l List
	var order []int
	busy := errors.New("busy")
	var second error = busy
	remove := make([]func(), 4)
	for i := range remove {
		remove[i] = l.Add(func() error {
			order = append(order, i)
			if i == 1 {
				return second
			}
			remove[i]() // what closes itself may say so too
			return nil
		})
	}
	remove[3]()
	require.ErrorIs(t, l.Close(), busy)
	assert.Equal(t, []int{2, 1}, order, "the latest first, and none behind one that fails")
	second = nil
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	assert.Equal(t, []int{2, 1, 1, 0}, order)
}

func TestWait(t *testing.T) {
	assert.True(t, Wait(time.Hour, func() {}))
	release, ended := make(chan struct{}), make(chan struct{})
	assert.False(t, Wait(time.Nanosecond, func() {
		<-release
		close(ended)
	}))
	close(release)
	<-ended
}

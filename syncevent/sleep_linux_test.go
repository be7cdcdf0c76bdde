package syncevent

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// readable reports whether the engine's notification has come.
func (s *tasks) readable() bool {
	s.t.Helper()
	fd, err := s.engine.NotificationFD()
	require.NoError(s.t, err)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	require.NoError(s.t, err)
	return n > 0
}

// Waits in flight are nothing to do; those that are over, and other tasks that
// were submitted, are.
func TestNotification(t *testing.T) {
	e := open(t, nil, Config{})
	s := newTasks(t, 2).run()
	wait, get := must(s.waits.Wait(e, Equal(1))), must(s.gets.Get(e))
	s.submit(wait)
	s.progress()
	require.NoError(t, s.engine.Arm())
	assert.False(t, s.readable())
	require.NoError(t, e.Set(1))
	assert.True(t, s.readable())
	require.NoError(t, s.engine.Clear())
	require.NoError(t, s.engine.Arm())
	assert.True(t, s.readable(), "it was not handled yet")
	require.NoError(t, s.engine.Clear())
	assert.Equal(t, []string{"wait 1"}, s.progress())

	require.NoError(t, s.engine.Arm())
	assert.False(t, s.readable())
	s.submit(get)
	assert.True(t, s.readable(), "submitted while armed")
	require.NoError(t, s.engine.Clear())
	require.NoError(t, s.engine.Arm())
	assert.True(t, s.readable())
	require.NoError(t, s.engine.Clear())
	assert.Equal(t, []string{"get 1"}, s.progress())
	s.free(wait, get)
}

// What one Progress leaves to the next is something to do.
func TestNotificationOfTheRest(t *testing.T) {
	const n = 2 * progressBudget
	e := open(t, nil, Config{})
	for name, alloc := range map[string]func(*tasks) submitter{
		"gets":  func(s *tasks) submitter { return must(s.gets.Get(e)) },
		"waits": func(s *tasks) submitter { return must(s.waits.Wait(e, Equal(0))) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newTasks(t, n).run()
			var list []submitter
			for range n {
				list = append(list, alloc(s))
			}
			s.submit(list...)
			require.Empty(t, s.records)
			_, err := s.engine.Progress()
			require.NoError(t, err)
			require.NotEmpty(t, s.records)
			require.Less(t, len(s.records), n)
			require.NoError(t, s.engine.Arm())
			assert.True(t, s.readable())
			require.NoError(t, s.engine.Clear())
			assert.Len(t, s.progress(), n)
			s.free(list...)
		})
	}
}

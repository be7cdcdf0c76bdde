package rdma_test

import (
	"errors"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sleepUntil is pollUntil in event mode: it calls Progress only when the engine's
// descriptor is readable.
func (s *stress) sleepUntil(done func(events int) bool) {
	fds := []unix.PollFd{{Fd: int32(must(s.engine.NotificationFD())), Events: unix.POLLIN}}
	for {
		n, err := s.engine.Progress()
		require.NoError(s.t, err)
		if done(n) {
			return
		}
		require.NoError(s.t, s.engine.Arm())
		for n, err = 0, unix.EINTR; errors.Is(err, unix.EINTR); {
			n, err = unix.Poll(fds, int(roundTimeout.Milliseconds()))
		}
		require.NoError(s.t, err)
		require.Equal(s.t, 1, n, "an event was lost:\n%v\n%v", s.ends[0], s.ends[1])
		require.NoError(s.t, s.engine.Clear())
	}
}

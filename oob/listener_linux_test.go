package oob_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

// What had been handed to the engine when the Listener was closed does not happen.
func TestListenerClosedBeforeTheEngineRuns(t *testing.T) {
	s := newObservedServer(t, waysToTest[0], oob.Config{}, rdma.Config{})
	require.NoError(t, s.listener.Serve(s.rdma, oob.Offer{}, func(string, *oob.Answer) error {
		assert.Fail(t, "it was admitted")
		return nil
	}))
	require.NoError(t, s.rdma.Start())
	for busy := true; busy; {
		n, err := s.engine.Progress()
		require.NoError(t, err)
		busy = n > 0 || s.rdma.State() != pe.Running
	}
	require.NoError(t, s.engine.Arm())
	fd, err := s.engine.NotificationFD()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	client := newProgram(t, must(oob.Parse(s.way())), oob.Config{Name: "client", Peer: "server"}, rdma.Config{})
	client.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			client.peer.Connect(client.rdma, nil)
		}
	})
	visited := make(chan error)
	go func() { visited <- client.run(ctx) }()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(5*time.Minute/time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, 1, n, "the client waits for the engine")
	require.NoError(t, s.listener.Close())
	running, stop := context.WithCancel(t.Context())
	require.NoError(t, s.engine.Do(stop)) // behind the client
	assert.ErrorIs(t, s.engine.Run(running), context.Canceled)
	cancel()
	assert.ErrorIs(t, <-visited, context.Canceled)
	assert.Empty(t, s.reports)
}

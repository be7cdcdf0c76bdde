//go:build unix

package samples

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/syncevent"
)

// A responder that waits on its event stops at a signal, when time is up, and when
// its peer fails. The peer here is a program that connects, and never sets.
func TestStopWhileWaiting(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		stop func(responder, peer *process)
		code int
		text string
	}{
		"Ctrl-C":    {nil, func(responder, _ *process) { responder.signal(syscall.SIGINT) }, 130, "interrupted by signal: interrupt"},
		"timeout":   {[]string{"-timeout", "10s"}, func(_, _ *process) {}, 1, "gave up after 10s (-timeout) while waiting for rdma_sync_event_requester"},
		"peer ends": {nil, func(_, peer *process) { peer.signal(syscall.SIGTERM) }, 1, "the peer has failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scratch := t.TempDir()
			in := func(name string) string { return filepath.Join(scratch, name) }
			responder := start(t, append([]string{"rdma_sync_event_responder", "-ld", in("a"), "-re", in("b"), "-m", in("m")}, test.args...)...)
			peer := start(t, "rdma_receive", "-ld", in("b"), "-re", in("a"))
			responder.await("the context is Running")
			responder.await("waiting for rdma_sync_event_requester to report its end")
			test.stop(responder, peer)
			assert.Equal(t, test.code, responder.code())
			assert.Contains(t, responder.lastLine(), test.text)
			assert.Empty(t, responder.stdout.String())
			if name != "peer ends" {
				peer.signal(syscall.SIGTERM)
			}
			assert.Equal(t, 143, peer.code())
			assert.Empty(t, list(t, scratch))
		})
	}
}

// A requester whose answer never comes stops at a signal, when time is up, and
// when its peer is gone. Short: not when time is up, which takes ten seconds.
func TestStopWhileRequesting(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		stop func(requester *process, peer *silentResponder)
		code int
		text string
	}{
		"Ctrl-C":       {nil, func(requester *process, _ *silentResponder) { requester.signal(syscall.SIGINT) }, 130, "interrupted by signal: interrupt"},
		"timeout":      {[]string{"-timeout", "10s"}, func(*process, *silentResponder) {}, 1, "gave up after 10s (-timeout) while waiting for the tasks to complete"},
		"peer is gone": {nil, func(_ *process, peer *silentResponder) { peer.loseAll() }, 1, "transport retry count exceeded"},
	} {
		if testing.Short() && name == "timeout" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scratch := t.TempDir()
			in := func(name string) string { return filepath.Join(scratch, name) }
			requester := start(t, append([]string{"rdma_sync_event_requester", "-ld", in("b"), "-re", in("a"), "-m", in("m")}, test.args...)...)
			peer := newSilentResponder(t, in("a"), in("b"), in("m"))
			v, err := peer.event.Wait(t.Context(), syncevent.Greater(0))
			require.NoError(t, err)
			assert.EqualValues(t, 0xd0ca, v)
			test.stop(requester, peer)
			assert.Equal(t, test.code, requester.code())
			assert.Contains(t, requester.lastLine(), test.text)
			assert.NoFileExists(t, in("b"))
		})
	}
}

// silentResponder is a responder that never answers.
type silentResponder struct {
	t     *testing.T
	dev   *soft.Device
	event *syncevent.Event
}

func newSilentResponder(t *testing.T, ours, theirs, resource string) *silentResponder {
	m := &silentResponder{t: t}
	var err error
	m.dev, err = soft.Open(soft.Config{})
	require.NoError(t, err)
	m.event, err = syncevent.New(m.dev, syncevent.Config{Publishers: syncevent.PublishRemote})
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	r, err := rdma.New(m.dev, rdma.Config{Engine: engine, Permissions: mmap.RemoteRead | mmap.RemoteWrite})
	require.NoError(t, err)
	require.NoError(t, r.Start())
	m.connect(r, ours, theirs, resource)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.NoError(t, errors.Join(r.Close(), engine.Close(), m.event.Close(), m.dev.Close()))
	})
	return m
}

// connect exchanges descriptors through files.
func (m *silentResponder) connect(r *rdma.Connections, ours, theirs, resource string) {
	conn, desc, err := r.Export()
	require.NoError(m.t, err)
	event, err := m.event.Export()
	require.NoError(m.t, err)
	require.NoError(m.t, descriptor.WriteFile(resource, []byte(descriptor.Armor(event))))
	require.NoError(m.t, descriptor.WriteFile(ours, []byte(descriptor.Armor(desc))))
	require.Eventually(m.t, func() bool {
		desc, err = descriptor.ReadFile(theirs)
		return err == nil
	}, 5*time.Minute, time.Millisecond)
	require.NoError(m.t, conn.Connect(desc))
}

func (m *silentResponder) loseAll() { require.NoError(m.t, m.dev.SetFaults(soft.Faults{Loss: 1})) }

//go:build linux && cgo && verbs

package ibverbs_test

import (
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// begin runs a command that is to take a while.
func begin(t *testing.T, command ...string) (ended <-chan error) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	require.NoError(t, cmd.Start())
	c := make(chan error, 1)
	go func() { c <- cmd.Wait() }()
	return c
}

func large(a, b *end) verbs.SendWR {
	return with(writeTo(a, b), func(wr *verbs.SendWR) { wr.Flags, wr.SGL = verbs.FlagSignaled, a.mem.sgl(0, 1<<20) })
}

// The kernel's rxe has no way to take a device from a program: its deletion waits
// until the program closes it, and what is under way goes on. The program gets an
// event, so that it closes the device.
func TestDeleted(t *testing.T) {
	requireGuest(t)
	var ended <-chan error
	t.Run("transfer", func(t *testing.T) {
		adapter := openAdapter(t)
		a, b := pair(t, adapter, openSoft(t, soft.Faults{}), config{})
		received := events(t, adapter)
		a.send(large(a, b), large(a, b))
		ended = begin(t, "rdma", "link", "delete", "rxe0")
		awaitEvent(t, received, verbs.EventDeviceFatal)
		late := events(t, adapter)
		require.Len(t, late, 1)
		assert.Equal(t, verbs.Event{Type: verbs.EventDeviceFatal}, <-late)
		for range 20 {
			a.send(large(a, b))
			require.Equal(t, verbs.StatusSuccess, a.await(b).Status)
		}
		assert.Empty(t, ended)
	})
	require.NoError(t, wait(t, ended, "the end of the deletion"))
	_, err := ibverbs.Driver{}.Open("rxe0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

// completes waits for a completion. There is none if rxe (6.1) has stopped: that it has no way
// left to send sometimes leaves what is under way as it is, with no packet and no timer.
func completes(t *testing.T, e *end) bool {
	t.Helper()
	for began := time.Now(); ; runtime.Gosched() {
		if e.poll(); len(e.wcs) > 0 {
			return true
		}
		passed := time.Since(began)
		require.Less(t, passed, patience)
		if passed < 20*time.Second {
			continue
		}
		counters, err := e.dev.Counters()
		require.NoError(t, err)
		if slices.ContainsFunc(counters, func(c verbs.Counter) bool { return c.Name == "send_err" && c.Value > 0 }) {
			t.Log("rxe has stopped after an error in sending")
			return false
		}
	}
}

// The interface goes in the middle of a transfer: what is under way fails, the
// program gets an event, and all can be closed.
func TestUnplugged(t *testing.T) {
	requireGuest(t)
	var ended <-chan error
	t.Run("transfer", func(t *testing.T) {
		adapter := openAdapter(t)
		a, b := pair(t, adapter, openSoft(t, soft.Faults{}), config{modify: func(a *verbs.QPAttr) { a.RetryCount = 1 }})
		a.send(large(a, b), large(a, b))
		require.Equal(t, verbs.StatusSuccess, a.await(b).Status)
		received := events(t, adapter)
		ended = begin(t, "/bin/ip", "link", "delete", "v0")
		for {
			a.send(large(a, b))
			if !completes(t, a) {
				break
			}
			if wc := a.await(nil); wc.Status != verbs.StatusSuccess {
				// Either nobody answers, or rxe has no way left to send.
				assert.Contains(t, []verbs.Status{verbs.StatusRetryExceeded, verbs.StatusLocalQPOperationError}, wc.Status, "%v", wc.Status)
				break
			}
		}
		awaitEvent(t, received, verbs.EventDeviceFatal)
	})
	require.NoError(t, wait(t, ended, "the end of the interface"))
	_, err := ibverbs.Driver{}.Open("rxe0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

//go:build linux && cgo && verbs

package ibverbs_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// notified gives the end a completion callback.
func (e *end) notified() <-chan struct{} {
	c := make(chan struct{}, 100)
	e.cq.OnCompletion(func() { c <- struct{}{} })
	return c
}

func wait[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came", what)
	}
	panic("unreachable")
}

func (e *end) arm(solicited bool) bool {
	e.t.Helper()
	armed, err := e.cq.Arm(solicited)
	require.NoError(e.t, err)
	return armed
}

func TestGuestArm(t *testing.T) { bothWays(t, testArm) }

func testArm(t *testing.T, d verbs.Device) {
	a, b := pair(t, d, d, config{})
	notifications := b.notified()
	send := func(flags verbs.SendFlags) {
		b.receive(verbs.RecvWR{ID: 1, SGL: b.mem.sgl(0, 8)})
		a.send(verbs.SendWR{Op: verbs.OpSend, Flags: flags | verbs.FlagSignaled, SGL: a.mem.sgl(0, 8)})
		a.await(nil)
	}
	for range 100 {
		require.True(t, b.arm(false))
		send(0)
		wait(t, notifications, "a notification of a receive")
		b.await(nil)
	}
	assert.Empty(t, notifications, "one notification per arming")

	send(0)
	require.False(t, b.arm(false), "the queue holds a completion")
	send(0)
	require.False(t, b.arm(false))
	b.await(nil)
	b.await(nil)
	b.poll()
	require.Empty(t, b.wcs)

	for len(notifications) > 0 {
		<-notifications
	}
	require.True(t, b.arm(true))
	send(0)
	send(verbs.FlagSolicited)
	wait(t, notifications, "a notification of a solicited message")
	b.await(nil)
	b.await(nil)
}

// No completion is without its notification, however the two race.
func TestGuestArmRace(t *testing.T) { bothWays(t, testArmRace) }

func testArmRace(t *testing.T, d verbs.Device) {
	a, b := pair(t, d, d, config{})
	notifications := b.notified()
	const messages = 2000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range messages {
			a.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpWriteImm, Flags: verbs.FlagSignaled, Imm: uint32(i), RemoteAddr: b.mem.mr.Addr(), RKey: b.mem.mr.RKey()})
			a.await(nil)
		}
	}()
	for range 32 {
		b.receive(verbs.RecvWR{})
	}
	for got := uint32(0); got < messages; {
		var wc [8]verbs.WC
		n, err := b.cq.Poll(wc[:])
		require.NoError(t, err)
		for _, c := range wc[:n] {
			require.Equal(t, got, c.Imm)
			got++
			b.receive(verbs.RecvWR{})
		}
		if n == 0 && b.arm(false) {
			wait(t, notifications, "a notification")
		}
	}
	<-done
}

// events collects a device's asynchronous events.
func events(t testing.TB, d verbs.Device) <-chan verbs.Event {
	c := make(chan verbs.Event, 1000)
	t.Cleanup(d.SubscribeEvents(func(e verbs.Event) { c <- e }))
	return c
}

func awaitEvent(t testing.TB, c <-chan verbs.Event, want verbs.EventType) verbs.Event {
	t.Helper()
	for {
		if e := wait(t, c, want.String()); e.Type == want {
			return e
		}
	}
}

func run(t testing.TB, command ...string) {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", command, out)
}

func TestGuestPortEvents(t *testing.T) {
	d := openAdapter(t)
	c := events(t, d)
	run(t, "/bin/ip", "address", "add", "10.9.9.9/24", "dev", "v0")
	awaitEvent(t, c, verbs.EventGIDChange)
	run(t, "/bin/ip", "address", "del", "10.9.9.9/24", "dev", "v0")
	awaitEvent(t, c, verbs.EventGIDChange)

	// The device follows the interface's carrier, which both ends make.
	run(t, "/bin/ip", "-n", "s", "link", "set", "v1", "down")
	assert.Equal(t, 1, awaitEvent(t, c, verbs.EventPortError).Port)
	port, err := d.QueryPort(1)
	require.NoError(t, err)
	assert.Equal(t, verbs.PortDown, port.State)
	run(t, "/bin/ip", "-n", "s", "link", "set", "v1", "up")
	awaitEvent(t, c, verbs.EventPortActive)
	// The kernel has dropped the global IPv6 address with the link.
	run(t, "/bin/ip", "-n", "s", "address", "add", "fd00::2/64", "dev", "v1", "nodad")
}

func TestGuestSRQLimit(t *testing.T) {
	d := openAdapter(t)
	a, b := pair(t, d, d, config{srq: true})
	c := events(t, d)
	b.receive(make([]verbs.RecvWR, 4)...)
	require.NoError(t, b.srq.SetLimit(3))
	require.ErrorIs(t, b.srq.SetLimit(-1), verbs.ErrInvalid)
	require.ErrorIs(t, b.srq.SetLimit(1000), verbs.ErrInvalid)
	for range 2 {
		a.send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled})
		a.await(nil)
	}
	assert.Equal(t, b.srq, awaitEvent(t, c, verbs.EventSRQLimitReached).SRQ)
}

// A queue that overflows says so, and takes its queue pairs with it.
func TestGuestOverrun(t *testing.T) { bothWays(t, testOverrun) }

func testOverrun(t *testing.T, d verbs.Device) {
	a, b := pair(t, d, d, config{depth: 4, modify: shortTimeout})
	c := events(t, d)
	notifications := b.notified()
	for range 16 * b.cq.Capacity() {
		n, err := b.qp.PostRecv([]verbs.RecvWR{{}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		a.send(verbs.SendWR{Op: verbs.OpWriteImm, Flags: verbs.FlagSignaled, RemoteAddr: b.mem.mr.Addr(), RKey: b.mem.mr.RKey()})
		if a.await(nil).Status != verbs.StatusSuccess || len(c) > 0 {
			break
		}
	}
	assert.Equal(t, b.cq, awaitEvent(t, c, verbs.EventCQError).CQ)
	_, err := b.cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrOverrun)
	require.False(t, b.arm(false))
	assert.Empty(t, notifications)
	attr, err := b.qp.Query()
	require.NoError(t, err)
	assert.Equal(t, verbs.QPError, attr.State)
}

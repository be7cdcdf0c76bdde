//go:build linux && cgo && verbs

package rdmacm

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// A machine without RDMA lacks the library, or the kernel's part of it.
func TestOpenWithoutRDMA(t *testing.T) {
	if _, err := os.Stat("/dev/infiniband/rdma_cm"); err == nil {
		t.Skip("this machine has a connection manager")
	}
	_, err := Open(fakeDevice{}, func(verbs.CMEvent) {})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.ErrorContains(t, err, "rxe0")
	assert.Regexp(t, "librdmacm1|rdma_ucm", err.Error())
	t.Log(err)
}

func TestChannelErrors(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{
		syscall.ENODEV: verbs.ErrNotSupported, syscall.ENOENT: verbs.ErrNotSupported,
		syscall.EACCES: fs.ErrPermission, syscall.EMFILE: verbs.ErrLimit,
	} {
		lib := &fakeLibrary{fails: map[string]error{"channel": errno}}
		_, err := open(fakeDevice{}, func(verbs.CMEvent) {}, lib)
		require.ErrorIs(t, err, want)
		require.ErrorIs(t, err, errno)
		lib.channels[0].destroy()
	}
}

// What each event of the library becomes, at an active end.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		event  rawEvent
		want   error
		step   verbs.CMStep
		reason verbs.CMRejectReason
		exit   bool // at once
	}{
		{rawEvent{kind: eventRejected, status: 28}, verbs.ErrRejected, verbs.CMStepConnect, verbs.CMRejectConsumer, true},
		{rawEvent{kind: eventRejected, status: 8}, verbs.ErrNotListening, verbs.CMStepConnect, verbs.CMRejectInvalidServiceID, true},
		{rawEvent{kind: eventRejected, status: 10}, verbs.ErrRejected, verbs.CMStepConnect, verbs.CMRejectStaleConnection, false},
		{rawEvent{kind: eventUnreachable, status: errTimedOut}, verbs.ErrUnreachable, verbs.CMStepConnect, 0, true},
		{rawEvent{kind: eventConnectError, status: -int(syscall.ENOMEM)}, verbs.ErrLimit, verbs.CMStepConnect, 0, true},
	} {
		t.Run(fmt.Sprintf("event %d, status %d", c.event.kind, c.event.status), func(t *testing.T) {
			r := newRig(t)
			id, raw := r.dial(verbs.RC, true)
			c.event.id = raw
			c.event.param.PrivateData = []byte("why")
			r.main(c.event)
			e := r.next(verbs.CMFailed)
			require.Same(t, id, e.ID)
			var err *verbs.CMError
			require.ErrorAs(t, e.Err, &err)
			require.ErrorIs(t, err, c.want)
			if c.event.status < 0 {
				require.ErrorIs(t, err, syscall.Errno(-c.event.status))
			}
			assert.Equal(t, "why", string(err.PrivateData))
			err.PrivateData, err.Err = nil, nil
			assert.Equal(t, verbs.CMError{Step: c.step, Local: id.LocalAddr(), Remote: id.RemoteAddr(), Reason: c.reason}, *err)
			require.ErrorIs(t, id.Establish(), verbs.ErrState)
			if c.exit {
				r.next(verbs.CMTimewaitExit)
			}
			r.main(rawEvent{kind: eventTimewaitExit, id: raw}, rawEvent{kind: eventDeviceRemoval, id: raw})
			if !c.exit {
				r.next(verbs.CMTimewaitExit)
			}
			require.Same(t, id, r.next(verbs.CMDeviceRemoved).ID)
		})
	}
}

// Service ID resolution has statuses of its own.
func TestFailuresOfDatagrams(t *testing.T) {
	for status, want := range map[int]error{1: verbs.ErrNotListening, 2: verbs.ErrRejected, 3: verbs.ErrRejected, errTimedOut: verbs.ErrUnreachable} {
		r := newRig(t)
		_, raw := r.dial(verbs.UD, true)
		r.main(rawEvent{kind: eventUnreachable, status: status, id: raw})
		require.ErrorIs(t, r.next(verbs.CMFailed).Err, want)
		r.sync()
		assert.Empty(t, r.events, "a queue pair of UD has no time-wait")
	}
}

func TestResolveFails(t *testing.T) {
	dial := verbs.CMDial{Addr: netip.MustParseAddrPort("10.0.0.2:7")}
	for _, c := range []struct {
		name  string
		event rawEvent
		want  error
	}{
		{"no neighbour", rawEvent{kind: eventAddrError, status: -int(syscall.EHOSTUNREACH)}, verbs.ErrUnreachable},
		{"no route", rawEvent{kind: eventAddrError, status: -int(syscall.ENETUNREACH)}, verbs.ErrNoRoute},
		{"no device", rawEvent{kind: eventAddrError, status: -int(syscall.ENODEV)}, verbs.ErrNoRoute},
		{"no path", rawEvent{kind: eventRouteError, status: errTimedOut}, verbs.ErrUnreachable},
		{"another device", rawEvent{kind: eventAddrResolved}, verbs.ErrNoRoute},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			id, err := r.cm.Dial(dial)
			require.NoError(t, err)
			raw := r.lib.channels[0].ids[0]
			raw.path.device = "mlx5_1"
			c.event.id = raw
			r.main(c.event)
			e := r.next(verbs.CMFailed)
			require.Same(t, id, e.ID)
			require.ErrorIs(t, e.Err, c.want)
			if c.event.kind == eventAddrResolved {
				assert.ErrorContains(t, e.Err, `"mlx5_1"`)
				assert.ErrorContains(t, e.Err, `"rxe0" with addresses [fe80::1 10.0.0.1]`)
			}
			require.ErrorIs(t, id.Connect(verbs.CMParam{QPN: 17}), verbs.ErrState)
			require.NoError(t, id.Close())
		})
	}
	r := newRig(t)
	for errno, want := range map[syscall.Errno]error{
		syscall.ENETUNREACH: verbs.ErrNoRoute, syscall.EADDRINUSE: verbs.ErrInUse,
	} {
		r.lib.fail("resolve address", errno)
		_, err := r.cm.Dial(dial)
		var failed *verbs.CMError
		require.ErrorAs(t, err, &failed)
		assert.Equal(t, verbs.CMStepResolve, failed.Step)
		require.ErrorIs(t, err, want)
	}
}

// A neighbour that does not answer at once is asked for again.
func TestResolveAgain(t *testing.T) {
	r := newRig(t)
	id, err := r.cm.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort("10.0.0.2:7")})
	require.NoError(t, err)
	raw := r.lib.channels[0].ids[0]
	silent := rawEvent{kind: eventAddrError, id: raw, status: -int(syscall.ETIMEDOUT)}
	r.main(silent, silent)
	r.lib.wait(t, "resolve address", 3)
	r.main(rawEvent{kind: eventAddrResolved, id: raw}, rawEvent{kind: eventRouteResolved, id: raw})
	r.next(verbs.CMResolved)
	require.NoError(t, id.Close())

	id, err = r.cm.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort("10.0.0.2:7")})
	require.NoError(t, err)
	silent.id = r.lib.channels[0].ids[1]
	r.lib.fail("resolve address", syscall.ENETUNREACH)
	r.main(silent)
	require.ErrorIs(t, r.next(verbs.CMFailed).Err, verbs.ErrNoRoute)
	require.NoError(t, id.Close())
	r.lib.fail("resolve address", nil)

	id, err = r.cm.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort("10.0.0.2:7")})
	require.NoError(t, err)
	id.(*connectionID).resolvesUntil = time.Now()
	silent.id = r.lib.channels[0].ids[2]
	r.main(silent)
	require.ErrorIs(t, r.next(verbs.CMFailed).Err, verbs.ErrUnreachable)
	require.NoError(t, id.Close())
}

func TestActiveEnd(t *testing.T) {
	r := newRig(t)
	id, raw := r.dial(verbs.RC, true)
	assert.Equal(t, verbs.CMParam{QPN: 17, ResponderResources: 5, InitiatorDepth: 8}, raw.with, "the device has 8")
	port, gid := id.PortGID()
	assert.Equal(t, []int{1, 2}, []int{port, gid}, "RoCEv2 before RoCEv1")
	_, _, err := id.Attr(verbs.QPReadyToReceive)
	require.ErrorIs(t, err, verbs.ErrState)
	r.main(rawEvent{kind: eventConnectResponse, id: raw, param: verbs.CMParam{QPN: 99}})
	assert.EqualValues(t, 99, r.next(verbs.CMConnectResponse).Param.QPN)
	attr, _, err := id.Attr(verbs.QPReadyToReceive)
	require.NoError(t, err)
	assert.Equal(t, verbs.QPAttr{State: verbs.QPReadyToReceive, MaxDestReadAtomic: 5, MaxInitReadAtomic: 8, MinRNRTimer: minRNRTimer}, attr,
		"what was asked for, though the peer says more")
	require.NoError(t, id.Establish())
	r.main(rawEvent{kind: eventAddrChange, id: raw})
	r.next(verbs.CMAddressChanged)

	// The kernel leaves it to the program to answer the peer.
	r.main(rawEvent{kind: eventDisconnected, id: raw})
	r.next(verbs.CMDisconnected)
	assert.Equal(t, []string{"disconnect"}, r.lib.last(1))
	require.ErrorIs(t, id.Disconnect(), verbs.ErrState)
	r.main(rawEvent{kind: eventDisconnected, id: raw}, rawEvent{kind: eventTimewaitExit, id: raw}, rawEvent{kind: eventTimewaitExit, id: raw})
	r.next(verbs.CMTimewaitExit)
	r.sync()
	assert.Empty(t, r.events)
}

// Peers that do not answer delay no call but the manager's Close.
func TestSilentPeers(t *testing.T) {
	r := newRig(t)
	silent, answer := context.WithCancel(t.Context())
	defer answer() // also if the test fails
	for range maxDestroying + 3 {
		id, raw := r.dial(verbs.RC, true)
		raw.silent = silent.Done()
		require.NoError(t, id.Close())
	}
	r.dial(verbs.RC, true) // waits for an event
	closed := make(chan error, 1)
	go func() { closed <- r.cm.Close() }()
	r.lib.wait(t, "destroy", maxDestroying)
	assert.Empty(t, closed, "nothing may outlive the manager")
	answer()
	require.NoError(t, <-closed)
	r.lib.wait(t, "destroy", maxDestroying+4)
	assert.Equal(t, []string{"destroy channel"}, r.lib.last(1))
}

// What is closed reports nothing, be it under way already.
func TestClosedReportsNothing(t *testing.T) {
	r := newRig(t)
	a, raw := r.dial(verbs.RC, true)
	require.NoError(t, a.Close())
	r.main(rawEvent{kind: eventConnectResponse, id: raw})
	r.sync()
	assert.Empty(t, r.events)
	_, raw = r.dial(verbs.RC, true)
	require.NoError(t, r.cm.Close())
	assert.Equal(t, []string{"destroy", "destroy channel"}, r.lib.last(2))
	r.lib.channels[0].events = append(r.lib.channels[0].events, rawEvent{kind: eventConnectResponse, id: raw})
	assert.False(t, r.cm.(*manager).handleNext(r.lib.channels[0]))
	assert.Empty(t, r.events)
}

// request has a request come to the latest listener.
func (r *rig) request(device string) *fakeID {
	ch := r.lib.channels[len(r.lib.channels)-1]
	raw := &fakeID{lib: r.lib, path: route{
		device: device, port: 1, sgid: verbs.GIDFromAddr(ownAddr),
		local: netip.AddrPortFrom(ownAddr, 7), remote: netip.MustParseAddrPort("10.0.0.2:50000"),
	}}
	ch.report(r.t, rawEvent{kind: eventConnectRequest, id: raw, listener: ch.ids[0], param: verbs.CMParam{QPN: 3, ResponderResources: 9, InitiatorDepth: 2}})
	return raw
}

func TestRequests(t *testing.T) {
	r := newRig(t)
	l, err := r.cm.Listen(verbs.CMListen{Backlog: 2})
	require.NoError(t, err)
	assert.EqualValues(t, 50_000, l.Addr().Port())

	raw := r.request("rxe0")
	e := r.next(verbs.CMConnectRequest)
	assert.Same(t, l, e.Listener)
	assert.Equal(t, netip.MustParseAddrPort("10.0.0.2:50000"), e.ID.RemoteAddr())
	require.NoError(t, e.ID.Accept(verbs.CMParam{QPN: 17, ResponderResources: 100, InitiatorDepth: 100}))
	assert.Equal(t, verbs.CMParam{QPN: 17, ResponderResources: 8, InitiatorDepth: 2}, raw.with, "what the device has, and what is offered")
	require.NoError(t, e.ID.Received())
	r.main(rawEvent{kind: eventEstablished, id: raw}, rawEvent{kind: eventEstablished, id: raw})
	require.Same(t, e.ID, r.next(verbs.CMEstablished).ID)

	// One for another device is rejected, and one that cannot be kept.
	r.request("mlx5_1")
	r.sync()
	assert.Equal(t, []string{"reject", "destroy"}, r.lib.last(2))
	r.lib.fail("migrate", syscall.ENOMEM)
	r.request("rxe0")
	r.sync()
	assert.Equal(t, []string{"migrate", "destroy"}, r.lib.last(2))
	r.lib.fail("migrate", nil)
	assert.Empty(t, r.events)

	// The third waits in the kernel until one of the first two has been dealt with.
	for _, deal := range []func(verbs.CMID){
		func(id verbs.CMID) { require.NoError(t, id.Accept(verbs.CMParam{QPN: 17})) },
		func(id verbs.CMID) { require.NoError(t, id.Close()) },
		func(id verbs.CMID) {
			require.NoError(t, id.Reject(nil))
			r.next(verbs.CMTimewaitExit)
		},
		func(id verbs.CMID) { // the peer has given up
			r.lib.fail("accept", syscall.EINVAL)
			require.ErrorIs(t, id.Accept(verbs.CMParam{QPN: 17}), verbs.ErrState)
			require.ErrorIs(t, r.next(verbs.CMFailed).Err, verbs.ErrRejected)
			r.next(verbs.CMTimewaitExit)
			r.lib.fail("accept", nil)
			require.ErrorIs(t, id.Accept(verbs.CMParam{QPN: 17}), verbs.ErrState)
		},
		func(id verbs.CMID) { // which the first call finds out
			r.lib.fail("attr", syscall.EINVAL)
			_, _, err := id.Attr(verbs.QPInitialized)
			require.ErrorIs(t, err, verbs.ErrState)
			require.ErrorIs(t, r.next(verbs.CMFailed).Err, verbs.ErrRejected)
			r.next(verbs.CMTimewaitExit)
			r.lib.fail("attr", nil)
			require.ErrorIs(t, id.Accept(verbs.CMParam{QPN: 17}), verbs.ErrState)
		},
	} {
		var waiting []verbs.CMID
		for range 3 {
			r.request("rxe0")
		}
		for range 2 {
			waiting = append(waiting, r.next(verbs.CMConnectRequest).ID)
		}
		ch := r.lib.channels[1]
		ch.mu.Lock()
		assert.Len(t, ch.events, 1)
		ch.mu.Unlock()
		deal(waiting[0])
		waiting = append(waiting, r.next(verbs.CMConnectRequest).ID)
		for _, id := range waiting[1:] {
			require.NoError(t, id.Close())
		}
	}

	ch := r.lib.channels[1]
	ch.report(t, rawEvent{kind: eventDeviceRemoval, id: ch.ids[0]})
	assert.Same(t, l, r.next(verbs.CMDeviceRemoved).Listener)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.NoError(t, e.ID.Disconnect(), "it stays")
}

func TestListenFails(t *testing.T) {
	r := newRig(t)
	for errno, want := range map[syscall.Errno]error{syscall.EADDRINUSE: verbs.ErrInUse, syscall.EADDRNOTAVAIL: verbs.ErrInUse, syscall.ENOMEM: verbs.ErrLimit} {
		r.lib.fail("bind", errno)
		_, err := r.cm.Listen(verbs.CMListen{})
		require.ErrorIs(t, err, want)
		assert.Equal(t, []string{"destroy", "destroy channel"}, r.lib.last(2))
	}
	// Without IPv6, the unspecified address is that of IPv4.
	r.lib.fail("bind", syscall.EAFNOSUPPORT)
	_, err := r.cm.Listen(verbs.CMListen{})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	assert.Equal(t, []string{"bind", "destroy", "create", "bind", "destroy", "destroy channel"}, r.lib.last(6))
}

// A Q_Key of one's own is not possible: the kernel takes none from programs.
func TestQKey(t *testing.T) {
	r := newRig(t)
	_, err := r.cm.Listen(verbs.CMListen{Type: verbs.UD})
	require.NoError(t, err)
	r.request("rxe0")
	id := r.next(verbs.CMConnectRequest).ID
	require.ErrorIs(t, id.Accept(verbs.CMParam{QPN: 17, QKey: 5}), verbs.ErrNotSupported)
	require.NoError(t, id.Accept(verbs.CMParam{QPN: 17, QKey: udpQKey}))
}

func TestAddresses(t *testing.T) {
	for _, s := range []string{"10.0.0.1:7", "[2001:db8::1]:65535"} {
		a := netip.MustParseAddrPort(s)
		c := addrOf(a)
		assert.Equal(t, a, addrPort(&c))
	}
	c := addrOf(netip.MustParseAddrPort("[fe80::1%lo]:7"))
	assert.EqualValues(t, 1, c.scope)
	c.family = 0
	assert.False(t, addrPort(&c).IsValid())

	m := &manager{dev: fakeDevice{}, limits: verbs.DeviceAttr{Ports: 1}}
	assert.Equal(t, "[fe80::2%lo]:7", m.withZone(netip.MustParseAddrPort("[fe80::2]:7")).String(), "the device's interface")
	assert.Equal(t, "[fe80::2%x]:7", m.withZone(netip.MustParseAddrPort("[fe80::2%x]:7")).String())
	assert.Equal(t, "[fd00::2]:7", m.withZone(netip.MustParseAddrPort("[fd00::2]:7")).String())
}

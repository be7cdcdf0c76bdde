package roce

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/gsi"
	"github.com/verbena-rdma/verbena/soft/internal/roce/registry"
	"github.com/verbena-rdma/verbena/verbs"
)

// A dial to an address of the machine reaches the device that listens there, whatever its UDP
// port and, on the loopback interface, its address.
func TestDialFindsTheDeviceOfThisMachine(t *testing.T) {
	for _, c := range []struct{ device, listen, dial string }{
		{"127.0.0.1", "0.0.0.0", "127.0.0.1"},
		{"127.11.7.2", "::", "127.0.0.1"},
		{"127.11.7.2", "127.0.0.1", "127.0.0.1"},
		{"127.11.7.2", "127.0.0.1", "127.11.7.2"},
		{"127.11.7.2", "127.11.7.2", "127.11.7.2"},
		{"127.11.7.2", "127.0.1.1", "127.0.1.1"},
		{"::1", "::1", "::1"},
		{"::1", "::", "::1"},
	} {
		t.Run(c.device+" "+c.listen+" "+c.dial, func(t *testing.T) {
			active, passive := openCMSide(t, Config{Addresses: addresses(c.device)}), openCMSide(t, Config{Addresses: addresses(c.device)})
			l, err := passive.cm.Listen(verbs.CMListen{Addr: netip.AddrPortFrom(netip.MustParseAddr(c.listen), 0), Type: verbs.RC})
			require.NoError(t, err)
			target := netip.AddrPortFrom(netip.MustParseAddr(c.dial), l.Addr().Port())
			id, err := active.cm.Dial(verbs.CMDial{Addr: target, Type: verbs.RC})
			require.NoError(t, err)
			active.next(verbs.CMResolved)
			assert.Equal(t, netip.AddrPortFrom(netip.MustParseAddr(c.device), l.Addr().Port()), id.RemoteAddr())
			active.move(id, verbs.QPInitialized)
			require.NoError(t, id.Connect(active.param("")))
			request := passive.next(verbs.CMConnectRequest).ID
			passive.move(request, verbs.QPInitialized, verbs.QPReadyToReceive, verbs.QPReadyToSend)
			require.NoError(t, request.Accept(passive.param("")))
			active.next(verbs.CMConnectResponse)
			active.move(id, verbs.QPReadyToReceive, verbs.QPReadyToSend)
			require.NoError(t, id.Establish())
			passive.next(verbs.CMEstablished)

			again := verbs.CMListen{Addr: target, Type: verbs.RC}
			_, err = active.cm.Listen(again)
			require.ErrorIs(t, err, verbs.ErrInUse)
			require.ErrorContains(t, err, "already has a listener on this machine")
			require.NoError(t, l.Close())
			l, err = active.cm.Listen(again)
			require.NoError(t, err)
			require.NoError(t, l.Close())
			_, err = registry.Find(t.Context(), registry.TCP, target)
			require.Equal(t, registry.ErrNotRegistered, err)
		})
	}
}

// A listener that cannot have one of its names leaves none registered.
func TestListenerWithoutAName(t *testing.T) {
	m := openCMSide(t, Config{Addresses: addresses("127.11.7.2")})
	for range 10 { // the order of the names differs
		taken, err := net.Listen("unix", fmt.Sprintf("@verbena/rdma_cm/%s/127.0.1.1:7", registry.TCP))
		require.NoError(t, err)
		listen := verbs.CMListen{Addr: netip.MustParseAddrPort("127.0.1.1:7"), Type: verbs.RC}
		_, err = m.cm.Listen(listen)
		require.ErrorIs(t, err, verbs.ErrInUse)
		_, err = registry.Find(t.Context(), registry.TCP, netip.MustParseAddrPort("127.11.7.2:7"))
		require.Equal(t, registry.ErrNotRegistered, err)
		require.NoError(t, taken.Close())
		l, err := m.cm.Listen(listen)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}

// A loopback address where nobody listens fails at once, though another process's device
// has it, which need not have a connection manager and would never answer.
func TestDialNobodyOnLoopback(t *testing.T) {
	silent := openSide(t, Config{}, 64)
	gids, err := silent.dev.GIDs(1)
	require.NoError(t, err)
	active := openCMSide(t, Config{})
	for _, kind := range []verbs.QPType{verbs.RC, verbs.UD} {
		id, err := active.cm.Dial(verbs.CMDial{Addr: netip.AddrPortFrom(gids[0].GID.Addr(), 1), Type: kind})
		require.NoError(t, err)
		require.ErrorIs(t, active.next(verbs.CMFailed).Err, verbs.ErrNotListening)
		require.ErrorIs(t, id.Connect(active.param("")), verbs.ErrState)
		require.NoError(t, id.Close())
	}
}

// A device without an address of the loopback interface does not listen on 127.0.0.1.
func TestListenOnLoopbackElsewhere(t *testing.T) {
	m := openCMSide(t, Config{Addresses: addresses("::1")})
	_, err := m.cm.Listen(verbs.CMListen{Addr: netip.MustParseAddrPort("127.0.0.1:7471"), Type: verbs.RC})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "[::1]")
}

// Close does not wait for the look-up of a process that has the name and says nothing.
func TestCloseWhileLookingUp(t *testing.T) {
	active := openCMSide(t, Config{})
	m := active.cm.(*gsi.Manager)
	m.LookUpTimeout = time.Hour
	target := netip.MustParseAddrPort("127.11.7.9:7")
	l, err := net.Listen("unix", fmt.Sprintf("@verbena/rdma_cm/%s/%v", registry.TCP, target))
	require.NoError(t, err)
	defer l.Close()
	_, err = m.Dial(verbs.CMDial{Addr: target, Type: verbs.RC})
	require.NoError(t, err)
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, m.Close())
	assert.Empty(t, active.events)
}

// limitOpenFiles prevents the process from opening files until the returned function is
// called.
func limitOpenFiles(t *testing.T) (restore func()) {
	t.Helper()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}))
	return func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }
}

// Errors say whether a program listens on a port only if that is known.
func TestUnknownListener(t *testing.T) {
	active, passive := openCMSide(t, Config{}), openCMSide(t, Config{})
	l, err := passive.cm.Listen(verbs.CMListen{Type: verbs.RC})
	require.NoError(t, err)
	target := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), l.Addr().Port())
	dial := func(target netip.AddrPort) error {
		t.Helper()
		_, err := active.cm.Dial(verbs.CMDial{Addr: target, Type: verbs.RC})
		require.NoError(t, err)
		err = active.next(verbs.CMFailed).Err
		require.ErrorIs(t, err, verbs.ErrUnreachable)
		require.NotErrorIs(t, err, verbs.ErrNotListening)
		return err
	}

	restore := limitOpenFiles(t)
	err = dial(target)
	_, other := passive.cm.Listen(verbs.CMListen{Type: verbs.RC})
	restore()
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorIs(t, other, unix.EMFILE)
	require.NotErrorIs(t, other, verbs.ErrInUse)
	require.NotContains(t, other.Error(), "already has a listener")
}

// A dial waits for a listener whose process is stopped for a while, until the program closes it.
func TestDialWaitsForTheListener(t *testing.T) {
	active := openCMSide(t, Config{})
	active.cm.(*gsi.Manager).LookUpTimeout = 10 * time.Millisecond
	still := netip.MustParseAddrPort("127.11.7.8:7")
	owner, err := net.Listen("unix", fmt.Sprintf("@verbena/rdma_cm/%s/%v", registry.TCP, still))
	require.NoError(t, err)
	defer owner.Close()
	ids := make([]verbs.CMID, 2)
	for i := range ids {
		ids[i], err = active.cm.Dial(verbs.CMDial{Addr: still, Type: verbs.RC})
		require.NoError(t, err)
	}
	for range 5 {
		err := active.next(verbs.CMUnresolved).Err
		require.ErrorIs(t, err, verbs.ErrUnreachable)
		require.ErrorContains(t, err, "it is stopped")
	}
	require.NoError(t, ids[0].Close())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			conn, err := owner.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("127.0.0.5:4791"))
			_ = conn.Close()
		}
	}()
	for waiting := true; waiting; {
		active.mu.Lock()
		waiting = len(active.events) == 0 || active.events[0].Type == verbs.CMUnresolved
		if waiting && len(active.events) > 0 {
			active.events = active.events[1:]
		}
		active.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	require.Same(t, ids[1], active.next(verbs.CMResolved).ID)
	require.Equal(t, netip.MustParseAddrPort("127.0.0.5:7"), ids[1].RemoteAddr())
	require.NoError(t, owner.Close())
	<-stopped
}

// Listeners and connection managers close, whatever files other processes have sent.
func TestListenersCloseIsNotHeldUp(t *testing.T) {
	name := func(port uint16) *net.UnixAddr {
		return &net.UnixAddr{Name: fmt.Sprintf("@verbena/rdma_cm/%s/127.0.0.1:%d", registry.TCP, port), Net: "unix"}
	}
	soon := func(what string, f func()) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Minute):
			require.FailNow(t, what)
		}
	}
	m := openCMSide(t, Config{})
	for _, close := range []func(l verbs.CMListener) error{verbs.CMListener.Close, func(verbs.CMListener) error { return m.cm.Close() }} {
		l, err := m.cm.Listen(verbs.CMListen{Type: verbs.RC})
		require.NoError(t, err)
		var sockets []int
		for range 20 {
			socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			defer unix.Close(socket)
			sockets = append(sockets, socket)
		}
		files := lingeringFiles(t, len(sockets))
		restore := limitOpenFiles(t) // so that no connection is taken before the file is there
		for i, socket := range sockets {
			require.NoError(t, unix.Connect(socket, &unix.SockaddrUnix{Name: name(l.Addr().Port()).Name}))
			mayBeRefused(t, unix.Sendmsg(socket, []byte("x"), unix.UnixRights(int(files[i].Fd())), nil, 0))
			go files[i].Close()
		}
		restore()
		soon("it does not close", func() { require.NoError(t, close(l)) })
	}

	// An answer with such a file is waited for no longer than others.
	m = openCMSide(t, Config{})
	owner, err := net.ListenUnix("unix", name(7))
	require.NoError(t, err)
	defer owner.Close()
	f := lingering(t)
	_, err = m.cm.Dial(verbs.CMDial{Addr: netip.MustParseAddrPort("127.0.0.1:7"), Type: verbs.RC})
	require.NoError(t, err)
	conn, err := owner.AcceptUnix()
	require.NoError(t, err)
	defer conn.Close()
	sendFiles(t, conn, []byte("127.0.0.1:4791"), f)
	soon("the connection manager does not close", func() { require.NoError(t, m.cm.Close()) })
}

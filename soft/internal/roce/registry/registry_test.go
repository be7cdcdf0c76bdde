//go:build linux

package registry

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/unixsocket"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// addr has a port that nobody has.
var addr = netip.MustParseAddrPort("127.11.7.1:7")

func TestEntries(t *testing.T) {
	device := netip.MustParseAddrPort("127.0.0.5:4791")
	var e, other Entries
	defer e.Close()
	defer other.Close()
	_, err := Find(t.Context(), TCP, addr)
	require.Equal(t, ErrNotRegistered, err)
	require.NoError(t, e.Add(TCP, addr, device))
	for range 3 {
		found, err := Find(t.Context(), TCP, addr)
		require.NoError(t, err)
		require.Equal(t, device, found)
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(addr.Addr().As16()), addr.Port())
	found, err := Find(t.Context(), TCP, mapped)
	require.NoError(t, err)
	require.Equal(t, device, found)
	_, err = Find(t.Context(), UDP, addr)
	require.Equal(t, ErrNotRegistered, err, "of another port space")

	require.ErrorIs(t, other.Add(TCP, addr, device), verbs.ErrInUse)
	require.NoError(t, other.Add(UDP, addr, device))
	e.Close()
	e.Close()
	_, err = Find(t.Context(), TCP, addr)
	require.Equal(t, ErrNotRegistered, err)
	require.NoError(t, other.Add(TCP, addr, device))
}

// What was found is known until the entry is removed.
func TestKnown(t *testing.T) {
	device := netip.MustParseAddrPort("127.0.0.5:4791")
	var e Entries
	defer e.Close()
	k := Known{maxAge: time.Hour}
	defer k.Close()
	_, err := k.Find(t.Context(), TCP, addr)
	require.Equal(t, ErrNotRegistered, err)
	_, ok := k.Look(TCP, addr)
	require.False(t, ok)
	for range 2 {
		require.NoError(t, e.Add(TCP, addr, device))
		for range 3 {
			found, err := k.Find(t.Context(), TCP, addr)
			require.NoError(t, err)
			require.Equal(t, device, found)
			found, ok = k.Look(TCP, addr)
			require.True(t, ok)
			require.Equal(t, device, found)
		}
		_, ok = k.Look(UDP, addr)
		require.False(t, ok, "of another port space")
		e.Close()
		_, ok = k.Look(TCP, addr)
		require.False(t, ok)
	}
}

// A process that has given up its name and keeps the connection is believed for a limited time.
func TestKnownExpires(t *testing.T) {
	device, other := netip.MustParseAddrPort("127.0.0.5:4791"), netip.MustParseAddrPort("127.0.0.6:4791")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name(TCP, addr), Net: "unix"})
	require.NoError(t, err)
	var held *net.UnixConn
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		held, _ = l.AcceptUnix()
		_, _ = held.Write([]byte(device.String()))
	}()
	var k Known
	defer k.Close()
	found, err := k.Find(t.Context(), TCP, addr)
	require.NoError(t, err)
	require.Equal(t, device, found)
	<-answered
	defer held.Close()
	require.NoError(t, l.Close())
	var e Entries
	defer e.Close()
	require.NoError(t, e.Add(TCP, addr, other))

	require.NoError(t, held.SetReadDeadline(time.Now().Add(10*time.Minute)))
	_, err = held.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err, "the connection is closed")
	_, ok := k.Look(TCP, addr)
	require.False(t, ok)
	found, err = k.Find(t.Context(), TCP, addr)
	require.NoError(t, err)
	require.Equal(t, other, found)
}

// The timer of an entry that was replaced leaves its successor alone.
func TestKnownReplaced(t *testing.T) {
	var e Entries
	defer e.Close()
	require.NoError(t, e.Add(TCP, addr, netip.MustParseAddrPort("127.0.0.5:4791")))
	k := Known{maxAge: time.Hour}
	defer k.Close()
	_, err := k.Find(t.Context(), TCP, addr)
	require.NoError(t, err)
	key := name(TCP, addr)
	first := k.entries[key].conn
	_, err = k.Find(t.Context(), TCP, addr)
	require.NoError(t, err)
	k.expire(key, first)
	_, ok := k.Look(TCP, addr)
	require.True(t, ok)
	k.expire(key, k.entries[key].conn)
	_, ok = k.Look(TCP, addr)
	require.False(t, ok)
}

// When another process can take a name, nobody takes it for that of the former one.
func TestKnownEndsBeforeTheNameIsFree(t *testing.T) {
	device := netip.MustParseAddrPort("127.0.0.5:4791")
	for range 100 {
		var e Entries
		require.NoError(t, e.Add(TCP, addr, device))
		known := make([]Known, 10)
		for i := range known {
			_, err := known[i].Find(t.Context(), TCP, addr)
			require.NoError(t, err)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			e.Close()
		}()
		var other Entries
		for other.Add(TCP, addr, device) != nil {
		}
		for i := range known {
			_, ok := known[i].Look(TCP, addr)
			require.False(t, ok)
			known[i].Close()
		}
		<-closed
		other.Close()
	}
}

// keptNow is how many connections the entries of this process keep.
func keptNow() int {
	kept.mu.Lock()
	defer kept.mu.Unlock()
	return kept.list.Len()
}

// No connection is kept that its client has ended.
func TestEndedConnectionsAreClosed(t *testing.T) {
	var e Entries
	defer e.Close()
	require.NoError(t, e.Add(TCP, addr, netip.MustParseAddrPort("127.0.0.5:4791")))
	live := Known{maxAge: time.Hour}
	defer live.Close()
	_, err := live.Find(t.Context(), TCP, addr)
	require.NoError(t, err)
	for range 2 * maxKept {
		_, err := Find(t.Context(), TCP, addr)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return keptNow() == 1 }, 10*time.Minute, time.Millisecond)
	}
	require.Len(t, live.entries, 1)
	require.True(t, isOpen(live.entries[name(TCP, addr)].conn), "the ended ones have gone first")
}

// Neither end keeps more connections than it may, whatever the number of entries, and the newest are
// kept.
func TestKnownIsLimited(t *testing.T) {
	device := netip.MustParseAddrPort("127.0.0.5:4791")
	var e Entries
	defer e.Close()
	at := func(i int) netip.AddrPort { return netip.AddrPortFrom(addr.Addr(), uint16(1000+i)) }
	for i := range 2 * maxKnown {
		require.NoError(t, e.Add(TCP, at(i), device))
	}
	clients := make([]Known, 2*maxKept)
	known := func() (n int) {
		for i := range clients {
			for _, entry := range clients[i].entries {
				if isOpen(entry.conn) {
					n++
				}
			}
		}
		return n
	}
	for i := range clients {
		clients[i].maxAge = time.Hour
		defer clients[i].Close()
		_, err := clients[i].Find(t.Context(), TCP, at(i%maxKnown))
		require.NoError(t, err)
		require.LessOrEqual(t, keptNow(), maxKept)
	}
	require.Eventually(t, func() bool { return known() == maxKept }, 10*time.Minute, time.Millisecond)
	last := &clients[2*maxKept-1]
	require.True(t, isOpen(last.entries[name(TCP, at((2*maxKept-1)%maxKnown))].conn))

	k := &clients[0]
	for i := range 2 * maxKnown {
		_, err := k.Find(t.Context(), TCP, at(i))
		require.NoError(t, err)
		require.LessOrEqual(t, len(k.entries), maxKnown)
		require.True(t, isOpen(k.entries[name(TCP, at(i))].conn))
	}
	k.Close()
	_, err := k.Find(t.Context(), TCP, at(0))
	require.NoError(t, err)
	_, ok := k.Look(TCP, at(0))
	require.False(t, ok, "it is closed")
}

// A process that takes a name and lies is not believed what cannot be.
func TestLies(t *testing.T) {
	for _, text := range []string{
		"", "x", "192.0.2.1:4791", "127.0.0.5:0", "[::1]:4791", "127.0.0.5", "127.0.0.5:4791\n", strings.Repeat("1", 1000),
	} {
		l, err := net.Listen("unix", name(TCP, addr))
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(text))
				_ = conn.Close()
			}
		}()
		_, err = Find(t.Context(), TCP, addr)
		require.Error(t, err, "%q", text)
		require.Equal(t, text == "", errors.Is(err, ErrNoResponse), "%q", text)
		require.NotErrorIs(t, err, ErrNotRegistered, "%q", text)
		require.NoError(t, l.Close())
		<-done
	}
}

// pair returns the ends of a connection with an entry. They take files, as all sockets do before
// Linux 6.16.
func pair(t *testing.T) (client, owner *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name(TCP, addr), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	client, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	owner, err = l.AcceptUnix()
	require.NoError(t, err)
	return client, owner
}

// Files that come with an entry are not closed by the thread that reads it, which they could
// delay for long.
func TestEntryWithFiles(t *testing.T) {
	for _, c := range []struct {
		text   string
		urgent bool
	}{{"1", false}, {"127.0.0.5:4791", false}, {strings.Repeat("1", 1000), false}, {"1", true}} {
		conn, owner := pair(t)
		r, w, err := os.Pipe()
		require.NoError(t, err)
		raw, err := owner.SyscallConn()
		require.NoError(t, err)
		flags := 0
		if c.urgent {
			flags = unix.MSG_OOB
		}
		require.NoError(t, raw.Control(func(fd uintptr) {
			err = unix.Sendmsg(int(fd), []byte(c.text), unix.UnixRights(int(w.Fd())), nil, flags)
		}))
		if err == unix.EOPNOTSUPP {
			t.Skip("this system has no urgent data on Unix sockets")
		}
		require.NoError(t, err)
		_, err = owner.Write([]byte("127.0.0.5:4791"))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.NoError(t, owner.Close())
		_, err = readEntry(conn)
		require.ErrorIs(t, err, errFiles)

		require.NoError(t, r.SetReadDeadline(time.Now().Add(time.Millisecond)))
		_, err = r.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is closed")
		unixsocket.Close(conn)
		require.NoError(t, r.SetReadDeadline(time.Now().Add(10*time.Minute)))
		_, err = r.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, r.Close())
	}
}

// Without files, nothing is left in the queue, so that the socket is closed at once.
func TestEntryIsRead(t *testing.T) {
	a, b := pair(t)
	defer a.Close()
	defer b.Close()
	_, err := b.Write([]byte("127.0.0.5:4791"))
	require.NoError(t, err)
	text, err := readEntry(a)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.5:4791", string(text))
	require.NoError(t, a.SetReadDeadline(time.Unix(1, 0)))
	_, err = readEntry(a)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// A process that has a name and says nothing is waited for until the context ends.
func TestFindIsCancelled(t *testing.T) {
	l, err := net.Listen("unix", name(TCP, addr))
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	found := make(chan error)
	go func() {
		_, err := Find(ctx, TCP, addr)
		found <- err
	}()
	conn, err := l.Accept() // it waits for an answer
	require.NoError(t, err)
	defer conn.Close()
	cancel()
	require.ErrorContains(t, <-found, "it is stopped")
	_, err = Find(ctx, TCP, addr)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrNotRegistered)
}

func TestPlausible(t *testing.T) {
	for _, c := range []struct {
		addr, device string
		want         bool
	}{
		{"127.0.0.1", "127.0.0.9:4791", true},
		{"192.0.2.1", "192.0.2.1:50000", true},
		{"192.0.2.1", "192.0.2.2:4791", false},
		{"192.0.2.1", "127.0.0.1:4791", false},
		{"127.0.0.1", "192.0.2.1:4791", false},
		{"::1", "[::1]:50000", true},
		{"::1", "127.0.0.1:50000", false},
		{"fe80::1%eth0", "[fe80::1%eth0]:50000", true},
	} {
		require.Equal(t, c.want, plausible(netip.MustParseAddr(c.addr), netip.MustParseAddrPort(c.device)), "%v", c)
	}
}

package local

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// Addresses that no device has.
var (
	here  = at("127.11.9.1:4791")
	there = at("127.11.9.2:4791")
)

// end is a channel's end whose messages are served.
type end struct {
	*Channel
	mu    sync.Mutex
	woken chan struct{}
	ended chan error
}

func serve(c *Channel) *end {
	e := &end{Channel: c, woken: make(chan struct{}, 1000), ended: make(chan error, 1)}
	go func() {
		e.ended <- c.Serve(&e.mu, func() { e.woken <- struct{}{} })
	}()
	return e
}

func (e *end) close() {
	e.mu.Lock()
	e.Close()
	e.mu.Unlock()
}

// listenHere has a device be found that wants nobody.
func listenHere(t *testing.T) *Listener {
	l, err := Listen(here)
	require.NoError(t, err)
	l.Serve(func(Address) func(*Channel) { return nil })
	return l
}

// joined makes a channel between here and there.
func joined(t *testing.T) (dialler, listener *end) {
	t.Helper()
	l, err := Listen(there)
	require.NoError(t, err)
	defer l.Close()
	own := listenHere(t)
	defer own.Close()
	met := make(chan *Channel, 1)
	l.Serve(func(peer Address) func(*Channel) {
		assert.Equal(t, here, peer)
		return func(c *Channel) { met <- c }
	})
	c, err := Dial(t.Context(), Ends{here, there})
	require.NoError(t, err)
	a, b := serve(c), serve(<-met)
	require.Equal(t, Ends{there, here}, b.Ends())
	t.Cleanup(func() {
		a.close()
		b.close()
		require.Error(t, <-a.ended)
		require.Error(t, <-b.ended)
	})
	return a, b
}

func write(psn uint32) *wire.Packet {
	return &wire.Packet{Opcode: wire.RCWriteOnly, DestQP: 7, PSN: psn, RETH: wire.RETH{VA: 1, RKey: 2, Length: 3}}
}

func TestChannel(t *testing.T) {
	a, b := joined(t)
	for _, way := range [][2]*end{{a, b}, {b, a}} {
		from, to := way[0], way[1]
		require.True(t, to.ArmWakeup())
		room, err := from.Room(3)
		require.NoError(t, err)
		require.Equal(t, 3, room)
		data := pattern(MaxInline, 1)
		from.Send(write(1), 4096, [][]byte{data}, len(data), nil, 0)
		from.Send(write(2), 4096, nil, 0, nil, 0)
		p, err := to.Receive()
		require.NoError(t, err)
		require.Nil(t, p, "before Flush")
		from.mu.Lock()
		from.Flush()
		from.mu.Unlock()
		<-to.woken
		p, err = to.Receive()
		require.NoError(t, err)
		require.Equal(t, *write(1), p.Packet)
		require.Equal(t, [][]byte{data}, p.Pieces)
		p, err = to.Receive()
		require.NoError(t, err)
		require.EqualValues(t, 2, p.PSN)
		require.Empty(t, p.Pieces)
		to.Release()
		p, err = to.Receive()
		require.NoError(t, err)
		require.Nil(t, p)
	}
}

// Exported memory is mapped without a copy, read-only.
func TestExportedMemory(t *testing.T) {
	a, b := joined(t)
	m, err := AllocMemory(100_000)
	require.NoError(t, err)
	copy(m.Bytes, pattern(len(m.Bytes), 5))
	var number uint32
	require.Eventually(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		var ok bool
		number, ok = a.Exported(m)
		return ok
	}, 5*time.Minute, time.Millisecond)
	refs := []Reference{{number, 30_000, 3}, {number, 20_000, 80_000}}
	a.Send(write(1), 4096, nil, 50_000, refs, 1)
	a.mu.Lock()
	a.Flush()
	a.mu.Unlock()
	b.mu.Lock()
	p, err := b.Receive()
	b.mu.Unlock()
	require.NoError(t, err)
	require.Equal(t, [][]byte{m.Bytes[3:30_003], m.Bytes[80_000:100_000]}, p.Pieces)
	m.Bytes[3]++
	require.Equal(t, m.Bytes[3], p.Pieces[0][0], "it is the same memory")

	_, err = unix.Mmap(int(m.file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)

	// It is forgotten: what still refers to it is lost, and the channel goes on.
	a.mu.Lock()
	a.Forget(m)
	a.mu.Unlock()
	require.NoError(t, m.Free())
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.imported.memories) == 0
	}, 5*time.Minute, time.Millisecond)
	a.Send(write(2), 4096, nil, 50_000, refs, 1)
	a.Send(write(3), 4096, nil, 0, nil, 0)
	a.mu.Lock()
	a.Flush()
	a.mu.Unlock()
	p, err = b.Receive()
	require.NoError(t, err)
	require.EqualValues(t, 3, p.PSN)
}

// Memory is only mapped if its owner has paid for all of it.
func TestSparseMemory(t *testing.T) {
	const length = 1 << 20
	for name, c := range map[string]struct {
		prepare func(fd int) error
		taken   bool
	}{
		"allocated": {func(fd int) error { return unix.Fallocate(fd, 0, 0, length) }, true},
		"sparse":    {func(int) error { return nil }, false},
		"one hole": {func(fd int) error {
			return errors.Join(unix.Fallocate(fd, 0, 0, length), unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 4096))
		}, false},
		"behind the end": {func(fd int) error { return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, length, length) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := joined(t)
			fd, err := unix.MemfdCreate("test", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
			require.NoError(t, err)
			defer unix.Close(fd)
			require.NoError(t, unix.Ftruncate(fd, length))
			require.NoError(t, c.prepare(fd))
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, exportSeals)
			require.NoError(t, err)
			a.mu.Lock()
			a.exported.numbers[&Memory{}] = 1 | unacknowledged
			a.link.send(messageExport, 1, unix.UnixRights(fd))
			mark := a.Mark()
			a.mu.Unlock()
			require.Eventually(t, func() bool { // and the channel goes on
				a.mu.Lock()
				defer a.mu.Unlock()
				return a.AliveAfter(mark)
			}, 5*time.Minute, time.Millisecond)
			b.mu.Lock()
			defer b.mu.Unlock()
			require.Equal(t, c.taken, b.imported.memories[1] != nil)

			// What was taken stays allocated, whatever its owner does.
			if c.taken {
				require.ErrorIs(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, length), unix.EPERM)
				require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
				require.NoError(t, unix.Ftruncate(fd, length))
				require.NoError(t, checkAllocated(fd, length))
			}
		})
	}
}

// The owner of memory pays for it before it shows it.
func TestMemoryIsAllocated(t *testing.T) {
	m, err := AllocMemory(10<<20 + 1)
	require.NoError(t, err)
	require.NoError(t, checkAllocated(int(m.file.Fd()), int64(cap(m.Bytes))))
	require.NoError(t, m.Free())
}

func TestPeerGoes(t *testing.T) {
	a, b := joined(t)
	a.close()
	err := <-b.ended
	require.ErrorIs(t, err, io.EOF)
	require.NotErrorIs(t, err, ErrCutOff, "it has said that it goes")
	b.ended <- err
	b.mu.Lock()
	b.Send(write(1), 4096, nil, 0, nil, 0)
	b.Flush() // into memory that nobody reads
	b.mu.Unlock()
}

// A channel ends without a closing message if the other process is killed.
func TestCutOff(t *testing.T) {
	for _, unread := range []bool{false, true} {
		a, b := joined(t)
		a.mu.Lock()
		if unread { // for which the kernel resets the connection
			b.mu.Lock()
			require.NoError(t, a.link.conn.SetDeadline(time.Unix(1, 0)))
			a.ended <- <-a.ended
			b.link.wake()
			b.mu.Unlock()
		}
		a.link.send(messagePing, 3, nil) // it is too late for an answer
		require.NoError(t, a.link.conn.Close())
		a.mu.Unlock()
		err := <-b.ended
		require.ErrorIs(t, err, ErrCutOff)
		require.ErrorIs(t, err, io.EOF)
		b.ended <- err
		require.False(t, b.PeerProcessDied(t.Context()), "it is this process")
	}
}

// A closing message arrives although its sender has left messages unread.
func TestGoodbyeBeforeReset(t *testing.T) {
	a, b := joined(t)
	require.NoError(t, a.link.conn.SetDeadline(time.Unix(1, 0)))
	a.ended <- <-a.ended
	b.mu.Lock()
	b.link.wake()
	b.mu.Unlock()
	a.close()
	err := <-b.ended
	require.ErrorIs(t, err, io.EOF)
	require.NotErrorIs(t, err, ErrCutOff)
	b.ended <- err
}

func TestMarks(t *testing.T) {
	a, b := joined(t)
	b.mu.Lock() // it does not answer yet
	a.mu.Lock()
	first, second := a.Mark(), a.Mark()
	require.False(t, a.AliveAfter(first))
	a.mu.Unlock()
	b.mu.Unlock()
	require.Eventually(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.AliveAfter(first) && a.AliveAfter(second)
	}, 5*time.Minute, time.Millisecond)
	require.True(t, notAfter(1<<32-1, 1))
	require.False(t, notAfter(1, 1<<32-1))
}

// The end of a process is noticed, even if another process has its ID by then.
func TestProcessEnds(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	require.NoError(t, cmd.Start())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, awaitProcessEnd(canceled, cmd.Process.Pid), "it is there")
	ended := make(chan bool)
	go func() { ended <- awaitProcessEnd(t.Context(), cmd.Process.Pid) }()
	require.NoError(t, cmd.Process.Kill())
	require.True(t, <-ended)
	require.True(t, awaitProcessEnd(t.Context(), cmd.Process.Pid), "a zombie")
	_ = cmd.Wait()
	require.True(t, awaitProcessEnd(t.Context(), cmd.Process.Pid))
	require.False(t, awaitProcessEnd(t.Context(), os.Getpid()))
	require.False(t, awaitProcessEnd(t.Context(), 0), "of another namespace")
}

func TestNobodyAndRefused(t *testing.T) {
	_, err := Dial(t.Context(), Ends{here, there})
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	l, err := Listen(there)
	require.NoError(t, err)
	defer l.Close()
	_, err = Listen(there)
	require.ErrorIs(t, err, unix.EADDRINUSE)
	l.Serve(func(Address) func(*Channel) { return nil })
	_, err = Dial(t.Context(), Ends{here, there})
	require.ErrorIs(t, err, io.EOF, "who is not found at its own address")
	own := listenHere(t)
	defer own.Close()
	_, err = Dial(t.Context(), Ends{here, there})
	require.ErrorIs(t, err, ErrRefused)
	elsewhere := at("192.0.2.1:4791")
	_, err = Dial(t.Context(), Ends{here, elsewhere})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = Dial(t.Context(), Ends{there, there})
	require.Error(t, err, "of itself")
}

// A process that takes the name of a device and does not respond delays nobody for long.
func TestStandsStill(t *testing.T) {
	l, err := net.Listen("unixpacket", name(there))
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, Ends{here, there})
	require.Error(t, err)
}

// What a dialler says in the handshake gets it no channel if it is not right.
func TestLyingDiallers(t *testing.T) {
	l, err := Listen(there)
	require.NoError(t, err)
	defer l.Close()
	own := listenHere(t)
	defer own.Close()
	l.Serve(func(Address) func(*Channel) {
		return func(c *Channel) { assert.Nil(t, c, "a liar has a channel") }
	})
	for name, text := range map[string]string{
		"another":       formatRequest(Ends{here, here}),
		"elsewhere":     formatRequest(Ends{at("192.0.2.1:4791"), there}),
		"not found":     formatRequest(Ends{at("127.11.9.3:4791"), there}),
		"ourselves":     formatRequest(Ends{there, there}),
		"no address":    requestPrefix + " x " + there.String(),
		"other version": "verbena local 1",
	} {
		conn, err := net.DialUnix("unixpacket", nil, l.socket.Addr().(*net.UnixAddr))
		require.NoError(t, err)
		_, err = conn.Write([]byte(text))
		require.NoError(t, err)
		n, err := conn.Read(make([]byte, 100))
		require.True(t, n == 0 && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)), "%s: %d, %v", name, n, err)
		_ = conn.Close()
	}
}

// A request with a file gets no channel: the system refuses the file, or the listener does.
func TestRequestWithFile(t *testing.T) {
	l, err := Listen(there)
	require.NoError(t, err)
	defer l.Close()
	own := listenHere(t)
	defer own.Close()
	l.Serve(func(Address) func(*Channel) { t.Error("the request is taken"); return nil })
	conn, err := net.DialUnix("unixpacket", nil, l.socket.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	defer conn.Close()
	if _, _, err = conn.WriteMsgUnix([]byte(formatRequest(Ends{here, there})), unix.UnixRights(0), nil); err != nil {
		require.ErrorIs(t, err, unix.EPERM)
		return
	}
	_, err = conn.Read(make([]byte, 100))
	require.Error(t, err)
}

// Memory that a listener passes is mapped only if it is what it must be.
func TestLyingListeners(t *testing.T) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name(there), Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close()
	memfd := func(length int64, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		require.NoError(t, unix.Ftruncate(fd, length))
		if seals != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			require.NoError(t, err)
		}
		return fd
	}
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	for name, liar := range map[string]struct {
		text string
		fds  []int
		err  error
	}{
		"no file":    {replyAccepted, nil, ErrRefused},
		"not sealed": {replyAccepted, []int{memfd(sharedLen, 0)}, ErrCorrupt},
		"can shrink": {replyAccepted, []int{memfd(sharedLen, unix.F_SEAL_GROW|unix.F_SEAL_SEAL)}, ErrCorrupt},
		"too short":  {replyAccepted, []int{memfd(sharedLen-4096, resizeSeals)}, ErrCorrupt},
		"too long":   {replyAccepted, []int{memfd(sharedLen+4096, resizeSeals)}, ErrCorrupt},
		"no memory":  {replyAccepted, []int{int(null.Fd())}, ErrCorrupt},
		"two files":  {replyAccepted, []int{int(null.Fd()), int(null.Fd())}, ErrRefused},
		"no reply":   {"x", []int{memfd(sharedLen, resizeSeals)}, ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			dialled := make(chan error)
			go func() {
				_, err := Dial(t.Context(), Ends{here, there})
				dialled <- err
			}()
			conn, err := l.AcceptUnix()
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Read(make([]byte, 100)) // the dialler takes files when it has sent its request
			require.NoError(t, err)
			_, _, err = conn.WriteMsgUnix([]byte(liar.text), unix.UnixRights(liar.fds...), nil)
			require.NoError(t, err)
			require.ErrorIs(t, <-dialled, liar.err)
		})
	}
}

// What a liar says later ends the channel.
func TestLiesOfAPeer(t *testing.T) {
	for name, lie := range map[string]func(a *end){
		"unknown":    func(a *end) { a.link.send('?', 0, nil) },
		"long":       func(a *end) { _, _ = a.link.conn.Write(make([]byte, 100)) },
		"short":      func(a *end) { _, _ = a.link.conn.Write([]byte("w")) },
		"no file":    func(a *end) { a.link.send(messageExport, 1, nil) },
		"not sealed": func(a *end) { a.link.send(messageExport, 1, unix.UnixRights(1)) },
		"half sealed": func(a *end) {
			fd, _, err := newFile("test", 4096, resizeSeals)
			require.NoError(t, err)
			a.link.send(messageExport, 1, unix.UnixRights(fd))
			require.NoError(t, unix.Close(fd))
		},
		"no question":  func(a *end) { a.link.send(messagePong, 1, nil) },
		"a wake, more": func(a *end) { a.link.send(messageWake, 1, unix.UnixRights(1)) },
		"huge": func(a *end) {
			_, _ = a.link.conn.Write(make([]byte, 1000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := joined(t)
			a.mu.Lock()
			lie(a)
			a.mu.Unlock()
			err := <-b.ended
			b.ended <- err
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
}

// To wake a peer, and to be woken, takes no memory.
func TestWakingAllocatesNothing(t *testing.T) {
	a, b := joined(t)
	allocated := testing.AllocsPerRun(1000, func() {
		a.mu.Lock()
		a.link.wake()
		a.mu.Unlock()
		<-b.woken
	})
	require.Zero(t, allocated)
}

// A peer that sends wake-ups without end does not keep the lock: after some, they are left to Serve.
func TestWakeupsWithoutEnd(t *testing.T) {
	l, err := Listen(there)
	require.NoError(t, err)
	defer l.Close()
	met := make(chan *Channel, 1)
	l.Serve(func(Address) func(*Channel) { return func(c *Channel) { met <- c } })
	own := listenHere(t)
	defer own.Close()
	peer, err := Dial(t.Context(), Ends{here, there})
	require.NoError(t, err)
	c := <-met
	set, err := link.NewWaitSet(false)
	require.NoError(t, err)
	require.NoError(t, c.Watch(set, func() {}))
	send := func(n int) {
		for range n {
			require.True(t, peer.link.send(messageWake, 0, nil))
		}
	}
	c.link.serving = false // Serve waits
	send(maxWakeups - 1)
	require.True(t, c.TakeWakeups())
	require.False(t, c.link.serving)
	require.False(t, c.TakeWakeups())
	const more = 10
	send(maxWakeups + more)
	require.True(t, c.TakeWakeups())
	require.True(t, c.link.serving)
	require.Len(t, c.link.attention, 1)
	require.False(t, c.TakeWakeups(), "Serve reads them")
	e := serve(c)
	for range more {
		<-e.woken
	}
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return !c.link.serving
	}, time.Minute, time.Millisecond)
	other := serve(peer)
	other.close()
	e.close()
	require.Error(t, <-e.ended)
	require.Error(t, <-other.ended)
	require.NoError(t, set.Close())
}

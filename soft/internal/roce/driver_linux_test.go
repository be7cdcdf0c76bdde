package roce

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/spin"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/verbs"
)

// keepBusy has a goroutine do the work of the shard without a wait, as where there is always some,
// until the function that it returns is called.
func (s *shard) keepBusy(t *testing.T) (end func()) {
	t.Helper()
	var ended atomic.Bool
	var rounds atomic.Int64
	over := s.sleeper.over
	s.sleeper.spinning = spin.Fixed(time.Hour)
	s.sleeper.over = func() bool { rounds.Add(1); return over() }
	slept := make(chan bool)
	go func() { slept <- s.Sleep(&ended) }()
	require.Eventually(t, func() bool { s.Wake(); return rounds.Load() > 1000 }, time.Minute, time.Millisecond)
	return func() {
		ended.Store(true)
		s.Wake()
		require.True(t, <-slept)
		s.Leave()
	}
}

// sendJunk sends a packet of no device, and waits until the side has counted it.
func (s *side) sendJunk() {
	s.t.Helper()
	before := counter(s.t, s.dev, "rx_malformed")
	conn := must(net.Dial("udp", s.dev.endpoints[0].socket.Addr().String()))
	defer conn.Close()
	_, err := conn.Write([]byte("junk"))
	require.NoError(s.t, err)
	require.Eventually(s.t, func() bool { return counter(s.t, s.dev, "rx_malformed") > before }, time.Minute, time.Millisecond)
}

// A shard that always has work learns of packets at a socket that no queue pair needs, and of the end
// of a channel.
func TestBusyShardLooks(t *testing.T) {
	x, y := openLocalPair(t, 4096)
	s := y.shard()
	s.mu.Lock()
	require.Zero(t, s.endpoints[0].receivers)
	s.mu.Unlock()
	defer s.keepBusy(t)()
	y.sendJunk()
	x.shard().mu.Lock()
	wait := x.shard().mu.local.Off()
	x.shard().mu.Unlock()
	wait()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.mu.local.Others() == 0
	}, time.Minute, time.Millisecond)
}

// away keeps the device's goroutine from the work of the shard, as a goroutine that sleeps there does.
func (s *shard) away(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	require.True(t, s.mu.attendance.Enter())
	s.mu.Unlock()
	s.sockets.Interrupt()
	s.working.Lock() // it has left
	s.sockets.ClearInterrupt()
	s.working.Unlock()
	t.Cleanup(func() {
		s.mu.Lock()
		s.mu.attendance.Wakes()
		s.mu.Unlock()
		s.Leave()
	})
}

// While programs poll, the device's goroutine takes packets at sockets that they do not look at, so
// that these do not end each of its pauses.
func TestRestTakesUnpolled(t *testing.T) {
	x := openSide(t, Config{}, 64)
	s := x.shard()
	s.away(t)
	conn := must(net.Dial("udp", s.endpoints[0].socket.Addr().String()))
	defer conn.Close()
	_, err := conn.Write([]byte("junk"))
	require.NoError(t, err)
	require.False(t, s.rest(time.Hour), "the packet ends the pause")
	require.Equal(t, uint64(1), counter(t, x.dev, "rx_malformed"))
}

// failingSet is a wait set that no goroutine can wait at.
type failingSet struct{ link.WaitSet }

func (failingSet) Wait(time.Time) error { return unix.EBADF }
func (failingSet) Poll() error          { return unix.EBADF }

// A shard whose wait set fails reports that once, and nobody sleeps there after that.
func TestWaitSetFails(t *testing.T) {
	x := openSide(t, Config{}, 64)
	s := x.shard()
	fatal := make(chan verbs.Event, 100)
	defer x.dev.SubscribeEvents(func(e verbs.Event) { fatal <- e })()
	s.away(t)
	s.mu.Lock()
	s.sockets = failingSet{s.sockets}
	s.mu.attendance.Wakes()
	s.mu.Unlock()
	var ended atomic.Bool
	for range 10 {
		require.False(t, s.Sleep(&ended))
	}
	s.Leave()
	require.False(t, s.rest(pollerGrace))
	require.Len(t, fatal, 1)
	require.Equal(t, verbs.EventDeviceFatal, (<-fatal).Type)
}

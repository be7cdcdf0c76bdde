package roce

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// longTimeout is the code of a time-out of 2.4 hours, so that tests show what is noticed
// without it.
const longTimeout = 31

const victimVariable = "VERBENA_LOCAL_VICTIM"

// endpointInfo is what the ends of a connection exchange.
type endpointInfo struct {
	Device netip.AddrPort
	QPN    uint32
	Addr   uint64
	RKey   uint32
}

func (i endpointInfo) String() string { return fmt.Sprint(i.Device, i.QPN, i.Addr, i.RKey) }

func (s *side) endpointInfo() endpointInfo {
	return endpointInfo{s.dev.endpoints[0].socket.Addr(), s.qp.Num(), s.mr.Addr(), s.mr.RKey()}
}

func readEndpointInfo(t testing.TB, r *bufio.Reader) (i endpointInfo) {
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	var device string
	_, err = fmt.Sscan(line, &device, &i.QPN, &i.Addr, &i.RKey)
	require.NoError(t, err)
	i.Device = netip.MustParseAddrPort(device)
	return i
}

func (s *side) connectToInfo(i endpointInfo) {
	s.connectTo(verbs.GIDEntry{GID: verbs.GIDFromAddr(i.Device.Addr()), UDPPort: i.Device.Port()}, i.QPN)
}

// TestLocalVictim is the process that other tests start and kill.
func TestLocalVictim(t *testing.T) {
	what := os.Getenv(victimVariable)
	if what == "" {
		t.Skip("a part of the tests of peers that are killed")
	}
	x := openSide(t, Config{}, victimMemory)
	x.share(victimMemory)
	fmt.Println(x.endpointInfo())
	in := bufio.NewReader(os.Stdin)
	peer := readEndpointInfo(t, in)
	x.connectToInfo(peer)
	fmt.Println("connected")
	if what == "closes" {
		_, _ = in.ReadString('\n')
		return
	}
	if what == "copies" {
		_, _ = in.ReadString('\n')
		x.stallDuringCopy(peer)
	}
	go func() { // the parent's end
		_, _ = in.ReadString('\n')
		os.Exit(1)
	}()
	for what == "idle" {
		time.Sleep(time.Hour)
	}
	for i := 0; ; i++ { // all packets, until the end
		wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 1+i*7919%(victimMemory/2))}, RemoteAddr: peer.Addr, RKey: peer.RKey}
		if i%3 == 0 {
			wr.Op = verbs.OpRead
		}
		x.post(wr)
		x.wait(1)
	}
}

// stallDuringCopy reads a peer's memory, and never ends the copy of the first response that
// refers to it.
func (s *side) stallDuringCopy(peer endpointInfo) {
	q := s.qp.(*queuePair)
	path := q.path.(*localPath).shared
	for {
		s.dev.mu.Lock()
		_, err := q.transport.PostSend([]verbs.SendWR{{Op: verbs.OpRead, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{s.sge(0, local.MinReference)}, RemoteAddr: peer.Addr, RKey: peer.RKey}})
		require.NoError(s.t, err)
		s.dev.main.activate(q)
		s.dev.main.transmit(s.dev.now())
		var packet *local.Packet
		for packet == nil && path.Shared() {
			packet, err = path.Peer().Channel().Receive()
			require.NoError(s.t, err)
		}
		if packet != nil {
			if packet.Intact != nil {
				fmt.Println("copies")
				time.Sleep(time.Hour)
			}
			path.Peer().Handle(packet, s.dev.now())
			path.Peer().Channel().Release()
		}
		s.dev.mu.Unlock()
		s.wait(1)
	}
}

const victimMemory = 1 << 20

// victim is a process with one end of a connection.
type victim struct {
	endpointInfo
	*process.Process
	t   testing.TB
	out *bufio.Reader
}

// startVictim connects a side to a process of its own.
func startVictim(s *side, what string) *victim {
	s.t.Helper()
	v := beginVictim(s, what)
	s.timeout = longTimeout
	s.connectToInfo(v.endpointInfo)
	v.awaitConnected()
	s.awaitProof()
	return v
}

func (v *victim) awaitConnected() {
	v.t.Helper()
	line, err := v.out.ReadString('\n')
	require.NoError(v.t, err)
	require.Equal(v.t, "connected\n", line)
}

// beginVictim starts a process that connects to a side.
func beginVictim(s *side, what string) *victim {
	s.t.Helper()
	p, err := process.Start(context.Background(), process.Program{
		Args: []string{os.Args[0], "-test.run", "^TestLocalVictim$"}, Env: []string{victimVariable + "=" + what}, Stderr: os.Stderr, In: true, Out: true,
	})
	require.NoError(s.t, err)
	s.t.Cleanup(p.Kill)
	v := &victim{Process: p, t: s.t, out: bufio.NewReader(p.Out)}
	v.endpointInfo = readEndpointInfo(s.t, v.out)
	_, err = fmt.Fprintln(v.In, s.endpointInfo())
	require.NoError(s.t, err)
	return v
}

// stop stops the process.
func (v *victim) stop() {
	v.t.Helper()
	require.NoError(v.t, v.Signal(unix.SIGSTOP))
	var status unix.WaitStatus
	_, err := unix.Wait4(v.PID(), &status, unix.WUNTRACED, nil)
	require.NoError(v.t, err)
	require.True(v.t, status.Stopped())
}

// awaitProof waits until it is known that the channel of a side's queue pair leads to the
// process of its peer.
func (s *side) awaitProof() {
	s.t.Helper()
	s.until("the channel is known to lead to the peer's process", func() bool {
		s.dev.mu.Lock()
		defer s.dev.mu.Unlock()
		path := s.qp.(*queuePair).path.(*localPath).shared
		return path.Shared() && path.Peer().Channel().AliveAfter(uint32(hidden(path, "mark").Uint()))
	})
}

// peerGone returns a channel for the events that a queue pair's peer is gone.
func (s *side) peerGone() <-chan uint32 {
	gone := make(chan uint32, 10)
	s.t.Cleanup(s.dev.SubscribeEvents(func(e verbs.Event) {
		if e.Type == verbs.EventPeerGone {
			gone <- e.QPN
		}
	}))
	return gone
}

// An idle queue pair that outlives its peer stays as it is, as on an adapter. A request fails.
func TestLocalPeerKilledOutlived(t *testing.T) {
	for _, busy := range []bool{false, true} {
		x := openSide(t, Config{}, victimMemory)
		x.qp.(cverbs.QP).ActAsAdapter()
		v := startVictim(x, "idle")
		x.recv(100, x.sge(0, 8))
		if busy {
			v.stop()
			x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: v.Addr, RKey: v.RKey})
		}
		v.Kill()
		if busy {
			require.Equal(t, []verbs.Status{verbs.StatusRetryExceeded, verbs.StatusFlushed}, statuses(x.wait(2)))
			continue
		}
		x.until("the peer's death is known", func() bool { return localCounter(x, "local_peers_died") == 1 })
		require.Equal(t, verbs.QPReadyToSend, must(x.qp.Query()).State)
		require.Zero(t, must(x.cq.Poll(x.wcs)), "the receive is not flushed")
	}
}

// A killed peer is detected without a timer, whatever is in progress.
func TestLocalPeerKilled(t *testing.T) {
	for name, op := range map[string]verbs.Opcode{
		"idle": -1, "a write": verbs.OpWrite, "a read": verbs.OpRead, "a send": verbs.OpSend, "an atomic": verbs.OpFetchAdd,
		"an atomic write": verbs.OpAtomicWrite,
	} {
		t.Run(name, func(t *testing.T) {
			x := openSide(t, Config{}, victimMemory)
			gone := x.peerGone()
			v := startVictim(x, "idle")
			x.recv(100, x.sge(0, 8))
			want := []verbs.Status{verbs.StatusFlushed}
			if op >= 0 {
				v.stop()
				wr := verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: v.Addr, RKey: v.RKey}
				x.post(wr, wr)
				want = []verbs.Status{verbs.StatusRetryExceeded, verbs.StatusFlushed, verbs.StatusFlushed}
			}
			v.Kill()
			require.Equal(t, x.qp.Num(), <-gone, "noticed though nobody polls")
			require.Equal(t, want, statuses(x.wait(len(want))))
			require.Equal(t, verbs.QPError, must(x.qp.Query()).State)
			require.EqualValues(t, 1, localCounter(x, "local_peers_died"))
			require.Zero(t, localCounter(x, "local_peers"))
		})
	}
}

// A peer that is stopped for longer than all time-outs keeps its connections.
func TestLocalPeerStopped(t *testing.T) {
	x := openSide(t, Config{}, victimMemory)
	v := beginVictim(x, "idle")
	x.timeout = 10 // 4 ms, and 7 repetitions
	x.connectToInfo(v.endpointInfo)
	v.awaitConnected()
	x.awaitProof()
	v.stop()
	x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: v.Addr, RKey: v.RKey})
	for begun := time.Now(); time.Since(begun) < 200*time.Millisecond; {
		require.Zero(t, must(x.cq.Poll(x.wcs)))
	}
	require.NoError(t, v.Signal(unix.SIGCONT))
	require.Equal(t, []verbs.Status{verbs.StatusSuccess}, statuses(x.wait(1)))
}

// A peer that is killed during a copy counts as dead; a peer that is stopped there does not.
func TestLocalPeerKilledInACopy(t *testing.T) {
	for _, killed := range []bool{true, false} {
		t.Run(fmt.Sprintf("killed %v", killed), func(t *testing.T) {
			x := openSide(t, Config{}, victimMemory)
			x.share(victimMemory)
			gone := x.peerGone()
			v := startVictim(x, "copies")
			_, err := fmt.Fprintln(v.In)
			require.NoError(t, err)
			line, err := v.out.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "copies\n", line)
			x.dev.mu.Lock()
			path := x.qp.(*queuePair).path.(*localPath).shared
			if killed {
				v.Kill()
			}
			path.Revoke(x.mem)
			stuck := path.Peer().Channel().Stalled()
			x.dev.main.wake()
			x.dev.mu.Unlock()
			require.True(t, stuck)
			if killed {
				require.Equal(t, x.qp.Num(), <-gone)
				require.EqualValues(t, 1, localCounter(x, "local_peers_died"))
				require.Equal(t, verbs.QPError, must(x.qp.Query()).State)
				return
			}
			x.until("it is known that the process lives", func() bool {
				x.dev.mu.Lock()
				defer x.dev.mu.Unlock()
				return hidden(&x.dev.main.mu.local, "channels").IsZero()
			})
			require.Zero(t, localCounter(x, "local_peers_died"))
			require.Equal(t, verbs.QPReadyToSend, must(x.qp.Query()).State)
			require.Empty(t, gone)
		})
	}
}

// A message that waits for a receive fails when the peer is killed.
func TestLocalPeerKilledNotReady(t *testing.T) {
	x := openSide(t, Config{}, victimMemory)
	gone := x.peerGone()
	v := startVictim(x, "idle")
	x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}})
	x.until("it waits", func() bool { return localCounter(x, "rcvd_rnr_err") > 0 })
	v.Kill()
	<-gone
	require.Equal(t, []verbs.Status{verbs.StatusRetryExceeded}, statuses(x.wait(1)))
}

// A device that is closed properly does not count as dead.
func TestLocalPeerCloses(t *testing.T) {
	x := openSide(t, Config{}, victimMemory)
	v := startVictim(x, "closes")
	_, err := fmt.Fprintln(v.In)
	require.NoError(t, err)
	x.until("the channel has ended", func() bool { return localCounter(x, "local_peers") == 0 })
	require.NoError(t, v.Wait())
	require.Equal(t, verbs.QPReadyToSend, must(x.qp.Query()).State)
	require.Zero(t, localCounter(x, "local_peers_died"))
	x.dev.mu.Lock()
	defer x.dev.mu.Unlock()
	require.Zero(t, x.dev.main.mu.unreachable.nextProbe, "who connects from that address now is not disturbed")
}

// A connection that may have been made after the process died, and so to another one, is only
// probed.
func TestLocalPeerKilledBeforeOther(t *testing.T) {
	x := openSide(t, Config{}, victimMemory)
	gone := x.peerGone()
	v := startVictim(x, "idle")
	v.stop()
	y := *x
	y.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8, MaxRecvWR: 8}))
	y.connectToInfo(v.endpointInfo)
	v.Kill()
	require.Equal(t, x.qp.Num(), <-gone)
	require.Equal(t, verbs.QPReadyToSend, must(y.qp.Query()).State)
	require.Empty(t, gone)
	require.NoError(t, y.qp.Close())
}

// resources are what a channel could leak.
type resources struct{ goroutines, files, mappings int }

func countResources(t testing.TB) resources {
	files := must(os.ReadDir("/proc/self/fd"))
	maps := string(must(os.ReadFile("/proc/self/maps")))
	return resources{runtime.NumGoroutine(), len(files), strings.Count(maps, "memfd:verbena")}
}

// Processes at the other end are killed at any moment, and nothing leaks.
func TestSoakLocalPeerKilled(t *testing.T) {
	x := openSide(t, Config{}, victimMemory)
	x.share(victimMemory)
	var before resources
	grown := uint64(0)
	for round := range soak.Rounds(t, 10, 1000) {
		y := *x
		y.qp = must(x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 16, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4}))
		v := beginVictim(&y, "works")
		early := rand.IntN(4) == 0
		if early { // in the midst of meeting
			pause := time.Duration(rand.IntN(3000)) * time.Microsecond
			time.AfterFunc(pause, func() { _ = v.Signal(os.Kill) })
		}
		y.timeout = longTimeout
		y.connectToInfo(v.endpointInfo)
		if !early {
			v.awaitConnected()
			y.awaitProof()
			stop := time.Now().Add(time.Duration(rand.IntN(20)) * time.Millisecond)
			posted, failed := 0, 0
			idle := false // the queue pair may have been told of the death with nothing under way
			post := func(n int) {
				for range n {
					y.post(verbs.SendWR{Op: []verbs.Opcode{verbs.OpWrite, verbs.OpRead}[posted%2], Flags: verbs.FlagSignaled,
						SGL: []verbs.SGE{y.sge(victimMemory/2, 1+rand.IntN(victimMemory/2))}, RemoteAddr: v.Addr, RKey: v.RKey})
					posted++
				}
			}
			post(8)
			for failed < posted {
				if !stop.IsZero() && time.Now().After(stop) {
					stop = time.Time{}
					require.NoError(t, v.Signal(os.Kill))
				}
				wcs := y.wait(1)
				idle = idle || len(wcs) == posted
				for _, wc := range wcs {
					switch {
					case wc.Status == verbs.StatusSuccess:
						posted--
						post(1)
					case failed == 0:
						require.True(t, wc.Status == verbs.StatusRetryExceeded || idle && wc.Status == verbs.StatusFlushed, wc.Status)
						failed++
					default:
						require.Equal(t, verbs.StatusFlushed, wc.Status)
						failed++
					}
				}
			}
		}
		_ = v.Wait()
		v.out = nil // the test keeps the process until its end
		require.NoError(t, y.qp.Close())
		if round == 0 { // from now on, nothing is there for the first time
			x.until("the first channel has ended", func() bool { return localCounter(x, "local_peers") == 0 })
			before, grown = countResources(t), heap()
		}
	}
	x.until("all channels have ended", func() bool { return localCounter(x, "local_peers") == 0 })
	left := func(now resources) bool {
		return now.goroutines > before.goroutines || now.files > before.files || now.mappings > before.mappings
	}
	limit := time.Now().Add(time.Minute)
	for left(countResources(t)) && time.Now().Before(limit) {
		time.Sleep(time.Millisecond)
	}
	assert.False(t, left(countResources(t)), "%+v is left, where there was %+v after the first round", countResources(t), before)
	x.until("the dead are forgotten, who are dialled again after a pause", func() bool {
		x.dev.mu.Lock()
		defer x.dev.mu.Unlock()
		return len(x.dev.main.mu.local.All()) == 0
	})
	x.dev.mu.Lock()
	assert.Zero(t, hidden(&x.dev.main.mu.local, "unresolved").Int())
	x.dev.mu.Unlock()
	now := heap()
	t.Logf("the heap had %d bytes after the first round, and has %d", grown, now)
	assert.Less(t, now, grown+4<<20, "bytes of heap")
}

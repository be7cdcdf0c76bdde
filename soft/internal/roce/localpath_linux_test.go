package roce

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/local"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// localCounter returns a counter of a side's device.
func localCounter(s *side, name string) uint64 {
	s.t.Helper()
	for _, c := range must(s.dev.Counters()) {
		if c.Name == name {
			return c.Value
		}
	}
	require.Failf(s.t, "no such counter", "%s", name)
	return 0
}

func (s *side) until(what string, done func() bool) {
	s.t.Helper()
	require.Eventually(s.t, done, 5*time.Minute, time.Millisecond, "%s", what)
}

// openLocalPair connects two devices and waits until they share memory.
func openLocalPair(t testing.TB, memory int) (*side, *side) {
	t.Helper()
	x, y := openAdaptive(t, Config{}, memory), openAdaptive(t, Config{}, memory)
	x.connect(y)
	y.connect(x)
	awaitSharedMemory(x, y)
	return x, y
}

// share gives a side memory that can be exported to the peer.
func (s *side) share(n int) {
	s.t.Helper()
	mem, free, err := s.dev.AllocMemory(n)
	require.NoError(s.t, err)
	require.NoError(s.t, s.mr.Close())
	s.mem = mem
	s.mr = must(s.dev.DefaultPD().RegMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))
	s.t.Cleanup(func() {
		require.NoError(s.t, s.mr.Close())
		require.NoError(s.t, free())
	})
}

// word reads a word of the side's memory that peers do atomics on.
func (s *side) word(off int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&s.mem[off])))
}

// exchange does each operation once, both ways, and checks every byte.
func exchange(t testing.TB, x, y *side, n int) {
	t.Helper()
	half := len(x.mem) / 2
	require.LessOrEqual(t, n, half-8)
	for _, way := range [][2]*side{{x, y}, {y, x}} {
		from, to := way[0], way[1]
		for i, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpSend, verbs.OpRead, verbs.OpWriteImm, verbs.OpFetchAdd, verbs.OpAtomicWrite} {
			data := make([]byte, n)
			_, _ = rand.Read(data)
			wr := verbs.SendWR{ID: uint64(i), Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{from.sge(0, n/3), from.sge(n/3, n-n/3)}, RemoteAddr: to.mr.Addr() + uint64(half), RKey: to.mr.RKey(), Imm: 77}
			source, target := from.mem[:n], to.mem[half:half+n]
			completions, counted := 0, uint64(0)
			switch op {
			case verbs.OpRead:
				source, target = target, source
			case verbs.OpSend, verbs.OpWriteImm:
				to.recv(9, to.sge(half, half))
				completions = 1
			case verbs.OpAtomicWrite:
				data = make([]byte, 8)
				_, _ = rand.Read(data)
				wr.SGL = []verbs.SGE{from.sge(0, 8)}
				source, target = from.mem[:8], to.mem[half:half+8]
			case verbs.OpFetchAdd:
				word := len(to.mem) - 8
				wr.SGL, wr.RemoteAddr, wr.CompareAdd = []verbs.SGE{from.sge(word, 8)}, to.mr.Addr()+uint64(word), 5
				source, target = nil, nil
				counted = to.word(word) + 5
			}
			copy(source, data)
			from.post(wr)
			// The other end may have to be polled too, where both are polled.
			for _, wc := range from.wait(1) {
				require.Equal(t, verbs.StatusSuccess, wc.Status, "%v", op)
			}
			if completions > 0 {
				for _, wc := range to.wait(completions) {
					require.Equal(t, verbs.StatusSuccess, wc.Status, "%v", op)
				}
			}
			if target != nil {
				require.True(t, bytes.Equal(data, target), "%v of %d bytes", op, n)
			} else {
				require.Equal(t, counted, to.word(len(to.mem)-8))
			}
		}
	}
}

// Devices of one machine exchange packets through shared memory, by themselves.
func TestLocalPath(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared %v", shared), func(t *testing.T) {
			x, y := openLocalPair(t, 4<<20)
			if shared {
				x.share(4 << 20)
				y.share(4 << 20)
			}
			for _, n := range []int{8, 100, 4095, 4096, 4097, 65536, 65537, 1<<20 + 1, 1<<21 - 64} {
				exchange(t, x, y, n)
			}
			for _, s := range []*side{x, y} {
				assert.NotZero(t, localCounter(s, "local_sent_pkts"))
				assert.Equal(t, localCounter(s, "sent_pkts"), localCounter(s, "local_sent_pkts"), "none has gone by UDP")
			}
		})
	}
}

// awaitReferences waits until a side sends n bytes from the beginning of its memory by reference.
func awaitReferences(s *side, n int) {
	s.t.Helper()
	p := s.qp.(*queuePair).path.(*localPath).shared.Peer()
	s.until("its memory has been shown", func() bool {
		s.dev.mu.Lock()
		defer s.dev.mu.Unlock()
		return p.References([][]byte{s.mem[:n]}) != nil
	})
}

// If memory is revoked, payload in it that the peer has not copied yet is lost, and later
// contents of the memory are never delivered. The connection continues once the memory is
// available again.
func TestPayloadTakenBack(t *testing.T) {
	const n = 2 * local.MinReference
	for name, op := range map[string]verbs.Opcode{"write with immediate": verbs.OpWriteImm, "send": verbs.OpSend, "read": verbs.OpRead} {
		for _, way := range reclaimWays {
			if way.window == verbs.MWType1 || way.window != 0 && op != verbs.OpRead {
				continue // the payload was copied at once, or is not lent
			}
			for _, taken := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/taken %v", name, way.name, taken), func(t *testing.T) {
					x, y := openLocalPair(t, 1<<20)
					p := &reclaim{peer: y, owner: x, user: y} // of the data
					if op == verbs.OpRead {
						p.peer, p.owner, p.user = x, y, x
					}
					p.begin(way.window)
					from, to := p.owner, p.peer
					from.mem = p.mem
					awaitReferences(from, n)
					fillWith(p.mem, bytesBefore)
					wr := verbs.SendWR{Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{{Addr: p.mr.Addr(), Length: n, LKey: p.mr.LKey()}}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}
					if op == verbs.OpRead {
						wr.SGL, wr.RemoteAddr, wr.RKey = []verbs.SGE{to.sge(0, n)}, p.mr.Addr(), p.key
					}
					peer := to.qp.(*queuePair).path.(*localPath).shared.Peer()
					to.recv(9, to.sge(0, n))
					y.dev.main.mu.Lock()
					x.post(wr)
					if op == verbs.OpRead {
						x.dev.main.mu.Lock()
						y.dev.main.progress(y.dev.now(), atPolled)
						y.dev.main.mu.Unlock()
					}
					// The end that is to take the data is locked, as if its process stood still.
					var packet *local.Packet
					if taken {
						packet = must(peer.Channel().Receive())
						require.NotNil(t, packet)
						require.Equal(t, byte(bytesBefore), packet.Pieces[0][0], "it lies there")
					}
					if way.name == "queue pair failed" && op != verbs.OpRead {
						p.failQueuePair() // a request with an error would wait for this one
					} else {
						way.take(p)
					}
					fillWith(p.mem, bytesAfter)
					if taken {
						peer.Handle(packet, to.dev.now())
					}
					to.dev.main.progress(to.dev.now(), atPolled)
					to.dev.main.mu.Unlock()
					n, err := to.cq.Poll(to.wcs)
					require.NoError(t, err)
					for _, wc := range to.wcs[:n] {
						assert.NotEqual(t, verbs.StatusSuccess, wc.Status)
					}
					if !taken {
						assert.Equal(t, -1, bytes.IndexByte(to.mem, bytesAfter))
					}
				})
			}
		}
	}
}

// Devices that look for each other at the same moment have one channel in the end.
func TestSoakLocalPathMeets(t *testing.T) {
	for range soak.Rounds(t, 200, 5000) {
		x, y := openLocalPair(t, 4096)
		exchange(t, x, y, 100)
	}
}

// A process that ends may release its UDP address before its name. The next device with the
// address listens under the name as soon as it is free.
func TestLocalPathNameInUse(t *testing.T) {
	before := openSide(t, Config{DisableLocal: true}, 64)
	addr := before.dev.endpoints[0].socket.Addr()
	taken, err := local.Listen(local.Address{Device: addr})
	require.NoError(t, err)
	require.NoError(t, before.qp.Close())
	require.NoError(t, before.mr.Close())
	require.NoError(t, before.cq.Close())
	require.NoError(t, before.dev.Close())
	y, x := openSide(t, Config{Addresses: []netip.AddrPort{addr}}, 64), openSide(t, Config{}, 64)
	x.connect(y)
	y.connect(x)
	taken.Close()
	awaitSharedMemory(x, y)
}

// What a peer has sent before its process ends arrives.
func TestLocalPathLastWords(t *testing.T) {
	for range 50 {
		x, y := openPair(t, Config{}, Config{}, 1<<16) // whose queue pairs do not repeat it meanwhile
		awaitSharedMemory(x, y)
		x.recv(1, x.sge(0, 100))
		x.dev.mu.Lock() // it is busy, while the other sends and is gone
		y.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{y.sge(0, 100)}})
		y.dev.mu.Lock()
		y.dev.main.mu.local.All()[0].End(io.EOF)
		y.dev.mu.Unlock()
		x.dev.mu.Unlock()
		require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
		assert.Equal(t, localCounter(x, "rcvd_pkts"), localCounter(x, "local_rcvd_pkts"), "it came through shared memory")
	}
}

// A channel that ends during traffic loses no byte: packets continue by UDP, and by
// the next channel.
func TestLocalPathEnds(t *testing.T) {
	x, y := openLocalPair(t, 1<<20)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(mathrand.IntN(3000)) * time.Microsecond):
			}
			d := []*Device{x.dev, y.dev}[i%2]
			d.mu.Lock()
			for _, p := range d.main.mu.local.All() {
				if p.Channel() != nil {
					p.End(net.ErrClosed) // the peer is not said to have died
				}
			}
			d.main.mu.local.Reconsider() // dials again at once
			d.mu.Unlock()
		}
	}()
	// On a busy machine, several exchanges may find the same way.
	bothWays := func() bool {
		sent := localCounter(x, "local_sent_pkts")
		return sent > 0 && sent < localCounter(x, "sent_pkts")
	}
	defer func() {
		close(stop)
		<-ended
	}()
	limit := time.Now().Add(5 * time.Minute)
	for i := 0; i < 20 || !bothWays(); i++ {
		require.Less(t, time.Now(), limit, "all packets have gone one way")
		exchange(t, x, y, 1+(i*7919)%(1<<19-64))
	}
	assert.Equal(t, verbs.QPReadyToSend, must(x.qp.Query()).State)
}

// Faults, captures and DisableLocal keep packets on a socket.
func TestLocalPathOff(t *testing.T) {
	for name, cfg := range map[string]Config{
		"off": {DisableLocal: true}, "faults": {Faults: faults.Faults{Loss: 0.01}}, "capture": {Capture: io.Discard},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := openPair(t, cfg, Config{}, 1<<17)
			exchange(t, x, y, 5000)
			assert.Zero(t, localCounter(x, "local_peers")+localCounter(y, "local_peers")+localCounter(y, "local_sent_pkts"))
		})
	}
	x, y := openLocalPair(t, 1<<17)
	require.NoError(t, x.dev.SetFaults(faults.Faults{Loss: 0.05, Seed: 1}))
	y.until("the channel has ended", func() bool { return localCounter(y, "local_peers") == 0 })
	exchange(t, x, y, 60_000)
}

// A peer that sleeps is woken, and answers for a program that does nothing.
func TestLocalPathSleepers(t *testing.T) {
	x, y := openLocalPair(t, 1<<17)
	woken := make(chan struct{}, 100)
	y.cq.OnCompletion(func() { woken <- struct{}{} })
	for range 50 {
		y.recv(1, y.sge(0, 100))
		for must(y.cq.Arm(false)) == false {
			_, _ = y.cq.Poll(y.wcs)
		}
		x.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 100)}})
		<-woken
		require.Equal(t, verbs.StatusSuccess, y.wait(1)[0].Status)
		require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
	}
}

// intruder is a process that says it is the device x, and writes what it likes into the memory
// that it shares with y.
type intruder struct {
	conn   *net.UnixConn
	memory []byte
}

// localAddress is the address of the device's first shard.
func (s *side) localAddress() local.Address {
	return local.Address{Device: s.dev.endpoints[0].socket.Addr(), Shard: s.dev.main.slot}
}

func intrude(t *testing.T, x, y *side) *intruder {
	t.Helper()
	own, other := x.localAddress(), y.localAddress()
	found, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: "@verbena/local/" + own.String(), Net: "unixpacket"})
	require.NoError(t, err)
	defer func() { require.NoError(t, found.Close()) }()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: "@verbena/local/" + other.String(), Net: "unixpacket"})
	require.NoError(t, err)
	_, err = conn.Write(fmt.Appendf(nil, "verbena local 7 %v %v", own, other))
	require.NoError(t, err)
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 100), rights)
	require.NoError(t, err)
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	require.NoError(t, err)
	require.Len(t, messages, 1)
	fds, err := unix.ParseUnixRights(&messages[0])
	require.NoError(t, err)
	memory, err := unix.Mmap(fds[0], 0, 2*(4096+1<<20), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fds[0]))
	y.until("the intruder is taken for the peer", func() bool {
		y.dev.mu.Lock()
		defer y.dev.mu.Unlock()
		ends := local.Ends{Local: other, Peer: own}
		return slices.ContainsFunc(y.dev.main.mu.local.All(), func(p *local.Peer) bool { return p.Ends() == ends && p.Channel() != nil })
	})
	return &intruder{conn, memory}
}

func (i *intruder) leave(t *testing.T) {
	require.NoError(t, unix.Munmap(i.memory))
	require.NoError(t, i.conn.Close())
}

// writeRandom writes nonsense, some of it near to what makes sense.
func (i *intruder) writeRandom(random *mathrand.Rand) {
	m := i.memory
	for range 1 + random.IntN(64) {
		at := 4096 + random.IntN(1<<20)&^7
		binary.LittleEndian.PutUint64(m[at:], random.Uint64()>>random.IntN(64))
	}
	records := 1 + random.IntN(8)
	if random.IntN(4) == 0 {
		records = 1 << 14 // more than there is room for: there is no end of them
	}
	for at := 4096; records > 0 && at < 4096+1<<20; records-- {
		size, kind := uint64(64*(1+random.IntN(20))), uint64(random.IntN(5))
		binary.LittleEndian.PutUint64(m[at:], size|kind<<32|uint64(12+4*random.IntN(8))<<40)
		binary.LittleEndian.PutUint64(m[at+8:], uint64(random.IntN(100)))
		m[at+16] = byte(random.IntN(32)) // the opcode
		at += int(size)
	}
	if random.IntN(2) == 0 {
		binary.LittleEndian.PutUint64(m[4096+1<<20:], random.Uint64()>>random.IntN(64)) // what it has taken
	}
	_, _ = i.conn.Write([]byte{'w', 0, 0, 0, 0})
}

// A process that writes nonsense into the shared memory ends its path, and nothing else: not
// that of another process with the same device.
func TestSoakLocalPathNonsense(t *testing.T) {
	rounds := soak.Rounds(t, 40, 4000)
	x, y := openAdaptive(t, Config{DisableLocal: true}, 1<<17), openAdaptive(t, Config{}, 1<<17)
	x.connect(y)
	y.connect(x)
	other, beside := openAdaptive(t, Config{}, 1<<17), *y
	beside.qp = must(y.dev.DefaultPD().CreateQP(verbs.QPInit{AdaptiveRetransmission: true, SendCQ: y.cq, RecvCQ: y.cq, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 4, MaxRecvSGE: 4}))
	defer func() { require.NoError(t, beside.qp.Close()) }()
	other.connect(&beside)
	beside.connect(other)
	awaitSharedMemory(other, &beside)
	random := mathrand.New(mathrand.NewPCG(1, 2))
	for range rounds {
		i := intrude(t, x, y)
		for localCounter(y, "local_peers") > 1 {
			i.writeRandom(random)
			exchange(t, other, &beside, 1+random.IntN(200))
		}
		i.leave(t)
		exchange(t, x, y, 1+random.IntN(20_000))
	}
	assert.NotZero(t, localCounter(y, "local_protocol_errors"))
	assert.EqualValues(t, 1, localCounter(y, "local_peers"))
	assert.Equal(t, localCounter(other, "sent_pkts"), localCounter(other, "local_sent_pkts"), "none of the other's has gone by UDP")
}

// More than the ring holds waits for room.
func TestLocalPathFull(t *testing.T) {
	const n = 300
	x, y := openLocalPair(t, 8<<20)
	y.dev.mu.Lock() // its process is stopped
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		for range n {
			x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 1<<20)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
		}
	}()
	<-posted
	y.dev.mu.Unlock()
	for _, wc := range x.wait(n) {
		require.Equal(t, verbs.StatusSuccess, wc.Status)
	}
}

// behind is a side whose peer's process may be stopped. Both locks are held, and time passes when
// the test says so.
type behind struct {
	*queuePair
	x, y  *side
	begun time.Duration
	now   time.Duration
}

// openBehind connects two sides by shared memory, and calls test with their locks held. x has
// posted a write; closed says that y has closed its queue pair. It returns the status of the write.
func openBehind(t *testing.T, closed bool, test func(*behind)) verbs.Status {
	x, y := openPair(t, Config{}, Config{}, 64)
	awaitSharedMemory(x, y)
	if closed {
		require.NoError(t, y.qp.Close())
	}
	func() {
		y.dev.mu.Lock()
		defer y.dev.mu.Unlock()
		x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
		x.dev.mu.Lock()
		defer x.dev.mu.Unlock()
		now := x.dev.now()
		test(&behind{queuePair: x.qp.(*queuePair), x: x, y: y, begun: now, now: now})
	}()
	return x.wait(1)[0].Status
}

// expire lets time pass until the oldest packet's time-out is due, and handles it. It reports
// whether the queue pair has failed.
func (b *behind) expire() (failed bool) {
	b.now = max(b.now, b.transport.Deadline())
	b.shard.expire(b.now)
	b.shard.transmit(b.now)
	return b.transport.State() == verbs.QPError
}

// take makes the peer take what is in the channel.
func (b *behind) take() { b.y.dev.main.mu.local.Receive(b.now) }

// A time-out does not count while the packets wait in shared memory: nothing is lost there, and the
// peer's process may be stopped, or wait for a processor. It counts once the peer has been silent
// for seconds, or has taken the packets and does not respond.
func TestLocalPathPeerBehind(t *testing.T) {
	t.Run("for a while", func(t *testing.T) {
		require.Equal(t, verbs.StatusSuccess, openBehind(t, false, func(b *behind) {
			sent := b.shard.mu.local.Counters().Sent
			for range 50 {
				assert.False(t, b.expire())
			}
			assert.Equal(t, sent, b.shard.mu.local.Counters().Sent, "nothing is repeated")
		}))
	})
	t.Run("for too long", func(t *testing.T) {
		require.Equal(t, verbs.StatusRetryExceeded, openBehind(t, false, func(b *behind) {
			for n := 0; !b.expire() && assert.Less(t, n, 1000); n++ {
			}
			assert.Greater(t, b.now-b.begun, 4*time.Second)
		}))
	})
	t.Run("several times", func(t *testing.T) {
		require.Equal(t, verbs.StatusSuccess, openBehind(t, false, func(b *behind) {
			for range 5 {
				for range 50 {
					assert.False(t, b.expire())
				}
				b.take()
				b.y.dev.main.transmit(b.now)
				b.shard.mu.local.Receive(b.now)
				_, err := b.transport.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, SGL: []verbs.SGE{b.x.sge(0, 8)}, RemoteAddr: b.y.mr.Addr(), RKey: b.y.mr.RKey()}})
				assert.NoError(t, err)
				b.shard.activate(b.queuePair)
				b.shard.transmit(b.now)
			}
		}))
	})
	t.Run("and does not respond", func(t *testing.T) {
		require.Equal(t, verbs.StatusRetryExceeded, openBehind(t, true, func(b *behind) {
			for n := range 8 {
				b.take()
				assert.Equal(t, n == 7, b.expire(), n)
			}
		}))
	})
}

// A connection that always has more to send than fits does not starve others.
func TestLocalPathTurns(t *testing.T) {
	const (
		size    = 4 << 10 // through the ring
		ring    = 1 << 20
		posted  = 2 * ring / size
		timeout = 22 // 17 s: nothing is lost, and a slow machine must not pass for a loss
	)
	x, y := openLocalPair(t, size)
	a, b := x.anotherQueuePair(), y.anotherQueuePair()
	a.timeout, b.timeout = timeout, timeout
	a.connect(b)
	b.connect(a)
	awaitSharedMemory(a, b)
	write := func(n int) verbs.SendWR {
		return verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
	}
	bulk := slices.Repeat([]verbs.SendWR{write(size)}, posted)
	x.post(bulk...)
	poll := func(s *side) int {
		n, err := s.cq.Poll(s.wcs)
		require.NoError(t, err)
		for _, wc := range s.wcs[:n] {
			require.Equal(t, verbs.StatusSuccess, wc.Status)
		}
		return n
	}
	for range 100 {
		a.post(write(8))
		completed := 0
		for ended := 0; ended == 0; ended = poll(a) {
			n := poll(x)
			completed += n
			x.post(bulk[:n]...)
			poll(y)
			// What is in the ring comes first, and a turn of the other connection.
			require.LessOrEqual(t, completed, posted, "requests of the other connection since this one was posted")
		}
	}
	for _, wc := range x.wait(posted) {
		require.Equal(t, verbs.StatusSuccess, wc.Status)
	}
}

// A channel that begins while a device closes is closed with it.
func TestLocalPathCloses(t *testing.T) {
	for range 50 {
		x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
		x.connect(y)
		y.connect(x)
		require.NoError(t, x.qp.Close())
		require.NoError(t, x.mr.Close())
		require.NoError(t, x.cq.Close())
		require.NoError(t, x.dev.Close())
	}
	_, err := local.Dial(t.Context(), local.Ends{})
	require.Error(t, err)
	require.NotErrorIs(t, err, net.ErrClosed)
}

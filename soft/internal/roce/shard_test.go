package roce

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/verbs"
)

// openPollers opens a device with one queue pair for each of n pollers. The first side that it
// returns owns what they share, and polls nothing.
func openPollers(t testing.TB, cfg Config, n, memory int) (*side, []*side) {
	cfg.MaxShards = n + 1
	s := openSide(t, cfg, memory)
	if !s.canShare() {
		t.Skip("the system cannot share an address")
	}
	var all []*side
	for i := range n {
		p := *s
		p.wcs = make([]verbs.WC, 64)
		p.cq = must(s.dev.CreateCQ(verbs.CQInit{Capacity: 1024, Poller: i}))
		p.qp = must(s.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}))
		t.Cleanup(func() {
			require.NoError(t, p.qp.Close())
			require.NoError(t, p.cq.Close())
		})
		all = append(all, &p)
	}
	return s, all
}

func (s *side) canShare() bool {
	other, err := s.dev.endpoints[0].socket.Share(nil, 0)
	if err != nil {
		return false
	}
	_ = other.Close()
	return true
}

func (s *side) shard() *shard { return s.qp.(*queuePair).shard }

// TestPollersHaveShards: different pollers have different shards, and packets are steered to
// the shard of their queue pair. All work at the same time, in both directions.
func TestPollersHaveShards(t *testing.T) {
	const pollers, rounds, size = 3, 50, 64 << 10
	a, as := openPollers(t, Config{DisableLocal: true}, pollers, 1<<20)
	b, bs := openPollers(t, Config{DisableLocal: true}, pollers, 1<<20)
	var work sync.WaitGroup
	for i := range pollers {
		x, y := as[i], bs[pollers-1-i] // shards of different numbers
		assert.Equal(t, i, x.shard().index)
		assert.Equal(t, uint32(x.shard().slot), x.qp.Num()&shardBits)
		x.timeout, y.timeout = 20, 20 // 4.3 s: nobody polls the other end all the time
		x.connect(y)
		y.connect(x)
		for _, end := range [][2]*side{{x, y}, {y, x}} {
			work.Go(func() {
				from, to := end[0], end[1]
				for round := range rounds {
					n := 8
					if round%10 == 0 {
						n = size
					}
					wr := from.write(to, n)
					wr.SGL[0].Addr += uint64(i * 128 << 10)
					wr.RemoteAddr += uint64(512<<10 + i*128<<10)
					if _, err := from.qp.PostSend([]verbs.SendWR{wr}); !assert.NoError(t, err) {
						return
					}
					for {
						k, err := from.cq.Poll(from.wcs)
						if !assert.NoError(t, err) {
							return
						}
						if k > 0 {
							assert.Equal(t, verbs.StatusSuccess, from.wcs[0].Status)
							break
						}
					}
				}
			})
		}
	}
	work.Wait()
	for _, d := range []*Device{a.dev, b.dev} {
		assert.Zero(t, counter(t, d, "rx_passed_on"))
		assert.GreaterOrEqual(t, counter(t, d, "rcvd_pkts"), uint64(pollers*rounds))
	}
}

// TestShardsAreFewAndReused: the number of shards is limited, and a new poller takes the shard
// of one whose queues are closed.
func TestShardsAreFewAndReused(t *testing.T) {
	s := openSide(t, Config{MaxShards: 2}, 4096)
	if !s.canShare() {
		t.Skip("the system cannot share an address")
	}
	home := func(poller any) int {
		cq := must(s.dev.CreateCQ(verbs.CQInit{Capacity: 1, Poller: poller}))
		t.Cleanup(func() { require.NoError(t, cq.Close()) })
		return cq.(*completionQueue).shard.index
	}
	assert.Equal(t, 0, home("a"))
	assert.Equal(t, 1, home("b"))
	assert.Equal(t, 1, home("b"), "the same poller")
	assert.Equal(t, 0, home("c"))
	assert.Equal(t, 0, home(nil))
	cq := must(s.dev.CreateCQ(verbs.CQInit{Capacity: 1, Poller: "d"}))
	assert.Equal(t, 1, cq.(*completionQueue).shard.index)
	require.NoError(t, cq.Close())
	assert.Equal(t, 1, home("e"))
	assert.Len(t, s.dev.mu.list, 2)
}

// TestOneShardForFaults: with faults there is one shard, so that the same seed gives the same
// faults.
func TestOneShardForFaults(t *testing.T) {
	s := openSide(t, Config{Faults: faults.Faults{Loss: 0.5}, MaxShards: 4}, 4096)
	for i := range 3 {
		cq := must(s.dev.CreateCQ(verbs.CQInit{Capacity: 1, Poller: i}))
		assert.Equal(t, s.dev.main.shard, cq.(*completionQueue).shard)
		require.NoError(t, cq.Close())
	}
}

// TestQueuesOfTwoPollers: a queue pair with the queues of two pollers works, whichever of them
// is polled, and does not affect their other queue pairs.
func TestQueuesOfTwoPollers(t *testing.T) {
	a, as := openPollers(t, Config{DisableLocal: true}, 2, 1<<20)
	peer := openSide(t, Config{DisableLocal: true}, 1<<20)
	x := as[1]
	require.Equal(t, 1, x.shard().index)
	x.connect(peer)
	peer.connect(x)
	const writes, size = 16, 256 << 10
	for range writes {
		x.post(x.write(peer, size))
	}
	const depth = 4
	both, second := *as[0], openSide(t, Config{DisableLocal: true}, 4096)
	both.qp = must(a.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: as[0].cq, RecvCQ: x.cq, MaxSendWR: depth, MaxRecvWR: depth}))
	both.connect(second)
	second.connect(&both)
	assert.Equal(t, []int{0, 1}, []int{both.shard().index, x.shard().index})
	for _, wc := range x.wait(writes) {
		assert.Equal(t, verbs.StatusSuccess, wc.Status)
	}
	for range 3 * depth { // each place is used several times
		both.recv(1, both.sge(0, 8))
		second.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{second.sge(0, 8)}})
		require.Equal(t, both.qp.Num(), x.wait(1)[0].QPN, "its receives complete in the one queue")
		both.post(both.write(second, 8))
		require.Equal(t, both.qp.Num(), both.wait(1)[0].QPN, "and its writes in the other")
	}
	assert.Zero(t, counter(t, a.dev, "rx_passed_on"), "packets come to the shard of the queue pair")

	events := make(chan struct{}, 1)
	x.cq.OnCompletion(func() { events <- struct{}{} })
	require.True(t, must(x.cq.Arm(false)))
	both.recv(1, both.sge(0, 8))
	second.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{second.sge(0, 8)}})
	<-events
	require.Equal(t, both.qp.Num(), x.wait(1)[0].QPN)
	require.NoError(t, both.qp.Close())
}

// TestOverrunOfARemoteQueue: when a queue overflows, the queue pairs of all shards that use it
// fail.
func TestOverrunOfARemoteQueue(t *testing.T) {
	a, as := openPollers(t, Config{DisableLocal: true}, 2, 4096)
	small := must(a.dev.CreateCQ(verbs.CQInit{Capacity: 2, Poller: 1}))
	near, far := *as[1], *as[0]
	near.qp = must(a.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: small, RecvCQ: small, MaxSendWR: 8}))
	far.qp = must(a.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: as[0].cq, RecvCQ: small, MaxRecvWR: 8}))
	require.Equal(t, []int{1, 0}, []int{near.shard().index, far.shard().index})
	peer := openSide(t, Config{DisableLocal: true}, 4096)
	far.connect(peer)
	peer.connect(&far)
	near.connect(&near)
	for range 3 {
		far.recv(1, far.sge(0, 8))
		peer.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{peer.sge(0, 8)}})
	}
	for _, s := range []*side{&far, &near} {
		require.Eventually(t, func() bool { return s.state() == verbs.QPError }, 5*time.Minute, time.Millisecond)
	}
	_, err := small.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrOverrun)
	for _, c := range []interface{ Close() error }{far.qp, near.qp, small} {
		require.NoError(t, c.Close())
	}
}

// TestDatagramsAreOfTheFirstShard: queue pairs for datagrams belong to the first shard, and
// work with the queue of a poller of any shard.
func TestDatagramsAreOfTheFirstShard(t *testing.T) {
	a, as := openPollers(t, Config{DisableLocal: true}, 2, 4096)
	for _, kind := range []verbs.QPType{verbs.UD, verbs.SRD} {
		x := *as[1]
		x.cq = must(a.dev.CreateCQ(verbs.CQInit{Capacity: 4, Poller: 1, Fields: verbs.WCSource}))
		require.Equal(t, 1, asCompletionQueue(x.cq).shard.index)
		x.qp = must(a.dev.DefaultPD().CreateQP(verbs.QPInit{Type: kind, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 2, MaxRecvWR: 2}))
		assert.EqualValues(t, a.dev.main.slot, x.qp.Num()&shardBits)
		if kind == verbs.UD {
			x.readyUD()
		} else {
			(&srdNode{side: &x}).ready(7)
		}
		wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)},
			AH: x.handle(a.dev.DefaultPD(), x.address(&x)), RemoteQPN: x.qp.Num(), RemoteQKey: testKey}
		for range 8 {
			x.postRecv(verbs.RecvWR{SGL: []verbs.SGE{x.sge(64, 64)}})
			x.post(wr)
			assert.Equal(t, []verbs.Status{verbs.StatusSuccess, verbs.StatusSuccess}, statuses(x.wait(2)), kind)
		}
		assert.Equal(t, 1, as[1].shard().index)
		require.NoError(t, x.qp.Close())
		require.NoError(t, x.cq.Close())
	}
}

// TestShardOfASharedReceiveQueue: queue pairs belong to the shard of their shared receive
// queue.
func TestShardOfASharedReceiveQueue(t *testing.T) {
	a, as := openPollers(t, Config{DisableLocal: true}, 2, 4096)
	pd := a.dev.DefaultPD()
	for _, poller := range []any{nil, 1} {
		srq := must(pd.CreateSRQ(verbs.SRQInit{MaxWR: 4, Poller: poller}))
		x, y := *as[1], openSide(t, Config{DisableLocal: true}, 4096)
		x.qp = must(pd.CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq, SRQ: srq, MaxSendWR: 1}))
		assert.Equal(t, srq.(*sharedReceiveQueue).shard, x.shard())
		x.connect(y)
		y.connect(&x)
		for range 8 {
			require.Equal(t, 1, must(srq.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{x.sge(0, 8)}}})))
			y.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{y.sge(0, 8)}})
			require.Equal(t, x.qp.Num(), x.wait(1)[0].QPN)
		}
		datagrams, err := pd.CreateQP(verbs.QPInit{Type: verbs.UD, SendCQ: x.cq, RecvCQ: x.cq, SRQ: srq, MaxSendWR: 1})
		if poller != nil {
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.ErrorContains(t, err, "SRQInit.Poller")
		} else {
			require.NoError(t, err)
			require.NoError(t, datagrams.Close())
		}
		require.NoError(t, x.qp.Close())
		require.NoError(t, srq.Close())
	}
}

// TestHandoffQueueIsBounded: excess packets for a shard that does not poll are dropped and
// counted.
func TestHandoffQueueIsBounded(t *testing.T) {
	a, _ := openPollers(t, Config{}, 1, 4096)
	s := &shard{device: a.dev, endpoints: a.dev.main.endpoints, sockets: a.dev.main.sockets}
	data := []byte{1, 2, 3}
	for range maxHandoffPackets + 5 {
		s.enqueuePacket(handoff{datagram: link.Datagram{Data: data}})
	}
	assert.Len(t, s.handoffs.items, maxHandoffPackets)
	assert.EqualValues(t, maxHandoffPackets+5, s.handoffs.total)
	assert.EqualValues(t, 5, s.handoffs.dropped)
	e := a.dev.main.endpoints[0]
	e.shard.enqueuePacket(handoff{datagram: link.Datagram{Data: make([]byte, maxHandoffBytes+1)}})
	assert.EqualValues(t, 1, e.shard.handoffs.dropped, "too long")
	data[0] = 9
	assert.EqualValues(t, 1, s.handoffs.items[0].datagram.Data[0], "the socket uses its memory again")
}

// TestPeerGoneForAllShards: a closed port is reported to one of the sockets of an address, and
// affects the queue pairs of all shards.
func TestPeerGoneForAllShards(t *testing.T) {
	a, as := openPollers(t, Config{DisableLocal: true}, 2, 4096)
	gone := must(link.Listen(link.Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}))
	gid := verbs.GIDEntry{GID: verbs.GIDFromAddr(gone.Addr().Addr()), UDPPort: gone.Addr().Port()}
	require.NoError(t, gone.Close())
	x := as[1]
	x.timeout = 8 // 1 ms
	x.connectTo(gid, 2)
	x.post(x.write(x, 8))
	assert.Equal(t, verbs.StatusRetryExceeded, x.wait(1)[0].Status)
	require.Eventually(t, func() bool {
		a.dev.mu.Lock()
		defer a.dev.mu.Unlock()
		return a.dev.mu.list[0].mu.unreachable.nextProbe != 0 && a.dev.mu.list[1].mu.unreachable.nextProbe != 0
	}, 5*time.Minute, time.Millisecond)
}

// TestWindowOfAnotherShard: once one shard has revoked a memory window, the peer of another
// shard accesses no byte through it.
func TestWindowOfAnotherShard(t *testing.T) {
	a, as := openPollers(t, Config{DisableLocal: true}, 2, 1<<20)
	peer := openSide(t, Config{DisableLocal: true}, 1<<20)
	owner, user := as[0], as[1]
	require.NotEqual(t, owner.shard(), user.shard())
	self := must(a.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: owner.cq, RecvCQ: owner.cq, MaxSendWR: 1}))
	loop := *owner
	loop.qp = self
	loop.connect(&loop)
	mem := make([]byte, 256<<10)
	mr := must(a.dev.DefaultPD().RegMR(mem, verbs.AccessLocalWrite|verbs.AccessMWBind))
	user.connect(peer)
	peer.connect(user)
	for i := range peer.mem {
		peer.mem[i] = 0xaa
	}
	for range 20 {
		mw := must(a.dev.DefaultPD().(verbs.WindowPD).AllocMW(verbs.MWType1))
		loop.post(verbs.SendWR{Op: verbs.OpBindMW, Flags: verbs.FlagSignaled, Bind: &verbs.MWBind{
			MW: mw, MR: mr, Addr: mr.Addr(), Length: uint64(len(mem)), Access: verbs.AccessRemoteWrite,
		}})
		require.Equal(t, verbs.StatusSuccess, loop.wait(1)[0].Status)
		wr := peer.write(peer, len(mem))
		wr.RemoteAddr, wr.RKey = mr.Addr(), mw.RKey()
		peer.post(wr)
		// While the write is under way.
		loop.post(verbs.SendWR{Op: verbs.OpBindMW, Flags: verbs.FlagSignaled, Bind: &verbs.MWBind{MW: mw, MR: mr}})
		require.Equal(t, verbs.StatusSuccess, loop.wait(1)[0].Status)
		clear(mem)
		status := peer.wait(1)[0].Status
		assert.NotContains(t, string(mem), "\xaa")
		require.NoError(t, mw.Close())
		if status == verbs.StatusSuccess {
			continue
		}
		assert.Equal(t, verbs.StatusRemoteAccessError, status)
		for _, end := range []*side{peer, user} {
			require.NoError(t, end.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
		}
		user.connect(peer)
		peer.connect(user)
	}
	require.NoError(t, mr.Close())
	require.NoError(t, self.Close())
}

// A peer disconnects while a request of a queue pair is under way that is in another shard than
// the connection manager.
func TestDisconnectOfAnotherShard(t *testing.T) {
	_, as := openPollers(t, Config{DisableLocal: true}, 2, 4096)
	_, bs := openPollers(t, Config{DisableLocal: true}, 2, 4096)
	active, passive := withManager(as[1]), withManager(bs[1])
	require.NotEqual(t, passive.dev.main.shard, passive.shard())
	x, _ := establish(t, active, passive)
	passive.post(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{passive.sge(0, 1)}})
	require.NoError(t, x.Disconnect())
	active.recv(2, active.sge(0, 1))
	assert.Equal(t, verbs.StatusSuccess, active.wait(1)[0].Status)
	assert.Equal(t, verbs.StatusSuccess, passive.wait(1)[0].Status)
	passive.next(verbs.CMDisconnected)
	active.next(verbs.CMDisconnected)
}

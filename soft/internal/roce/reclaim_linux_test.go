package roce

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// reclaim is a peer that uses an owner's memory while the owner reclaims it.
type reclaim struct {
	peer, owner *side
	request     func(wr verbs.SendWR) verbs.SendWR // fills in where the peer's requests go
	srd         bool

	user    *side        // whose requests use the memory: the peer, or its owner itself
	ownDone atomic.Bool  // the owner's request has completed that takes the memory back
	over    atomic.Bool  // both queue pairs are in error, or reset
	polls   atomic.Int64 // of the user's completion queue
	binder  *side        // a queue pair of the owner's device, in another shard
	mr      verbs.MR
	mem     []byte
	mw      verbs.MW
	key     uint32
}

const (
	bytesBefore, bytesAfter, bytesOfPeer = 0x11, 0xee, 0x22

	reclaimLen = 1 << 20
)

// reclaimPaths open two ends that are connected by each path.
var reclaimPaths = map[string]func(t *testing.T) *reclaim{
	"shared memory": func(t *testing.T) *reclaim {
		x, y := openLocalPair(t, reclaimLen)
		return &reclaim{peer: x, owner: y}
	},
	"UDP": func(t *testing.T) *reclaim {
		x, y := openAdaptive(t, Config{DisableLocal: true}, reclaimLen), openAdaptive(t, Config{DisableLocal: true}, reclaimLen)
		x.connect(y)
		y.connect(x)
		return &reclaim{peer: x, owner: y}
	},
	"one device": func(t *testing.T) *reclaim {
		y := openAdaptive(t, Config{}, reclaimLen)
		x := *y
		x.wcs = make([]verbs.WC, 64)
		x.cq = must(y.dev.CreateCQ(verbs.CQInit{Capacity: 1024}))
		x.qp = must(y.dev.DefaultPD().CreateQP(verbs.QPInit{AdaptiveRetransmission: true, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}))
		t.Cleanup(func() {
			require.NoError(t, x.qp.Close())
			require.NoError(t, x.cq.Close())
		})
		x.connect(y)
		y.connect(&x)
		return &reclaim{peer: &x, owner: y}
	},
	"itself": func(t *testing.T) *reclaim {
		x := openLoopback(t, Config{}, reclaimLen)
		return &reclaim{peer: x, owner: x}
	},
	"SRD": func(t *testing.T) *reclaim {
		x, y := srdPair(t, srdNodeOptions{memory: reclaimLen})
		return &reclaim{peer: x.side, owner: y.side, srd: true, request: func(wr verbs.SendWR) verbs.SendWR { return x.request(y, 0, wr) }}
	},
}

// reclaimWays are how memory comes back to its owner. Each returns when it has.
var reclaimWays = []struct {
	name   string
	window verbs.MWType // that lends the memory; 0: its region does
	take   func(p *reclaim)
}{
	{"region closed", 0, func(p *reclaim) { require.NoError(p.owner.t, p.mr.Close()) }},
	{"window of type 1 closed", verbs.MWType1, func(p *reclaim) { require.NoError(p.owner.t, p.mw.Close()) }},
	{"window of type 2 closed", verbs.MWType2, func(p *reclaim) { require.NoError(p.owner.t, p.mw.Close()) }},
	{"unbound by another queue pair", verbs.MWType1, func(p *reclaim) {
		p.binder.post(verbs.SendWR{Op: verbs.OpBindMW, Flags: verbs.FlagSignaled, Bind: &verbs.MWBind{MW: p.mw, MR: p.mr}})
		require.Equal(p.owner.t, verbs.StatusSuccess, p.binder.wait(1)[0].Status)
	}},
	{"local invalidate", verbs.MWType2, func(p *reclaim) {
		p.owner.post(verbs.SendWR{ID: ownID, Op: verbs.OpLocalInvalidate, Flags: verbs.FlagSignaled, InvalidateRKey: p.key})
		p.awaitOwn()
	}},
	{"queue pair in error", 0, func(p *reclaim) {
		require.NoError(p.owner.t, p.owner.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState))
	}},
	{"queue pair reset", 0, func(p *reclaim) {
		require.NoError(p.owner.t, p.owner.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
	}},
	{"queue pair closed", 0, func(p *reclaim) { require.NoError(p.owner.t, p.owner.qp.Close()) }},
	{"queue pair failed", 0, func(p *reclaim) {
		if p.srd {
			return // a request that fails does not end the queue pair
		}
		// The request has a local error, so that it fails at once.
		p.owner.post(verbs.SendWR{ID: ownID, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{{Addr: 1, Length: 8, LKey: 1}}})
		p.awaitOwn()
	}},
}

// ownID is that of the owner's request by which it takes memory back; others have smaller ones.
const ownID = 1 << 20

func (p *reclaim) awaitOwn() {
	if p.user.cq != p.owner.cq {
		for p.owner.wait(1)[0].ID != ownID {
		}
		return
	}
	p.owner.until("the memory is taken back", p.ownDone.Load)
}

// failQueuePair has the owner's queue pair fail as if its peer was gone.
func (p *reclaim) failQueuePair() {
	q := p.owner.qp.(*queuePair)
	defer q.lock().mu.Unlock()
	q.transport.PeerGone()
}

// begin grants the peer access to memory that can be exported to other processes, if the
// system has it.
func (p *reclaim) begin(window verbs.MWType) {
	t, y := p.owner.t, p.owner
	mem, free, err := y.dev.AllocMemory(reclaimLen)
	if err != nil {
		mem, free = make([]byte, reclaimLen), func() error { return nil }
	}
	p.mem = mem
	access := verbs.AccessLocalWrite | verbs.AccessMWBind
	if window == 0 {
		access |= verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	}
	p.mr = must(y.dev.DefaultPD().RegMR(mem, access))
	p.key = p.mr.RKey()
	if window != 0 {
		b := *y
		b.mtu, b.wcs = 4096, make([]verbs.WC, 64)
		b.cq = must(y.dev.CreateCQ(verbs.CQInit{Capacity: 1024, Poller: p}))
		b.qp = must(y.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: b.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}))
		b.connect(&b)
		p.binder = &b
		p.mw = must(y.dev.DefaultPD().(verbs.WindowPD).AllocMW(window))
		l := windowOwner{side: p.binder, mr: p.mr, mem: mem, mw: p.mw}
		if window == verbs.MWType2 {
			l.side = y // it is for the queue pair that it is bound on
		}
		l.bind(0, reclaimLen)
		p.key = p.mw.RKey()
	}
	t.Cleanup(func() {
		if window != 0 {
			require.NoError(t, p.mw.Close())
			require.NoError(t, p.binder.qp.Close())
			require.NoError(t, p.binder.cq.Close())
		}
		require.NoError(t, p.mr.Close())
		require.NoError(t, free())
	})
}

// use uses the memory until that is refused, or the queue pair is in error.
func (p *reclaim) use(op verbs.Opcode, n int) {
	x := p.user
	for {
		wrs := make([]verbs.SendWR, 4)
		for i := range wrs {
			off := (i * n) % reclaimLen
			wrs[i] = verbs.SendWR{ID: uint64(i), Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(off, n)}, RemoteAddr: p.mr.Addr() + uint64(off), RKey: p.key}
			if x == p.owner && x != p.peer {
				wrs[i].SGL = []verbs.SGE{{Addr: wrs[i].RemoteAddr, Length: uint32(n), LKey: p.mr.LKey()}}
				wrs[i].RemoteAddr, wrs[i].RKey = p.peer.mr.Addr()+uint64(off), p.peer.mr.RKey()
			}
			if p.request != nil {
				wrs[i] = p.request(wrs[i])
			}
		}
		if posted, err := x.qp.PostSend(wrs); err != nil && posted == 0 {
			return
		}
		for done := 0; done < len(wrs); {
			polled, err := x.cq.Poll(x.wcs)
			p.polls.Add(1)
			if !assert.NoError(x.t, err) || polled == 0 && p.over.Load() {
				return // a queue pair that was reset completes nothing
			}
			for _, wc := range x.wcs[:polled] {
				if wc.ID == ownID {
					p.ownDone.Store(true)
					continue
				}
				if done++; wc.Status != verbs.StatusSuccess {
					p.ownDone.Store(true) // or flushed
					return
				}
			}
		}
	}
}

// stall stops the peer again and again, like a process that loses its processor.
func (p *reclaim) stall(stop <-chan struct{}) {
	mu := &p.peer.dev.main.mu
	for {
		mu.Lock()
		time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
		mu.Unlock()
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rand.IntN(300)) * time.Microsecond):
		}
	}
}

// Once an owner has reclaimed memory, in any way and on any path, no byte of it is read or
// written, although a slow peer has reads and writes in progress, or the owner has writes from
// it.
func TestSoakMemoryTakenBack(t *testing.T) {
	rounds := soak.Rounds(t, 1, 40)
	for path, open := range reclaimPaths {
		for _, way := range reclaimWays {
			for _, use := range []string{"peer reads", "peer writes", "owner writes"} {
				switch {
				case path == "SRD" && (way.window == verbs.MWType2 || way.name == "queue pair failed"), // there is no such thing
					path != "SRD" && way.name == "queue pair closed" && (use == "owner writes" || path == "itself"), // it is used
					use == "owner writes" && (way.window != 0 || path == "SRD" || path == "itself"):
					continue
				}
				for _, n := range []int{512, 64 << 10, 512 << 10} {
					t.Run(fmt.Sprintf("%s/%s/%s/%d", path, way.name, use, n), func(t *testing.T) {
						for range rounds {
							t.Run("", func(t *testing.T) { open(t).round(way.window, way.take, use, n) })
						}
					})
				}
			}
		}
	}
}

// awaitRest waits until the user's requests have ended, or its device has had ample opportunity to
// move what is left of them: nothing ends them if the owner's queue pair was reset.
func (p *reclaim) awaitRest(used chan struct{}) {
	for enough := p.polls.Load() + 10_000; p.polls.Load() < enough; runtime.Gosched() {
		select {
		case <-used:
			return
		default:
		}
	}
}

func (p *reclaim) round(window verbs.MWType, take func(*reclaim), use string, n int) {
	t, op := p.owner.t, verbs.OpWrite
	if p.user = p.peer; use == "owner writes" {
		p.user = p.owner
	}
	if use == "peer reads" {
		op = verbs.OpRead
	}
	p.begin(window)
	fillWith(p.mem, bytesBefore)
	fillWith(p.peer.mem, bytesOfPeer)
	var work sync.WaitGroup
	stop := make(chan struct{})
	used := make(chan struct{})
	work.Go(func() {
		defer close(used)
		p.use(op, n)
	})
	if p.peer.dev != p.owner.dev {
		work.Go(func() { p.stall(stop) })
	}
	for end := time.Now().Add(time.Duration(rand.IntN(2000)) * time.Microsecond); time.Now().Before(end); {
		runtime.Gosched() // it is taken back at any point of what is under way
	}
	take(p)
	fillWith(p.mem, bytesAfter)
	p.awaitRest(used)
	close(stop)
	for _, s := range []*side{p.peer, p.owner} { // one of them may be closed
		_ = s.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState)
	}
	p.over.Store(true)
	work.Wait()
	if use == "peer writes" {
		assert.True(t, bytes.Equal(bytes.Repeat([]byte{bytesAfter}, len(p.mem)), p.mem), "the peer has written later")
	} else {
		assert.Equal(t, -1, bytes.IndexByte(p.peer.mem, bytesAfter), "the peer has what was written later")
	}
}

func fillWith(b []byte, value byte) {
	block := bytes.Repeat([]byte{value}, 4096)
	for len(b) > 0 {
		b = b[copy(b, block):]
	}
}

package srd

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// chooser takes decisions.
type chooser interface{ IntN(n int) int }

type rapidChooser struct{ t *rapid.T }

func (d rapidChooser) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "n") }

// modelNode is a host of the model: a queue pair that sends to all others and receives from
// all of them.
type modelNode struct {
	*end
	m            *model
	receiveArena arena
	free         []int // slots of receiveArena without a receive
	lanes        []*lane
	next         uint32 // of the numbers of its messages
}

// lane is the operations of one node on another. Each operation has a slot of memory of its
// own at either end.
type lane struct {
	from, to      *modelNode
	ah            *fakeAH
	local, remote arena
	left          int
	slots         []*operation
}

// operation is a request under way, or the place of one.
type operation struct {
	lane     *lane
	slot     int
	busy     bool
	op       verbs.Opcode
	n        int
	seed     uint64
	delivery int    // completions at the receiver
	rest     []byte // what the slot at the other end holds while it is not in use
}

type model struct {
	net   *network
	c     chooser
	o     modelOptions
	nodes []*modelNode
	byID  map[uint32]*operation // operations that the receiver sees, by immediate data
	done  int
}

type modelOptions struct {
	seed                   uint64
	faults                 faults
	nodes, requests        int // requests of each lane
	hub                    bool
	mtu                    verbs.MTU
	maxMessage             int
	slots, receives, depth int
	lazy, unsolicited      bool
}

func newModel(t tb, o modelOptions, c chooser) *model {
	m := &model{net: newNetwork(t, o.seed, o.faults), c: c, o: o, byID: make(map[uint32]*operation)}
	for i := range o.nodes {
		h := m.net.boot(fmt.Sprintf("[fd00::%x]:4791", i+1), o.seed, o.mtu)
		s := &modelNode{m: m, end: h.newEnd(endOptions{depth: o.depth, recvDepth: o.receives, rnrRetry: 7, unsolicited: o.unsolicited})}
		s.receiveArena = h.arena(o.receives*int(o.mtu), verbs.AccessLocalWrite)
		for j := range o.receives {
			s.free = append(s.free, j)
		}
		m.nodes = append(m.nodes, s)
		h.wake = s.wake
	}
	for i, a := range m.nodes {
		for j, b := range m.nodes {
			if o.hub && i != 0 && j != 0 || i == j && o.hub {
				continue
			}
			size := o.slots * o.maxMessage
			l := &lane{from: a, to: b, ah: a.to(b.h), left: o.requests,
				local: a.h.arena(size+1, everyAccess), remote: b.h.arena(size+1, everyAccess)}
			for k := range o.slots {
				l.slots = append(l.slots, &operation{lane: l, slot: k})
			}
			a.lanes = append(a.lanes, l)
		}
	}
	return m
}

func (m *model) require(ok bool, format string, args ...any) {
	if !ok {
		require.Failf(m.net.t, "wrong", format, args...)
	}
}

// total is how many operations there are.
func (m *model) total() (n int) {
	for _, s := range m.nodes {
		n += len(s.lanes) * m.o.requests
	}
	return n
}

func (m *model) run(limit time.Duration) {
	for _, s := range m.nodes {
		s.h.settle()
	}
	total := m.total()
	m.net.run(limit, func() bool { return m.done == total })
	// Packets that are still on the way change nothing.
	m.net.Pass(10 * time.Millisecond)
	for _, s := range m.nodes {
		s.wake()
		m.require(s.taken == 0, "%d requests are left", s.taken)
		for _, l := range s.lanes {
			for _, o := range l.slots {
				o.checkRest()
			}
		}
	}
	m.require(m.done == total, "%d completed, there were %d", m.done, total)
	m.require(len(m.byID) == 0, "%d messages were never received", len(m.byID))
}

// wake takes completions, and posts what there is to be posted.
func (s *modelNode) wake() {
	s.received()
	for _, wc := range s.send.take() {
		s.completed(wc)
	}
	if !s.m.o.lazy || s.m.c.IntN(16) == 0 || len(s.free) == s.m.o.receives && s.m.c.IntN(2) == 0 {
		for _, slot := range s.free {
			s.postRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{s.receiveArena.sge(slot*int(s.m.o.mtu), int(s.m.o.mtu))}})
		}
		s.free = s.free[:0]
	}
	for _, l := range s.lanes {
		for _, o := range l.slots {
			if l.left > 0 && !o.busy && s.taken < s.depth {
				o.post()
			}
		}
	}
}

func (s *modelNode) received() {
	for _, wc := range s.recv.take() {
		s.m.require(wc.Status == verbs.StatusSuccess && wc.HasImm && wc.QPN == s.num, "%+v", wc)
		o := s.m.byID[wc.Imm]
		s.m.require(o != nil && o.lane.to == s && wc.SrcQPN == o.lane.from.num, "message %#x is not on the way to here", wc.Imm)
		delete(s.m.byID, wc.Imm) // it does not come again
		o.delivery++
		s.m.require(int(wc.Bytes) == o.n, "%d bytes of %d", wc.Bytes, o.n)
		unsolicited := o.op == verbs.OpWriteImm && s.unsolicited
		s.m.require(wc.Unsolicited == unsolicited, "%+v", wc)
		got := o.remote()
		if o.op == verbs.OpSendImm {
			got = s.receiveArena.Mem[int(wc.ID)*int(s.m.o.mtu):][:o.n]
		}
		s.m.require(bytes.Equal(got, pattern(make([]byte, o.n), o.seed)), "%v of %d bytes: they are wrong when it is received", o.op, o.n)
		if !unsolicited {
			s.free = append(s.free, int(wc.ID))
		}
	}
}

func (o *operation) at() int        { return o.slot * o.lane.from.m.o.maxMessage }
func (o *operation) local() []byte  { return o.lane.local.Mem[o.at():][:o.n] }
func (o *operation) remote() []byte { return o.lane.remote.Mem[o.at():][:o.n] }

// checkRest checks that nothing has touched memory that no request is using.
func (o *operation) checkRest() {
	o.lane.from.m.require(o.busy || bytes.Equal(o.rest, o.lane.remote.Mem[o.at():][:len(o.rest)]),
		"memory was written again after a %v had completed", o.op)
}

var modelOps = []verbs.Opcode{verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead}

func (o *operation) post() {
	l := o.lane
	s, m := l.from, l.from.m
	o.checkRest()
	o.op, o.busy, o.delivery = modelOps[m.c.IntN(len(modelOps))], true, 0
	limit := m.o.maxMessage
	if o.op == verbs.OpSendImm {
		limit = int(m.o.mtu)
	}
	mtu := int(m.o.mtu)
	switch m.c.IntN(6) {
	case 0:
		o.n = m.c.IntN(9)
	case 1, 2:
		o.n = min(limit, mtu)
	case 3:
		o.n = min(limit, mtu*(1+m.c.IntN(3))+m.c.IntN(3)-1)
	case 4:
		o.n = m.c.IntN(limit + 1)
	default:
		o.n = m.c.IntN(min(limit, mtu) + 1)
	}
	s.next++
	id := s.num<<24 | uint32(s.h.addr.Addr().As16()[15])<<16&0xff0000 | s.next&0xffff
	o.seed = uint64(s.next)<<32 | uint64(id)
	source := o.local()
	if o.op == verbs.OpRead {
		clear(source)
		source = o.remote()
	}
	pattern(source, o.seed)
	o.rest = nil
	if o.op == verbs.OpSendImm || o.op == verbs.OpWriteImm {
		_, taken := m.byID[id]
		m.require(!taken, "number %#x is in use", id)
		m.byID[id] = o
	}
	l.left--
	s.post(address(verbs.SendWR{
		ID: uint64(s.laneIndex(l))<<32 | uint64(o.slot), Op: o.op, Imm: id, SGL: []verbs.SGE{l.local.sge(o.at(), o.n)},
		RemoteAddr: l.remote.Base + uint64(o.at()), RKey: l.remote.Key,
	}, l.ah, l.to.end))
}

func (s *modelNode) laneIndex(l *lane) int {
	for i := range s.lanes {
		if s.lanes[i] == l {
			return i
		}
	}
	return -1
}

func (s *modelNode) completed(wc verbs.WC) {
	o := s.lanes[wc.ID>>32].slots[uint32(wc.ID)]
	m := s.m
	m.require(o.busy, "%v completed twice", o.op)
	m.require(wc.Status == verbs.StatusSuccess && wc.Bytes == uint32(o.n) && wc.QPN == s.num && wc.Opcode == transport.CompletionOpcodes[o.op], "%v: %+v", o.op, wc)
	want := pattern(make([]byte, o.n), o.seed)
	switch o.op {
	case verbs.OpRead:
		m.require(bytes.Equal(o.local(), want), "read of %d bytes: they are wrong", o.n)
	case verbs.OpSendImm:
		// What is acknowledged has been received: the completion is in the queue.
		o.lane.to.received()
		m.require(o.delivery == 1, "send completed, and was received %d times", o.delivery)
	case verbs.OpWriteImm:
		o.lane.to.received()
		m.require(o.delivery == 1, "write with immediate completed, and was received %d times", o.delivery)
		fallthrough
	default:
		m.require(bytes.Equal(o.remote(), want), "%v of %d bytes: they are wrong", o.op, o.n)
	}
	o.busy = false
	// A late copy of a packet would show.
	o.rest = pattern(o.lane.remote.Mem[o.at():][:m.o.maxMessage], ^o.seed)
	o.rest = bytes.Clone(o.rest)
	m.done++
}

func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		share := func(name string, limit int) float64 { return float64(rapid.IntRange(0, limit).Draw(t, name)) / 100 }
		mtu := rapid.SampledFrom([]verbs.MTU{256, 1024, 4096}).Draw(t, "mtu")
		o := modelOptions{
			seed:  rapid.Uint64().Draw(t, "seed"),
			nodes: rapid.IntRange(1, 4).Draw(t, "stations"), requests: rapid.IntRange(1, 25).Draw(t, "requests"),
			hub: rapid.Bool().Draw(t, "hub"), mtu: mtu,
			maxMessage: int(mtu) * rapid.SampledFrom([]int{1, 3, 40}).Draw(t, "packets"),
			slots:      rapid.IntRange(1, 8).Draw(t, "slots"), receives: rapid.IntRange(1, 12).Draw(t, "receives"),
			depth: rapid.IntRange(1, 40).Draw(t, "depth"), lazy: rapid.Bool().Draw(t, "lazy"),
			unsolicited: rapid.Bool().Draw(t, "unsolicited"),
		}
		o.faults = faults{
			Loss: share("loss", 10), Duplicate: share("duplication", 10),
			Reorder: share("reordering", 15), Corrupt: share("corruption", 3),
		}
		newModel(t, o, rapidChooser{t}).run(5 * time.Minute)
	})
}

// TestSoakLossy runs 100,000 mixed operations between one device and 16 others, under loss,
// duplication, reordering and corruption at once. Each completes once, with every byte right,
// and none is executed twice.
func TestSoakLossy(t *testing.T) {
	t.Parallel()
	const peers = 16
	requests := soak.Rounds(t, 300, 100_000/(2*peers)) // of each to each
	for _, unsolicited := range []bool{false, true} {
		t.Run(fmt.Sprintf("unsolicited %v", unsolicited), func(t *testing.T) {
			o := modelOptions{
				seed: 11, nodes: peers + 1, requests: requests, hub: true, mtu: 1024, maxMessage: 20 << 10,
				slots: 8, receives: 6, depth: 512, lazy: true, unsolicited: unsolicited,
				faults: faults{Loss: 0.10, Duplicate: 0.05, Reorder: 0.10, Corrupt: 0.01},
			}
			m := newModel(t, o, rand.New(rand.NewPCG(5, 5)))
			start, from := time.Now(), m.net.Now
			m.run(time.Hour)
			c := m.nodes[0].t.Counters()
			counts := m.net.Counts()
			t.Logf("%d operations in %v, %v of virtual time; %d packets, %d lost, %d corrupted; the hub: %d sent again, %d duplicates, %d receiver not ready",
				m.done, time.Since(start).Round(time.Millisecond), (m.net.Now - from).Round(time.Millisecond), counts.Sent, counts.Lost, counts.Corrupted,
				c.Repeated, c.Duplicates, c.NotReady)
			if !unsolicited {
				require.NotZero(t, c.NotReady)
			}
			require.NotZero(t, c.Held)
			require.NotZero(t, c.Duplicates)
		})
	}
}

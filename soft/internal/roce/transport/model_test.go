package transport

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

// modelRun is a number of connections under load in both directions.
type modelRun struct {
	net       *network
	workloads []*workload
	receives  []*receiveSlots
	counters  []*arena // one a side, that all connections add to
}

type modelOptions struct {
	options
	plan
	seed        uint64
	faults      faults
	connections int
	shareRecv   bool // a shared receive queue on either side
	lazy        bool // receives run out
	slots       int
	arenaLen    int
}

func newModelRun(t tb, o modelOptions, c chooser) *modelRun {
	s := &modelRun{net: newNetwork(t, o.seed, o.faults)}
	o.options = o.options.defaults()
	type side struct {
		memory *Memory
		inbox  *receiveSlots
		queue  *RecvQueue
		count  *arena
	}
	sides := [2]*side{}
	for i := range sides {
		sd := &side{memory: NewMemory()}
		sd.count = newArena(t, sd.memory, 1, 0x1000, 8, everyAccess)
		s.counters = append(s.counters, sd.count)
		if o.shareRecv {
			sd.queue = NewRecvQueue(sd.memory, testDomain, o.slots, 4)
			sd.queue.Share(nil)
			box := newArena(t, sd.memory, 2, 0x1_0000_0000, receiveSlotsLen(o.slots, o.maxMessage), verbs.AccessLocalWrite)
			sd.inbox = newReceiveSlots(s.net, box, c, o.slots, o.maxMessage, o.lazy, poster(sd.queue))
			s.receives = append(s.receives, sd.inbox)
		}
		sides[i] = sd
	}
	for i := range o.connections {
		var nodes [2]*node
		var receives [2]*receiveSlots
		for j, sd := range sides {
			oo := o.options
			oo.shared, oo.recvDepth = sd.queue, o.slots
			nodes[j] = s.net.attach(newEnd(t, uint32(0x100*(j+1)+i), sd.memory, oo))
		}
		s.net.join(nodes[0], nodes[1])
		nodes[0].ready(o.attr(nodes[1].qp.Num(), o.psn, o.peerPSN))
		nodes[1].ready(o.attr(nodes[0].qp.Num(), o.peerPSN, o.psn))
		for j, sd := range sides {
			receives[j] = sd.inbox
			if sd.inbox == nil {
				box := newArena(t, sd.memory, uint32(0x100*i+3), uint64(i+1)<<32, receiveSlotsLen(o.slots, o.maxMessage), verbs.AccessLocalWrite)
				receives[j] = newReceiveSlots(s.net, box, c, o.slots, o.maxMessage, o.lazy, func(wr verbs.RecvWR) error {
					_, err := nodes[j].qp.PostRecv([]verbs.RecvWR{wr})
					return err
				})
				s.receives = append(s.receives, receives[j])
			}
		}
		for j, sd := range sides {
			region := func(m *Memory, key uint32, seed int, access verbs.Access) *arena {
				a := newArena(t, m, uint32(0x100*i)+key, uint64(key)<<56+uint64(i)<<40, o.arenaLen, access)
				pattern(a.Mem, seed)
				return a
			}
			other := 1 - j
			local := region(sd.memory, 4, 1, verbs.AccessLocalWrite|verbs.AccessMWBind)
			remote := region(sides[other].memory, 5, 2, everyAccess)
			results := newArena(t, sd.memory, uint32(0x100*i+6), 0x9000, 8, verbs.AccessLocalWrite)
			w := newWorkload(nodes[j], o.plan, c, local, remote, results, sides[other].count, receives[other])
			s.workloads = append(s.workloads, w)
			window := func(m *Memory, which uint32) *Window {
				made := NewWindow(verbs.MWType2, testDomain, uint32(i+1)<<16|which<<8|0xff)
				require.True(t, m.AddWindow(made))
				return made
			}
			w.lentByPeer = &lentWindow{owner: remote, window: window(sides[other].memory, 1)}
			w.ownWindow = &lentWindow{owner: local, window: window(sd.memory, 2)}
			if j == 1 {
				first := s.workloads[len(s.workloads)-2]
				first.lentToPeer, w.lentToPeer = w.lentByPeer, first.lentByPeer
			}
			nodes[j].wake = func() {
				receives[j].check(&nodes[j].recv)
				w.work()
			}
		}
	}
	return s
}

func (s *modelRun) run(limit time.Duration) {
	s.net.t.Helper()
	for _, n := range s.net.nodes {
		n.settle()
	}
	s.net.run(limit)
	added := [2]uint64{}
	for i, w := range s.workloads {
		w.requireDone()
		added[1-i%2] += w.added
	}
	for i, c := range s.counters {
		require.Equal(s.net.t, added[i], *word(c.Mem), "sum of what was added to the shared counter")
		c.requireGuards(s.net.t)
	}
	for _, b := range s.receives {
		b.requireDone()
	}
}

// sizesAround draws lengths at the edges of packets, up to limit.
func sizesAround(mtu, limit int) func(chooser) int {
	return func(c chooser) int {
		packets := 0
		switch c.IntN(10) {
		case 0:
			return 0
		case 1:
			return 1 + c.IntN(8)
		case 2, 3:
			return 1 + c.IntN(min(mtu, limit))
		case 4, 5, 6:
			packets = 1
		case 7, 8:
			packets = 2 + c.IntN(4)
		default:
			packets = limit / mtu
		}
		return min(max(packets*mtu+c.IntN(3)-1, 0), limit)
	}
}

// rapidChooser takes decisions from rapid, which can make a failure smaller.
type rapidChooser struct{ t *rapid.T }

func (d rapidChooser) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "n") }

func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		mtu := rapid.SampledFrom([]verbs.MTU{256, 512, 1024, 2048, 4096}).Draw(t, "mtu")
		near := func(name string) uint32 {
			return uint32(0x1000000-rapid.IntRange(0, 300).Draw(t, name)) & 0xffffff
		}
		share := func(name string, limit int) float64 { return float64(rapid.IntRange(0, limit).Draw(t, name)) / 100 }
		limit := (2 + rapid.SampledFrom([]int{0, 8, 38}).Draw(t, "packets")) * int(mtu)
		o := modelOptions{
			options: options{
				mtu: mtu, psn: near("psn"), peerPSN: near("peer psn"), timeout: 7,
				initReads: rapid.IntRange(1, 8).Draw(t, "reads"), maxSGE: rapid.IntRange(1, 5).Draw(t, "sge"),
				depth: rapid.IntRange(1, 24).Draw(t, "depth"), maxInline: 24,
				window:   rapid.SampledFrom([]int{1, 1 << 15, 1 << 20}).Draw(t, "window"),
				adaptive: rapid.Bool().Draw(t, "adaptive"), controlled: rapid.Bool().Draw(t, "controlled"),
			},
			plan:        plan{requests: rapid.IntRange(1, 40).Draw(t, "requests"), maxMessage: limit, sizes: sizesAround(int(mtu), limit)},
			seed:        rapid.Uint64().Draw(t, "seed"),
			connections: rapid.IntRange(1, 3).Draw(t, "connections"),
			shareRecv:   rapid.Bool().Draw(t, "shared receive queue"),
			lazy:        rapid.Bool().Draw(t, "receives run out"),
			slots:       rapid.IntRange(1, 6).Draw(t, "slots"),
			arenaLen:    limit + 1024,
		}
		o.drains = rapid.Bool().Draw(t, "drains")
		o.destReads = o.initReads + rapid.IntRange(0, 2).Draw(t, "more reads")
		o.faults = faults{
			Loss: share("loss", 10), Duplicate: share("duplication", 10),
			Reorder: share("reordering", 15), Corrupt: share("corruption", 3),
		}
		s := newModelRun(t, o, rapidChooser{t})
		s.net.changes = rapid.Bool().Draw(t, "packets larger than the path MTU")
		s.run(20 * time.Second)
	})
}

// lowestRetries is how near to giving up any requester came.
func (s *modelRun) lowestRetries() int {
	lowest := 1 << 20
	for _, w := range s.workloads {
		lowest = min(lowest, w.lowestRetries)
	}
	return lowest
}

// TestSoakLossy runs 100,000 requests (fewer with -short) under 10 % loss, 5 % duplication, 10
// % reordering and 1 % corruption at once.
func TestSoakLossy(t *testing.T) {
	const connections = 4
	requests := soak.Rounds(t, 400, 12_500) // of each end of each connection
	mtu := 1024
	small := sizesAround(mtu, 2*mtu)
	large := sizesAround(mtu, 40*mtu)
	for _, c := range []struct {
		seed     uint64
		requests int
		adaptive bool
		larger   bool // packets than the path MTU, now and then
	}{{3, requests, false, false}, {12, requests, false, false}, {3, requests / 4, true, false}, {5, requests / 4, true, true}} {
		t.Run(fmt.Sprintf("seed %d, adaptive %v, larger packets %v", c.seed, c.adaptive, c.larger), func(t *testing.T) {
			seed := c.seed
			o := modelOptions{
				options: options{
					mtu: verbs.MTU(mtu), psn: 0xfff000, peerPSN: 0xffff00, timeout: 7, initReads: 8, depth: 64, adaptive: c.adaptive, controlled: c.adaptive,
				},
				plan: plan{requests: c.requests, maxMessage: 40 * mtu, sizes: func(c chooser) int {
					if c.IntN(32) == 0 {
						return large(c)
					}
					return small(c)
				}},
				seed:        seed,
				faults:      faults{Loss: 0.10, Duplicate: 0.05, Reorder: 0.10, Corrupt: 0.01},
				connections: connections,
				shareRecv:   true,
				lazy:        true,
				slots:       64,
				arenaLen:    1 << 20,
			}
			s := newModelRun(t, o, newNetwork(t, seed+1000, faults{}).Random)
			s.net.changes = c.larger
			start := time.Now()
			from := s.net.Now
			s.run(10 * time.Minute)
			counts := s.net.Counts()
			t.Logf("%d requests in %v, %v of virtual time; %d packets, %d lost, %d corrupted; at least %d of 56 units of the retry count left",
				2*connections*c.requests, time.Since(start).Round(time.Millisecond), (s.net.Now - from).Round(time.Millisecond), counts.Sent, counts.Lost, counts.Corrupted, s.lowestRetries())
		})
	}
}

func TestNetworkLosesWhatIsCorrupt(t *testing.T) {
	t.Parallel()
	o := modelOptions{options: options{timeout: 1, retries: 2}, seed: 1, connections: 1, slots: 1, arenaLen: 4096,
		faults: faults{Corrupt: 1}, plan: plan{maxMessage: 256}}
	s := newModelRun(t, o, newNetwork(t, 2, faults{}).Random)
	w := s.workloads[0]
	before := bytes.Clone(w.remote.Mem)
	w.node.wake = nil
	w.post(verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{w.local.sge(0, 256)}, RemoteAddr: w.remote.Base, RKey: w.remote.Key})
	w.node.pump()
	s.net.run(time.Second)
	require.Equal(t, verbs.StatusRetryExceeded, w.send.take()[0].Status)
	require.Equal(t, before, w.remote.Mem)
	require.Equal(t, uint64(3), s.net.Counts().Corrupted)
}

// The model uses memory windows, and requests pass through them.
func TestModelUsesWindows(t *testing.T) {
	t.Parallel()
	o := modelOptions{
		options: options{mtu: 256, initReads: 4}, seed: 5, connections: 2, slots: 8, arenaLen: 8192,
		plan:   plan{requests: 1000, maxMessage: 600, sizes: sizesAround(256, 600)},
		faults: faults{Loss: 0.05, Duplicate: 0.05, Reorder: 0.05},
	}
	s := newModelRun(t, o, newNetwork(t, 6, faults{}).Random)
	s.run(time.Minute)
	byWindow := 0 // one workload alone may come by none
	for _, w := range s.workloads {
		byWindow += w.byWindow
	}
	require.NotZero(t, byWindow)
}

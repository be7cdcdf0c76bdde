package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	simSlots    = 4
	simSlotSize = 5000 // several pieces
	simRegion   = simSlots*simSlotSize + 48
)

// node is a host whose program writes to the memory of all others, each in a region of its own.
type node struct {
	s      *sim.Sim
	index  int
	host   *sim.Host
	second *sim.Host // has the second device of the agent; nil: there is none
	srd    bool      // the agents have no connections
	down   bool      // second has crashed with host
	all    []*node
	memory []byte // of this start of the program: a region for each node
	done   int    // batches in which all went well
	agent  *Agent
	dials  uint64                    // of earlier starts
	note   uint32                    // the latest of this node
	data   map[int][]byte            // by offset in the other's memory, what the latest note comes with
	got    map[[3]int]int            // notes that have come, by writer, start of its program, and value
	sent   map[*node]map[[3]int]bool // notes that have arrived at this start of the other's program
}

// known is what a node knows of its region at another one.
type known struct {
	remote  *RemoteSegment
	memory  []byte         // the other's, to look into
	slots   [simSlots]slot //
	other   *node
	starts  int    // of the program of the other
	counted bool   // counter is known
	counter uint64 // at least
	unsure  uint64 // additions whose outcome is not known
}

// slot is what a node knows of a slot of another's memory.
type slot struct {
	content []byte // nil: not known
	version int
	unsure  bool // a write whose outcome is not known may still come
}

func (n *node) region(memory []byte) []byte { return memory[n.index*simRegion:][:simRegion] }

func pattern(b []byte, writer, version int) {
	r := rand.New(rand.NewPCG(uint64(writer), uint64(version)))
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, r.Uint64())
	}
}

func poison(b []byte) {
	for i := range b {
		b[i] = 0xee
	}
}

func isPoison(b []byte) bool { return b[0] == 0xee && bytes.Equal(b[1:], b[:len(b)-1]) }

func (n *node) run(ctx context.Context, dev verbs.Device) (err error) {
	n.memory = make([]byte, len(n.all)*simRegion)
	n.got, n.note = map[[3]int]int{}, 0
	for _, other := range n.all {
		other.sent[n] = map[[3]int]bool{}
	}
	devices := []verbs.Device{dev}
	if n.second != nil {
		n.host.Sleep(10 * time.Millisecond) // until it has restarted too
		if !n.second.Crashed() {
			devices = append(devices, n.second.Device())
		}
	}
	a, err := Open(Config{Devices: devices, Listen: ":7600", Piece: 2048, Depth: 8, DialTimeout: time.Duration(2+n.index%2*8) * time.Second, Transport: n.transport()})
	if err != nil {
		return err
	}
	n.countDials()
	n.agent = a
	defer func() {
		err = errors.Join(err, a.Close())
		if c := a.Counters(); c.Peers+c.Pending+c.InFlight+c.ToRepeat+c.Dialling+c.DialsWaiting != 0 {
			n.s.Errorf("%v: a closed agent has work left: %+v", n.host, c)
		}
	}()
	if _, err = a.Register("slots", n.memory, all); err != nil {
		return err
	}
	local := make([]byte, 2*simSlots*simSlotSize) // sources, then destinations
	poison(local)
	if _, err = a.Register("", local, all); err != nil {
		return err
	}
	n.host.Go(func() { n.takeNotes(a) })
	n.host.Sleep(100 * time.Millisecond) // until the packets of an earlier start have arrived
	if n.second != nil && n.host.Starts() > 1 {
		n.host.Sleep(10 * time.Second) // or have waited for a device that pauses; the other one answers meanwhile
	}
	peers := make([]*Peer, len(n.all))
	knows := make([]known, len(n.all))
	for ctx.Err() == nil {
		other := n.all[n.host.Rand().IntN(len(n.all))]
		if other == n {
			continue
		}
		addr := other.host.Addr().String() + ":7600"
		if n.srd && other.agent != nil { // which is elsewhere after each start
			addr = other.agent.Addrs()[0].String()
		}
		if p := peers[other.index]; p == nil || n.srd && p.Addrs()[0] != addr {
			if p != nil {
				p.Close()
			}
			knows[other.index].remote = nil
			peers[other.index], err = a.Dial(ctx, addr)
			if err != nil {
				n.host.Sleep(100 * time.Millisecond)
				continue
			}
		}
		k := &knows[other.index]
		if k.remote == nil || k.remote.Stale() {
			remote, err := peers[other.index].Segment(ctx, "slots")
			if err != nil {
				n.host.Sleep(100 * time.Millisecond)
				continue
			}
			if k.starts != other.host.Starts() { // not since the reply left, or the segment is of the past
				*k = known{other: other, starts: other.host.Starts(), memory: n.region(other.memory)}
			}
			k.remote = remote
		}
		n.batch(ctx, a, k, local)
		n.host.Sleep(time.Duration(n.host.Rand().IntN(200)) * time.Millisecond)
	}
	return nil
}

func (n *node) transport() verbs.QPType {
	if n.srd {
		return verbs.SRD
	}
	return verbs.RC
}

// countDials counts the dials of the present agent.
func (n *node) countDials() {
	if n.agent != nil {
		n.dials += n.agent.Counters().Dials
	}
	n.agent = nil
}

// takeNotes checks that notes come once, and not before their data.
func (n *node) takeNotes(a *Agent) {
	for {
		note, err := a.Note(context.Background())
		if err != nil {
			return
		}
		for _, from := range n.all {
			if from.host.Addr() != note.From.AddrPort.Addr() && (from.second == nil || from.second.Addr() != note.From.AddrPort.Addr()) {
				continue
			}
			which := [3]int{from.index, int(note.Value >> 24), int(note.Value & 0xffffff)}
			if n.got[which]++; n.got[which] > 1 {
				n.s.Errorf("%v: note %v came %d times", n.host, which, n.got[which])
			}
			if note.Value != from.note {
				continue // it has begun another batch
			}
			for at, b := range from.data {
				if !bytes.Equal(n.memory[at:][:len(b)], b) {
					n.s.Errorf("%v: note %v came before its data", n.host, which)
				}
			}
		}
	}
}

// batch does one batch of writes, reads and an addition, and checks all that is known.
func (n *node) batch(ctx context.Context, a *Agent, k *known, local []byte) {
	rnd := n.host.Rand()
	var b Batch
	b.Priority = Priority(rnd.IntN(3) - 1)
	base := n.index * simRegion
	n.note++
	n.note = n.note&0xffffff | uint32(n.host.Starts())<<24
	n.data = map[int][]byte{}
	type op struct {
		slot  int
		write bool
		mem   []byte
	}
	var ops []op
	for i := range simSlots {
		at := base + i*simSlotSize
		s := &k.slots[i]
		if s.content != nil && !bytes.Equal(s.content, k.memory[i*simSlotSize:][:simSlotSize]) && !k.remote.Stale() {
			n.s.Errorf("%v: slot %d of %s changed after the end of its handle", n.host, i, k.remote.peer)
		}
		if n.srd && s.unsure {
			continue // nothing ends that write but the end of the other's memory
		}
		switch rnd.IntN(3) {
		case 0:
			mem := local[i*simSlotSize:][:simSlotSize]
			s.version++
			s.content = nil
			pattern(mem, n.index<<20|n.host.Starts()<<10|i, s.version)
			b.Write(k.remote, at, mem)
			n.data[at] = bytes.Clone(mem)
			ops = append(ops, op{i, true, mem})
		case 1:
			mem := local[(simSlots+i)*simSlotSize:][:simSlotSize]
			b.Read(k.remote, at, mem)
			ops = append(ops, op{i, false, mem})
		}
	}
	if !n.srd {
		b.FetchAdd(k.remote, base+simSlots*simSlotSize&^7+8, 1)
	}
	b.Note(k.remote.peer, n.note)
	h, err := a.Submit(&b)
	if err != nil {
		if !errors.Is(err, ErrStale) && !errors.Is(err, ErrClosed) {
			n.s.Errorf("%v: %v", n.host, err)
		}
		poison(local)
		k.remote = nil
		return
	}
	cancel := rnd.IntN(4) == 0
	if cancel {
		n.host.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		h.Cancel()
	}
	<-h.Done()
	note := h.Item(h.Len() - 1)
	n.judge(note)
	if lost := k.remote.Stale() || ctx.Err() != nil; note == nil && !lost && k.starts == k.other.host.Starts() {
		n.sent[k.other][[3]int{n.index, int(n.note >> 24), int(n.note & 0xffffff)}] = true
	}
	lost := k.remote.Stale() || ctx.Err() != nil
	for i, o := range ops {
		s, err := &k.slots[o.slot], h.Item(i)
		n.judge(err)
		there := k.memory[o.slot*simSlotSize:][:simSlotSize]
		switch {
		case err == nil && o.write:
			if !bytes.Equal(o.mem, there) && !lost {
				n.s.Errorf("%v: a write to slot %d of %s is lost or torn", n.host, o.slot, k.remote.peer)
			}
			s.content, s.unsure = bytes.Clone(o.mem), false
		case o.write && (errors.Is(err, ErrUnknown) || errors.Is(err, ErrClosed)):
			s.unsure = true
		case o.write && !s.unsure:
			s.content = bytes.Clone(there) // all or a part of it, but it does not change any more
		case err == nil && s.content != nil && !bytes.Equal(o.mem, s.content):
			n.s.Errorf("%v: a read of slot %d of %s is wrong", n.host, o.slot, k.remote.peer)
		}
		n.s.Sometimes(errors.Is(err, ErrUnknown), "a write whose outcome is not known")
		if !n.srd { // there, the endpoint is of the past too
			n.s.Sometimes(errors.Is(err, ErrStale), "a segment of the past")
		}
		n.s.Sometimes(errors.Is(err, ErrCanceled), "a canceled item")
	}
	if !n.srd {
		n.judgeAddition(h, len(ops), k)
	}
	poison(local)
	n.host.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
	if !isPoison(local) {
		n.s.Errorf("%v: memory here changed after the end of its handle", n.host)
	}
	n.s.Sometimes(a.Counters().Repeated > 0, "a piece is repeated")
	if h.Err() == nil {
		n.done++
	}
	if k.remote.Stale() || h.Err() != nil && !cancel {
		k.remote = nil
	}
}

// judgeAddition checks the value that an addition has found.
func (n *node) judgeAddition(h *Handle, item int, k *known) {
	err := h.Item(item)
	n.judge(err)
	if original := h.Original(item); err == nil {
		if k.counted && (original < k.counter || original > k.counter+k.unsure) {
			n.s.Errorf("%v: the counter at %s was %d, and should be from %d to %d", n.host, k.remote.peer, original, k.counter, k.counter+k.unsure)
		}
		if k.counted {
			k.unsure -= min(k.unsure, original-k.counter)
		}
		if n.second == nil {
			k.unsure = 0 // the connection before has ended; with two devices it can go on, and wait at one that pauses
		}
		k.counter, k.counted = original+1, true
	} else if errors.Is(err, ErrUnknown) {
		k.unsure++
	}
}

// judge accepts errors of an item that come from the death of hosts and networks.
func (n *node) judge(err error) {
	for _, no := range []error{rdma.ErrRemoteAccess, rdma.ErrRemoteInvalid, rdma.ErrLocalProtection, rdma.ErrRemoteOperation, ErrPermission, ErrRange} {
		if gone := n.srd && no == rdma.ErrRemoteInvalid; errors.Is(err, no) && !gone { // gone is the endpoint
			n.s.Errorf("%v: %v", n.host, err)
		}
	}
}

// planted is a fault that the test has to find.
var planted = os.Getenv("VERBENA_PLANTED_FAULT")

// late is a link on which packets of ended connections arrive.
var late = sim.LinkConfig{Latency: 50 * time.Millisecond, Jitter: time.Second, Loss: 0.7, Duplicate: 0.3, Reorder: 0.3, ReorderDelay: 5 * time.Second}

// Whatever happens to hosts and networks, no item is lost, doubled or torn, and no memory is touched after the
// end of its handle. Short: fewer seeds.
func TestAgents(t *testing.T) {
	seeds := 20
	if testing.Short() || raceEnabled {
		seeds = 3
	}
	sim.CheckSerial(t, seeds, func(s *sim.Sim) { checkAgents(s, 4, false, false, 10) })
}

// The same is true over SRD, with one device and with two.
func TestSRDAgents(t *testing.T) {
	seeds := 20
	if testing.Short() || raceEnabled {
		seeds = 3
	}
	sim.CheckSerial(t, seeds, func(s *sim.Sim) { checkAgents(s, 4, s.Seed()%2 == 0, true, 10) })
}

// The same is true of many agents with two devices each, of which one can fail alone.
func TestManyAgents(t *testing.T) {
	seeds := 3
	if testing.Short() || raceEnabled {
		seeds = 1
	}
	sim.CheckSerial(t, seeds, func(s *sim.Sim) { checkAgents(s, 16, true, false, 5) })
}

// checkAgents has all of n agents do so many batches after the last fault.
func checkAgents(s *sim.Sim, n int, two, srd bool, batches int) {
	s.SetDefaultLink(sim.LinkConfig{Latency: 10 * time.Millisecond, Jitter: time.Millisecond})
	var nodes []*node
	var second []*sim.Host
	hosts := s.Hosts("h", n)
	for i, h := range hosts {
		nodes = append(nodes, &node{s: s, index: i, host: h, srd: srd, sent: map[*node]map[[3]int]bool{}})
		if two {
			nodes[i].second = s.Host(fmt.Sprintf("second-%d", i))
			second = append(second, nodes[i].second)
		}
	}
	for _, n := range nodes {
		n.all = nodes
		n.host.Run(n.run)
	}
	const end = 15 * time.Second
	chaos := []*sim.Nemesis{s.Nemesis(sim.Chaos{Hosts: hosts, Interval: 2 * time.Second, Longest: 8 * time.Second, Until: end, Worst: late})}
	if two {
		chaos = append(chaos, s.Nemesis(sim.Chaos{Hosts: second, Interval: 2 * time.Second, Longest: 8 * time.Second, Until: end, Worst: late}))
	}
	goals := make([]int, n)
	run := func(ended func() bool, limit time.Duration) {
		s.RunUntil(func() bool {
			for _, n := range nodes { // both devices of a host crash with it
				if n.agent != nil && !n.host.Crashed() {
					if err := n.agent.stuck(); err != nil {
						s.Errorf("%v: %v", n.host, err)
					}
					if !srd { // there, a write does not
						s.Sometimes(n.agent.Counters().ToRepeat > 0, "a piece waits for another connection")
					}
				}
				if crashed := n.host.Crashed(); two && crashed != n.down {
					if n.down = crashed; crashed {
						n.second.Crash()
					} else {
						n.second.Restart()
					}
				}
			}
			return ended()
		}, limit)
	}
	run(func() bool {
		return !slices.ContainsFunc(chaos, func(c *sim.Nemesis) bool { return !c.Done() })
	}, time.Minute)
	for i, n := range nodes {
		goals[i] = n.done + batches
	}
	run(func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool { return n.done < goals[n.index] })
	}, 2*time.Minute)
	for _, node := range nodes {
		for other, notes := range node.sent {
			for which := range notes {
				require.Equal(s, 1, other.got[which], "note %v to %v", which, other.host)
			}
		}
		node.countDials()
		require.Less(s, node.dials, uint64(10*s.Now()/time.Second), "dials of %v", node.host)
	}
}

// plants are changes of the package that plant a fault, which the environment chooses.
var plants = []struct{ file, right, wrong string }{
	{"peer.go", "if s.epoch != path.acceptance.Epoch {", `if s.epoch != path.acceptance.Epoch && planted != "epoch" {`},
	{"batch.go", "case s.stale:", `case s.stale && planted != "epoch":`},
	{"batch.go", "\th.canceled = true\n", `
		h.canceled = true
		for i := 0; i < len(h.items) && planted == "cancel"; i++ {
			h.items[i].fail(ErrCanceled)
			h.end(&h.items[i])
		}
	`},
	{"batch.go", "it.op == rdma.OpWriteImm && sub.left > 0 {", `it.op == rdma.OpWriteImm && sub.left > 0 && planted != "note" {`},
	{"batch.go", "[]bool{false, true}", `[]bool{planted == "note", planted != "note"}`},
	{"device.go", "if in.conn == nil {", `if in.conn == nil || planted == "fence" {`},
}

// Each planted fault is found.
func TestPlantedFaults(t *testing.T) {
	if planted != "" {
		t.Skip("this is the test with the fault")
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for _, p := range plants {
		name, err := filepath.Abs(p.file)
		require.NoError(t, err)
		replace[name] = filepath.Join(dir, p.file)
		from := name
		if _, err := os.Stat(replace[name]); err == nil {
			from = replace[name] // which has another change
		}
		source, err := os.ReadFile(from)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(source, []byte(p.right)), "%s: %s", p.file, p.right)
		require.NoError(t, os.WriteFile(replace[name], bytes.Replace(source, []byte(p.right), []byte(p.wrong), 1), 0o600))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	test := filepath.Join(dir, "transfer.test")
	out, err := exec.Command("go", "test", "-c", "-vet=off", "-pgo=off", "-overlay="+filepath.Join(dir, "overlay.json"), "-o", test, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for fault, found := range map[string][2]string{
		"epoch":  {"TestAgents", "remote access error"},
		"cancel": {"TestAgents", "changed after the end of its handle"},
		"note":   {"TestAgents", "came before its data"},
		"fence":  {"TestDeviceFails", "is not what was written"},
	} {
		t.Run(fault, func(t *testing.T) {
			child := exec.Command(test, "-test.run=^"+found[0]+"$", "-sim.seeds=50", "-sim.shrink=1")
			child.Env = append(os.Environ(), "VERBENA_PLANTED_FAULT="+fault)
			out, err := child.CombinedOutput()
			require.Error(t, err, "%s", out)
			require.Contains(t, string(out), found[1])
		})
	}
}

// Of two devices at each end, one fails, or the network between two of them: all items are done by the others. Short:
// fewer seeds.
func TestDeviceFails(t *testing.T) {
	seeds := 40
	if testing.Short() || raceEnabled {
		seeds = 4
	}
	sim.CheckSerial(t, seeds, func(s *sim.Sim) {
		s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond, Rate: 20e6})
		near, near1, far, far1 := s.Host("near"), s.Host("near1"), s.Host("far"), s.Host("far1")
		memory, counter, ended := make([]byte, 8<<20), 0, false
		far.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, far1.Device()}, Listen: ":7600"})
			if err != nil {
				return err
			}
			if _, err = a.Register("blocks", memory, all); err == nil {
				for counter < 8 {
					if _, err = a.Note(ctx); err != nil {
						break
					}
					counter++
				}
			}
			for ctx.Err() == nil {
				far.Sleep(100 * time.Millisecond)
			}
			return errors.Join(err, a.Close())
		})
		var counters Counters
		near.Run(func(ctx context.Context, dev verbs.Device) error {
			// DialTimeout: while a device there stands still, no other one can confirm that its writes have ended.
			a, err := Open(Config{Devices: []verbs.Device{dev, near1.Device()}, DialTimeout: 10 * time.Second, SilenceTimeout: time.Duration(1+s.Rand().IntN(4)) * time.Second})
			if err != nil {
				return err
			}
			err = func() error {
				mine := make([]byte, len(memory))
				if _, err := a.Register("", mine, all); err != nil {
					return err
				}
				var p *Peer
				for p == nil && ctx.Err() == nil {
					p, _ = a.Dial(ctx, far.Addr().String()+":7600")
				}
				remote, err := p.Segment(ctx, "blocks")
				if err != nil {
					return err
				}
				for round := range 8 {
					pattern(mine, 1, round)
					var b Batch
					b.Write(remote, 0, mine[:6<<20])
					b.Write(remote, 6<<20, mine[6<<20:])
					b.Note(p, uint32(round))
					h, err := a.Submit(&b)
					if err != nil {
						return err
					}
					<-h.Done()
					if err := h.Err(); err != nil {
						return err
					}
					if !bytes.Equal(mine, memory) {
						s.Errorf("round %d: the memory there is not what was written", round)
					}
				}
				return nil
			}()
			counters = a.Counters()
			ended = true
			return errors.Join(err, a.Close())
		})
		victim := []*sim.Host{near1, far1}[s.Rand().IntN(2)]
		s.After(time.Duration(500+s.Rand().IntN(1000))*time.Millisecond, func() {
			switch s.Rand().IntN(4) {
			case 0:
				s.Partition([]*sim.Host{near1}, []*sim.Host{far, far1})
			case 1:
				s.Cut(far1, near1) // what arrives is not acknowledged
			case 2: // what was sent arrives when it was sent again by the others
				far1.Pause()
				s.After(time.Duration(9500+s.Rand().IntN(2500))*time.Millisecond, far1.Resume)
			default:
				victim.Crash()
			}
		})
		s.RunUntil(func() bool { return ended }, 2*time.Minute)
		s.Run(15 * time.Second) // until what was sent to a device that pauses has arrived
		last := make([]byte, len(memory))
		pattern(last, 1, 7)
		require.True(s, bytes.Equal(last, memory), "the memory there is not what was written last")
		require.Equal(s, 8, counter)
		s.Sometimes(counters.Repeated > 0, "a piece is repeated") // but not when the connection that ends has nothing
		require.Less(s, counters.Dials, uint64(20))
	})
}

// A host that takes all connections which it gets leaves some for others, and for those that the agent dials.
func TestHostTakesConnections(t *testing.T) {
	sim.CheckSerial(t, 1, func(s *sim.Sim) {
		const most = 8
		near, far, evil := s.Host("near"), s.Host("far"), s.Host("evil")
		taken, dialled := 0, 0
		for i, h := range []*sim.Host{near, far} {
			other := []*sim.Host{far, near}[i]
			h.Run(func(ctx context.Context, dev verbs.Device) error {
				a, err := Open(Config{Devices: []verbs.Device{dev}, Listen: ":7600", MaxConnections: most, DialTimeout: time.Second})
				if err != nil {
					return err
				}
				h.Sleep(time.Minute)
				if _, err = a.Dial(ctx, other.Addr().String()+":7600"); err == nil {
					dialled++
				}
				for err == nil && ctx.Err() == nil {
					h.Sleep(100 * time.Millisecond)
				}
				return errors.Join(err, a.Close())
			})
		}
		evil.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev}, DialTimeout: time.Second})
			if err != nil {
				return err
			}
			for range 2 * most {
				if _, err = a.Dial(ctx, far.Addr().String()+":7600"); err == nil {
					taken++
				}
			}
			for ctx.Err() == nil {
				evil.Sleep(100 * time.Millisecond)
			}
			return a.Close()
		})
		s.RunUntil(func() bool { return dialled == 2 }, 2*time.Minute)
		require.Equal(s, most/2, taken)
	})
}

// Devices die, of both agents, also one that carries the connections of a dead one: the last ones do all. Short: fewer
// seeds.
func TestDevicesFailInTurn(t *testing.T) {
	seeds := 40
	if testing.Short() || raceEnabled {
		seeds = 12
	}
	sim.CheckSerial(t, seeds, func(s *sim.Sim) {
		s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond, Rate: 2e6})
		near, far := s.Hosts("near", 3), s.Hosts("far", 2)
		memory, ended := make([]byte, 8<<20), false
		came := map[uint32]int{}
		var agents []*Agent
		far[0].Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, far[1].Device()}, Listen: ":7600"})
			if err != nil {
				return err
			}
			agents = append(agents, a)
			_, err = a.Register("blocks", memory, all)
			far[0].Go(func() {
				for {
					n, err := a.Note(ctx)
					if err != nil {
						return
					}
					came[n.Value]++
				}
			})
			for err == nil && ctx.Err() == nil {
				far[0].Sleep(100 * time.Millisecond)
			}
			return errors.Join(err, a.Close())
		})
		near[0].Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{near[1].Device(), dev, near[2].Device()}, Piece: 16 << 10, DialTimeout: 4 * time.Second})
			if err != nil {
				return err
			}
			agents = append(agents, a)
			mine := make([]byte, len(memory))
			pattern(mine, 1, 1)
			_, err = a.Register("", mine, all)
			var p *Peer
			for p == nil && ctx.Err() == nil && err == nil {
				p, _ = a.Dial(ctx, far[0].Addr().String()+":7600")
			}
			remote, e := p.Segment(ctx, "blocks")
			if err = errors.Join(err, e); err != nil {
				return err
			}
			var handles []*Handle
			for i := range 64 {
				var b Batch
				b.Write(remote, i<<17, mine[i<<17:][:1<<17])
				b.Note(p, uint32(i))
				h, err := a.Submit(&b)
				require.NoError(s, err)
				handles = append(handles, h)
			}
			for _, victim := range []*sim.Host{near[1], near[2], far[1]} {
				s.After(time.Duration(100+near[0].Rand().IntN(2500))*time.Millisecond, victim.Crash)
			}
			for _, h := range handles {
				<-h.Done()
				require.NoError(s, h.Err())
			}
			require.True(s, bytes.Equal(mine, memory))
			for range 2 { // as before, without the devices that are dead
				more := make([]byte, 100)
				segment, err := a.Register("", more, all)
				require.NoError(s, err)
				remote, err = p.Segment(ctx, "blocks")
				require.NoError(s, err)
				var b Batch
				b.Read(remote, 0, more)
				b.Note(p, 100)
				h, err := a.Submit(&b)
				require.NoError(s, err)
				<-h.Done()
				require.NoError(s, h.Err())
				require.NoError(s, segment.Close())
			}
			p.Close()
			ended = true
			return a.Close()
		})
		s.RunUntil(func() bool {
			for _, a := range agents {
				if err := a.stuck(); err != nil {
					s.Errorf("%v", err)
				}
			}
			return ended
		}, 5*time.Minute)
		s.Run(time.Second)
		require.Len(s, came, 65)
		for v, n := range came {
			require.Equal(s, 1+int(v/100), n, "%v", v)
		}
	})
}

// A note has arrived, and its acknowledgement is lost. The peer then forgets how many have: the outcome is unknown,
// and the note does not come again; also if the peer accepts a connection in between that is never made.
func TestForgottenNotes(t *testing.T) {
	sim.CheckSerial(t, 2, func(s *sim.Sim) { checkForgotten(s, false) })
	sim.CheckSerial(t, 2, func(s *sim.Sim) { checkForgotten(s, true) })
}

func checkForgotten(s *sim.Sim, inVain bool) {
	near, far := s.Host("near"), s.Host("far")
	came, ended := 0, false
	far.Run(func(ctx context.Context, dev verbs.Device) error {
		a, err := Open(Config{Devices: []verbs.Device{dev}, Listen: ":7600"})
		if err != nil {
			return err
		}
		far.Go(func() {
			for {
				if _, err := a.Note(ctx); err != nil {
					return
				}
				came++
			}
		})
		for forgotten := false; ctx.Err() == nil; far.Sleep(10 * time.Millisecond) {
			a.mu.Lock()
			if came > 0 && a.absent.Len() > 0 {
				if !forgotten {
					delete(a.incoming, a.absent.Pop().Value.who.Path)
				}
				if forgotten || !inVain {
					s.Heal()
				}
				forgotten = true
			}
			a.mu.Unlock()
		}
		return a.Close()
	})
	near.Run(func(ctx context.Context, dev verbs.Device) error {
		a, err := Open(Config{Devices: []verbs.Device{dev}, DialTimeout: time.Minute})
		if err != nil {
			return err
		}
		p, err := a.Dial(ctx, far.Addr().String()+":7600")
		if err == nil {
			s.Cut(far, near)
			var b Batch
			b.Note(p, 7)
			h, e := a.Submit(&b)
			if err = e; err == nil {
				<-h.Done()
				if err = h.Err(); errors.Is(err, ErrUnknown) {
					err = nil
				} else {
					err = fmt.Errorf("the outcome of the note is %v", err)
				}
			}
		}
		ended = true
		return errors.Join(err, a.Close())
	})
	s.RunUntil(func() bool { return ended }, 2*time.Minute)
	s.Run(time.Second)
	require.Equal(s, 1, came)
}

// A peer that ends each connection after a while is not dialled again and again.
func TestShortConnections(t *testing.T) {
	sim.CheckSerial(t, 2, func(s *sim.Sim) {
		near, far := s.Host("near"), s.Host("far")
		ended := false
		far.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev}, Listen: ":7600"})
			if err != nil {
				return err
			}
			_, err = a.Register("blocks", make([]byte, 100), all)
			for ; ctx.Err() == nil && err == nil; far.Sleep(20 * time.Millisecond) {
				a.mu.Lock()
				for _, in := range a.incoming {
					in.close()
				}
				a.mu.Unlock()
			}
			return errors.Join(err, a.Close())
		})
		done := 0
		near.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev}})
			if err != nil {
				return err
			}
			mine := make([]byte, 100)
			_, err = a.Register("", mine, all)
			var p *Peer
			for p == nil && ctx.Err() == nil && err == nil {
				p, _ = a.Dial(ctx, far.Addr().String()+":7600")
			}
			for start := near.Now(); err == nil && near.Now().Sub(start) < 40*time.Second; near.Sleep(time.Millisecond) {
				remote, e := p.Segment(ctx, "blocks")
				if e != nil {
					continue
				}
				var b Batch
				b.Read(remote, 0, mine)
				h, e := a.Submit(&b)
				if err = e; err == nil {
					if <-h.Done(); h.Err() == nil {
						done++
					}
				}
			}
			require.Less(s, a.Counters().Dials, uint64(20))
			ended = true
			return errors.Join(err, a.Close())
		})
		s.RunUntil(func() bool { return ended }, 2*time.Minute)
		require.Positive(s, done)
	})
}

// All connections end, and one of two devices does not reach the peer again: the other one confirms the end of its
// writes, and does them.
func TestOneDeviceComesBack(t *testing.T) {
	sim.CheckSerial(t, 2, func(s *sim.Sim) {
		near, near1, far, far1 := s.Host("near"), s.Host("near1"), s.Host("far"), s.Host("far1")
		memory, ended := make([]byte, 100), false
		far.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, far1.Device()}, Listen: ":7600"})
			if err != nil {
				return err
			}
			_, err = a.Register("blocks", memory, all)
			for err == nil && ctx.Err() == nil {
				far.Sleep(100 * time.Millisecond)
			}
			return errors.Join(err, a.Close())
		})
		near.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, near1.Device()}, Depth: 1})
			if err != nil {
				return err
			}
			mine := make([]byte, 100)
			pattern(mine[:50], 1, 1)
			_, err = a.Register("", mine, all)
			var p *Peer
			for p == nil && ctx.Err() == nil && err == nil {
				p, _ = a.Dial(ctx, far.Addr().String()+":7600")
			}
			remote, e := p.Segment(ctx, "blocks")
			if err = errors.Join(err, e); err != nil {
				return err
			}
			for len(p.Devices()) < 2 {
				near.Sleep(10 * time.Millisecond)
			}
			s.Partition([]*sim.Host{near}, []*sim.Host{far, far1})
			var b Batch
			b.Write(remote, 0, mine[:50]) // by the first device
			h, err := a.Submit(&b)
			if err != nil {
				return err
			}
			near.Sleep(100 * time.Millisecond)
			s.Partition([]*sim.Host{near1}, []*sim.Host{far, far1})
			b.Read(remote, 50, mine[50:]) // by the second
			other, err := a.Submit(&b)
			if err != nil {
				return err
			}
			for tries := 0; tries == 0; near.Sleep(10 * time.Millisecond) {
				a.mu.Lock()
				tries = p.paths[0].tries
				a.mu.Unlock()
			}
			s.Heal()
			s.Partition([]*sim.Host{near}, []*sim.Host{far, far1})
			<-other.Done()
			require.NoError(s, other.Err())
			<-h.Done()
			require.NoError(s, h.Err())
			require.True(s, bytes.Equal(mine, memory))
			ended = true
			return a.Close()
		})
		s.RunUntil(func() bool { return ended }, 5*time.Minute)
	})
}

// A device that reaches the peer again is used again, also in the middle of a batch.
func TestDeviceComesBack(t *testing.T) {
	sim.CheckSerial(t, 1, func(s *sim.Sim) {
		s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond, Rate: 200e3})
		near, near1, far, far1 := s.Host("near"), s.Host("near1"), s.Host("far"), s.Host("far1")
		far.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, far1.Device()}, Listen: ":7600"})
			if err != nil {
				return err
			}
			_, err = a.Register("blocks", make([]byte, 1<<20), all)
			for err == nil && ctx.Err() == nil {
				far.Sleep(100 * time.Millisecond)
			}
			return errors.Join(err, a.Close())
		})
		ended := false
		near.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, near1.Device()}, DialTimeout: 5 * time.Second, Piece: 16 << 10, Depth: 4})
			if err != nil {
				return err
			}
			mine := make([]byte, 1<<20)
			_, err = a.Register("", mine, all)
			var p *Peer
			for p == nil && ctx.Err() == nil && err == nil {
				p, _ = a.Dial(ctx, far.Addr().String()+":7600")
			}
			remote, e := p.Segment(ctx, "blocks")
			if err = errors.Join(err, e); err != nil {
				return err
			}
			var b Batch
			for range 1000 {
				b.Write(remote, 0, mine)
			}
			h, err := a.Submit(&b)
			if err != nil {
				return err
			}
			ready := func() bool {
				a.mu.Lock()
				defer a.mu.Unlock()
				return p.paths[1].state == pathReady && p.paths[1].dev == a.devices[1]
			}
			wait := func(is bool) {
				for until := near.Now().Add(time.Minute); ready() != is; near.Sleep(100 * time.Millisecond) {
					if near.Now().After(until) {
						s.Errorf("the second device: ready is %v", !is)
						return
					}
				}
			}
			wait(true)
			s.Partition([]*sim.Host{near1}, []*sim.Host{far, far1})
			wait(false)
			near.Sleep(12 * time.Second) // dials fail
			s.Heal()
			wait(true)
			h.Cancel()
			ended = true
			return a.Close()
		})
		s.RunUntil(func() bool { return ended }, 5*time.Minute)
	})
}

// A peer is reached by any of its devices, also from an agent with one: when it is dialled, and later.
func TestPeerDeviceFails(t *testing.T) {
	sim.CheckSerial(t, 2, func(s *sim.Sim) {
		near, far, far1 := s.Host("near"), s.Host("far"), s.Host("far1")
		far.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, far1.Device()}, Listen: ":7600"})
			if err != nil {
				return err
			}
			_, err = a.Register("blocks", make([]byte, 100), all)
			for err == nil && ctx.Err() == nil {
				far.Sleep(100 * time.Millisecond)
			}
			return errors.Join(err, a.Close())
		})
		ended := false
		near.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev}})
			if err != nil {
				return err
			}
			mine := make([]byte, 100)
			_, err = a.Register("", mine, all)
			s.Cut(near, far)
			near.Sleep(time.Second) // far1 listens
			p, e := a.Dial(ctx, far.Addr().String()+":7600", far1.Addr().String()+":7600")
			if err = errors.Join(err, e); err != nil {
				return err
			}
			remote, err := p.Segment(ctx, "blocks")
			if err != nil {
				return err
			}
			require.NotZero(s, p.Epoch())
			require.Equal(s, a.cfg.Devices, p.Devices())
			for i := range 2 { // which address goes on at which device
				s.Heal()
				s.Cut(near, []*sim.Host{far1, far}[i])
				var b Batch
				b.Write(remote, 0, mine)
				h, err := a.Submit(&b)
				if err == nil {
					err = h.Wait(ctx)
				}
				if err != nil {
					return err
				}
			}
			ended = true
			return a.Close()
		})
		s.RunUntil(func() bool { return ended }, 5*time.Minute)
		require.True(s, ended)
	})
}

// When a peer is closed, a write, a note and an atomic that a device has may still take effect: their outcome is unknown.
func TestCloseWithWrites(t *testing.T) {
	sim.CheckSerial(t, 1, func(s *sim.Sim) {
		near, far := s.Host("near"), s.Host("far")
		far.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev}, Listen: ":7600"})
			if err != nil {
				return err
			}
			_, err = a.Register("blocks", make([]byte, 100), all)
			for err == nil && ctx.Err() == nil {
				far.Sleep(100 * time.Millisecond)
			}
			return errors.Join(err, a.Close())
		})
		ended := false
		near.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev}})
			if err != nil {
				return err
			}
			mine := make([]byte, 100)
			_, err = a.Register("", mine, all)
			var p *Peer
			for p == nil && ctx.Err() == nil && err == nil {
				p, _ = a.Dial(ctx, far.Addr().String()+":7600")
			}
			remote, e := p.Segment(ctx, "blocks")
			if err = errors.Join(err, e); err != nil {
				return err
			}
			s.Cut(far, near)
			var write, note, add Batch
			write.Write(remote, 0, mine)
			note.Note(p, 1)
			add.FetchAdd(remote, 0, 1)
			for _, b := range []*Batch{&write, &note, &add} {
				h, e := a.Submit(b)
				if e != nil {
					return e
				}
				defer func() {
					<-h.Done()
					require.ErrorIs(s, h.Err(), ErrUnknown)
					require.ErrorIs(s, h.Err(), ErrClosed)
				}()
			}
			near.Sleep(100 * time.Millisecond)
			p.Close()
			ended = true
			return a.Close()
		})
		s.RunUntil(func() bool { return ended }, 2*time.Minute)
	})
}

// Over SRD too, reads that a device had when it failed are done by another one.
func TestSRDDeviceFails(t *testing.T) {
	sim.CheckSerial(t, 4, func(s *sim.Sim) {
		s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond, Rate: 20e6})
		near, near1, far, far1 := s.Host("near"), s.Host("near1"), s.Host("far"), s.Host("far1")
		memory, addr, ended := make([]byte, 8<<20), "", false
		pattern(memory, 1, 1)
		far.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, far1.Device()}, Transport: verbs.SRD, Listen: ":7600"})
			if err != nil {
				return err
			}
			addr = a.Addrs()[0].String()
			_, err = a.Register("blocks", memory, all)
			for err == nil && ctx.Err() == nil {
				far.Sleep(100 * time.Millisecond)
			}
			return errors.Join(err, a.Close())
		})
		var counters Counters
		near.Run(func(ctx context.Context, dev verbs.Device) error {
			a, err := Open(Config{Devices: []verbs.Device{dev, near1.Device()}, Transport: verbs.SRD, DialTimeout: 5 * time.Second})
			if err != nil {
				return err
			}
			mine := make([]byte, len(memory))
			_, err = a.Register("", mine, all)
			for addr == "" {
				near.Sleep(time.Millisecond)
			}
			p, e := a.Dial(ctx, addr)
			if err = errors.Join(err, e); err == nil {
				remote, e := p.Segment(ctx, "blocks")
				for round := 0; round < 8 && e == nil; round++ {
					clear(mine)
					var b Batch
					b.Read(remote, 0, mine)
					var h *Handle
					if h, e = a.Submit(&b); e == nil {
						<-h.Done()
						e = h.Err()
					}
					if e == nil && !bytes.Equal(mine, memory) {
						s.Errorf("round %d: what was read is wrong", round)
					}
				}
				err = e
			}
			counters, ended = a.Counters(), true
			return errors.Join(err, a.Close())
		})
		victim := []*sim.Host{near1, far1}[s.Rand().IntN(2)]
		s.After(time.Duration(500+s.Rand().IntN(1000))*time.Millisecond, func() {
			switch s.Rand().IntN(3) {
			case 0:
				s.Partition([]*sim.Host{near1}, []*sim.Host{far, far1})
			case 1:
				s.Cut(far1, near1) // requests arrive, and nothing comes back
			default:
				victim.Crash()
			}
		})
		s.RunUntil(func() bool { return ended }, 2*time.Minute)
		require.True(s, ended)
		require.Less(s, counters.Dials, uint64(20))
		s.Sometimes(counters.Repeated > 0, "a piece is repeated")
	})
}

package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/fabric"
	"github.com/verbena-rdma/verbena/soft/internal/roce/congestion"
)

// LinkConfig is what a link does to the packets of one direction: how long they take (Latency,
// Jitter), how many fit (Rate, Queue, Mark, MTU), and the probabilities of faults (Loss,
// Duplicate, Reorder with ReorderDelay, Corrupt, RandomMark). The zero value delivers all of
// them at once.
type LinkConfig = fabric.LinkConfig

// LinkCounts counts the packets of a link: those that it was given (Sent, and Bytes with IP and
// Ethernet headers), those that it dropped (Lost, Overflowed, TooLong), those that it changed
// (Marked, Duplicated, Reordered, Corrupted), and the most bytes that have waited (Deepest).
type LinkCounts = fabric.Counts

// defaultLatency is that of a link between two hosts that nothing else joins.
const defaultLatency = 5 * time.Microsecond

// Node is a host or a switch.
type Node interface{ at() *node }

// node is a place in the network.
type node struct {
	index int
	name  string
	host  *Host // nil: a switch
	links []*Link
}

func (h *Host) at() *node { return h.node }

// Switch joins links. Its queues are those of the links that leave it.
type Switch struct {
	s    *Sim
	node *node
}

func (w *Switch) at() *node { return w.node }

// Link carries the packets of one direction between two nodes.
type Link struct {
	s        *Sim
	from, to *node
	fabric   *fabric.Link
	direct   bool // made for two hosts that nothing else joins
	changed  bool // by Set: SetDefaultLink leaves it alone
	bad      bool // by a fault
}

// topology is how hosts are joined. The simulation's lock guards it.
type topology struct {
	s       *Sim
	nodes   []*node
	links   map[[2]*node]*Link
	routes  map[[2]*node][]*Link
	cuts    map[[2]*node]causes // of pairs that are cut
	initial LinkConfig          // of links between two hosts that nothing else joins
}

func (t *topology) init(s *Sim) {
	*t = topology{
		s: s, links: make(map[[2]*node]*Link), routes: make(map[[2]*node][]*Link), cuts: make(map[[2]*node]causes),
		initial: LinkConfig{Latency: defaultLatency},
	}
}

func (t *topology) add(h *Host) *node {
	n := &node{index: len(t.nodes), name: h.name, host: h}
	t.nodes = append(t.nodes, n)
	return n
}

// SetDefaultLink sets what a link is like between two hosts that nothing else joins. Initially
// it has a latency of 5 µs, no limit of its rate, and no faults.
func (s *Sim) SetDefaultLink(c LinkConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topology.initial = c
	for _, n := range s.topology.nodes {
		for _, l := range n.links {
			if l.direct && !l.changed {
				l.fabric.Config = c
			}
		}
	}
}

// Switch adds a switch.
func (s *Sim) Switch(name string) *Switch {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.topology
	w := &Switch{s: s, node: &node{index: len(t.nodes), name: name}}
	t.nodes = append(t.nodes, w.node)
	return w
}

// Connect joins two nodes by a link in each direction. Packets take the route with the fewest
// links.
func (s *Sim) Connect(a, b Node, c LinkConfig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topology.join(a.at(), b.at(), c, false)
	s.topology.join(b.at(), a.at(), c, false)
	clear(s.topology.routes)
}

// join makes the link from one node to another.
func (t *topology) join(from, to *node, c LinkConfig, direct bool) *Link {
	key := [2]*node{from, to}
	if l := t.links[key]; l != nil {
		l.fabric.Config, l.direct = c, direct
		return l
	}
	random := rand.New(rand.NewPCG(t.s.seed, uint64(from.index)<<32|uint64(to.index)<<8|2))
	l := &Link{s: t.s, from: from, to: to, fabric: fabric.NewLink(c, random), direct: direct}
	l.fabric.Overhead = ethernetHeaderBytes
	t.links[key] = l
	from.links = append(from.links, l)
	return l
}

// Link returns the link from one node to another. Two hosts have one unless switches join
// them. It panics if there is none.
func (s *Sim) Link(from, to Node) *Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, a, b := &s.topology, from.at(), to.at()
	if l := t.links[[2]*node{a, b}]; l != nil {
		return l
	}
	if route := t.route(a, b); len(route) == 1 {
		return route[0]
	}
	panic(fmt.Sprintf("sim: no link joins %s and %s", a.name, b.name))
}

// String names the ends of the link.
func (l *Link) String() string { return l.from.name + " to " + l.to.name }

// Config returns what the link does.
func (l *Link) Config() LinkConfig {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.fabric.Config
}

// Set changes what the link does from now on.
func (l *Link) Set(c LinkConfig) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.fabric.Config, l.changed = c, true
}

// Counts returns the counters of the link.
func (l *Link) Counts() LinkCounts {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.fabric.Counts
}

// Star adds n hosts, named prefix0 and so on, that one switch joins.
func (s *Sim) Star(prefix string, n int, c LinkConfig) ([]*Host, *Switch) {
	w := s.Switch(prefix + "-switch")
	hosts := s.Hosts(prefix, n)
	for _, h := range hosts {
		s.Connect(h, w, c)
	}
	return hosts, w
}

// Racks adds two racks of n hosts each, named prefix0-0 to prefix1-n. The hosts of a rack are
// joined by a switch, and the switches by a trunk.
func (s *Sim) Racks(prefix string, n int, c, trunk LinkConfig) (hosts [2][]*Host, switches [2]*Switch) {
	for i := range hosts {
		hosts[i], switches[i] = s.Star(fmt.Sprint(prefix, i, "-"), n, c)
	}
	s.Connect(switches[0], switches[1], trunk)
	return hosts, switches
}

// Cut makes all packets vanish that go from one host to another, in this direction only, until
// Heal.
func (s *Sim) Cut(from, to *Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topology.cut(from.node, to.node, nil)
}

func (t *topology) cut(from, to *node, by *fault) {
	pair := [2]*node{from, to}
	t.cuts[pair] = t.cuts[pair].with(by)
}

// heal ends a cut by a fault.
func (t *topology) heal(from, to *node, by *fault) {
	pair := [2]*node{from, to}
	if t.cuts[pair] = t.cuts[pair].without(by); len(t.cuts[pair]) == 0 {
		delete(t.cuts, pair)
	}
}

// Partition cuts all pairs of a host of one group and a host of another, in both directions.
func (s *Sim) Partition(groups ...[]*Host) {
	for i, a := range groups {
		for j, b := range groups {
			if i == j {
				continue
			}
			for _, from := range a {
				for _, to := range b {
					s.Cut(from, to)
				}
			}
		}
	}
}

// Heal undoes Cut and Partition, and those of a [Nemesis].
func (s *Sim) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.topology.cuts)
}

// route returns the links from one node to another; nil: there is no way.
func (t *topology) route(from, to *node) []*Link {
	key := [2]*node{from, to}
	if r, known := t.routes[key]; known {
		return r
	}
	r := t.search(from, to)
	if r == nil && from.host != nil && to.host != nil && len(from.wired()) == 0 && len(to.wired()) == 0 {
		r = []*Link{t.join(from, to, t.initial, true)}
	}
	t.routes[key] = r
	return r
}

// wired returns the links of a node other than direct ones.
func (n *node) wired() (list []*Link) {
	for _, l := range n.links {
		if !l.direct {
			list = append(list, l)
		}
	}
	return list
}

// search finds the route with the fewest links.
func (t *topology) search(from, to *node) []*Link {
	if l := t.links[[2]*node{from, to}]; l != nil {
		return []*Link{l}
	}
	came := map[*node]*Link{from: nil}
	for next := []*node{from}; len(next) > 0; next = next[1:] {
		n := next[0]
		if n != from && n.host != nil {
			continue // hosts do not forward
		}
		for _, l := range n.links {
			if _, seen := came[l.to]; seen || l.direct {
				continue
			}
			came[l.to] = l
			if l.to == to {
				return pathTo(to, came)
			}
			next = append(next, l.to)
		}
	}
	return nil
}

func pathTo(to *node, came map[*node]*Link) (route []*Link) {
	for l := came[to]; l != nil; l = came[l.from] {
		route = append([]*Link{l}, route...)
	}
	return route
}

// latency returns the latency from one node to another. reached is false if packets do not
// get there.
func (t *topology) latency(from, to *node) (sum time.Duration, reached bool) {
	if from == to {
		return 0, true
	}
	if _, cut := t.cuts[[2]*node{from, to}]; cut {
		return 0, false
	}
	route := t.route(from, to)
	for _, l := range route {
		sum += l.fabric.Config.Latency
	}
	return sum, route != nil
}

// send puts a packet on its first link. A packet to the sender's own host takes no link.
func (t *topology) send(x *packet) {
	from, to := x.from.host.node, x.to.node
	if from == to {
		x.to.push(t.s.elapsed(), event{kind: eventPacket, packet: x})
		return
	}
	x.route = t.route(from, to)
	if _, cut := t.cuts[[2]*node{from, to}]; cut || x.route == nil {
		t.s.drop(x)
		return
	}
	t.carry(x)
}

// sendToGroup puts a packet to a multicast group on the first links to its members.
func (t *topology) sendToGroup(x *packet) {
	from := x.from.host.node
	reached := x.members[:0]
	for _, m := range x.members {
		if m.node == from {
			c := t.s.copy(x)
			c.to = m
			t.send(c)
		} else if _, cut := t.cuts[[2]*node{from, m.node}]; !cut && t.route(from, m.node) != nil {
			reached = append(reached, m)
		}
	}
	x.members = reached
	t.fork(x)
}

// fork puts a copy of a packet on each link that leads to some of its members, and drops it.
func (t *topology) fork(x *packet) {
	from := x.from.host.node
	var copies []*packet
	for _, m := range x.members {
		route := t.route(from, m.node)
		i := slices.IndexFunc(copies, func(c *packet) bool { return c.route[x.hop] == route[x.hop] })
		if i < 0 {
			c := t.s.copy(x)
			c.to, c.route, c.members = m, route, nil
			copies, i = append(copies, c), len(copies)
		}
		copies[i].members = append(copies[i].members, m)
	}
	t.s.drop(x)
	for _, c := range copies {
		t.carry(c)
	}
}

// forward puts a packet that has arrived at a switch on its next link.
func (t *topology) forward(x *packet) {
	x.hop++
	if x.group.IsValid() {
		t.fork(x)
		return
	}
	t.carry(x)
}

// carry puts a packet on the link of its hop.
func (t *topology) carry(x *packet) {
	l := x.route[x.hop].fabric
	s := t.s
	capable := congestion.Mark(x.header.TrafficClass) != x.header.TrafficClass
	arrivals, n := l.Carry(s.elapsed(), x.ipLen(), capable)
	if n == 0 {
		s.drop(x)
		return
	}
	if n == 2 {
		t.deliver(s.copy(x), arrivals[1], l)
	}
	t.deliver(x, arrivals[0], l)
}

// deliver makes a packet arrive at the end of a link.
func (t *topology) deliver(x *packet, a fabric.Arrival, l *fabric.Link) {
	if a.Marked {
		x.header.TrafficClass = congestion.Mark(x.header.TrafficClass)
	}
	if a.Corrupt {
		l.Corrupt(x.data)
	}
	if x.hop == len(x.route)-1 {
		t.s.push(a.At, x.from.host.order(), event{kind: eventPacket, host: x.to, packet: x})
		return
	}
	t.s.push(a.At, t.s.random.Uint64(), event{kind: eventHop, packet: x})
}

package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// Chaos limits which faults a [Nemesis] causes, how often, and how many at a time. Within the limits,
// each seed draws a choice of its own (swarm testing).
//
//	s.Nemesis(sim.Chaos{Hosts: servers, Until: time.Minute})             // everything, to a minority of them
//	s.Nemesis(sim.Chaos{Crashes: 1, Interval: 100 * time.Millisecond})   // only crashes, until Stop
//	s.Nemesis(sim.Chaos{Crashes: 1, BadLinks: 5, MaxDown: 2})            // more bad links than crashes
type Chaos struct {
	// Hosts are those that crash, pause and are cut off, and whose links become bad. Empty: all
	// hosts that exist when the Nemesis begins.
	Hosts []*Host
	// Until is the time of the simulation at which the chaos ends. Zero: when Stop is called.
	Until time.Duration
	// Interval is the mean time from one fault to the next. Each seed draws up to four times as much.
	// Zero: a second.
	Interval time.Duration
	// Longest is how long a fault lasts at most. Zero: three times Interval.
	Longest time.Duration
	// MaxDown is how many of Hosts are crashed, paused, or cut off by a partition at a time.
	// Hosts that the test crashes or pauses count too. Zero: a minority, but at least one.
	MaxDown int

	// How often each kind of fault is drawn, in proportion to the others. All zero: equally often. Each
	// seed draws which of them it leaves out.

	Crashes    int // of a host whose program runs; it restarts when the fault ends
	Pauses     int // of a host
	Partitions int // some of Hosts can neither send to nor receive from the rest
	OneWay     int // some of Hosts cannot send to the rest, or not receive from it
	BadLinks   int // between one of Hosts and any other host, in one direction or both
	BadClocks  int // of a host: it jumps by up to ClockOffset, and drifts by up to ClockDrift
	BadDisks   int // of a host: reads fail. Only if it is set

	// ClockOffset and ClockDrift limit by how much clocks are wrong, in either direction: by a time, and
	// by a part of their rate. Unless both are zero, all clocks of Hosts are wrong from the
	// beginning, in seeds that have this kind of fault. Timers and [Host.Sleep] drift, but do not jump.
	ClockOffset time.Duration
	ClockDrift  float64 // less than 1

	// Worst is how bad links become: a bad link gets some of the properties that are set here,
	// each up to this value. A rate is at least this one. Zero: 20 ms of latency and of jitter,
	// 1 MB/s with a queue of 64 KiB, and probabilities of 0.3 to lose and to reorder a packet,
	// and of 0.1 to duplicate and to corrupt it. MTU is ignored.
	Worst LinkConfig
}

// Nemesis causes faults that the seed draws, and ends each of them after a while.
type Nemesis struct {
	s        *Sim
	c        Chaos
	number   int // of the simulation's
	random   *rand.Rand
	interval time.Duration // the mean time between faults, as the seed has drawn it
	events   uint64
	active   []*fault
	counts   map[FaultKind]int
	over     bool
}

// fault is a fault that has not ended.
type fault struct {
	Fault
	hosts []*Host // those that count as down
	end   func()
}

// causes are the faults that cause a state; nil stands for the test.
type causes []*fault

func (c causes) with(f *fault) causes {
	if slices.Contains(c, f) {
		return c
	}
	return append(c, f)
}

func (c causes) without(f *fault) causes {
	return slices.DeleteFunc(c, func(o *fault) bool { return o == f })
}

// among makes f one of the causes that set changes, and returns how to undo that.
func (f *fault) among(set func(change func(c causes) causes)) (end func()) {
	set(func(c causes) causes { return c.with(f) })
	return func() { set(func(c causes) causes { return c.without(f) }) }
}

var worstLink = LinkConfig{
	Latency: 20 * time.Millisecond, Jitter: 20 * time.Millisecond, Rate: 1e6, Queue: 64 << 10,
	Loss: 0.3, Reorder: 0.3, Duplicate: 0.1, Corrupt: 0.1,
}

// Nemesis begins to cause faults. When it ends, by itself or by Stop, it leaves the network and
// the hosts as it found them: links as before, no pair of hosts cut, and crashed hosts started
// again, so that a test can demand progress then. Clocks run at their rate and without their step; what
// they have gained or lost by drift remains. It logs each fault to the test, which prints
// it if the test fails or is verbose, and to the log of -sim.log. What the test does itself,
// before or meanwhile, outlives the chaos: pairs cut, hosts crashed or paused, links changed.
// Several can run at a time, but do not know each other's limits but MaxDown.
func (s *Sim) Nemesis(c Chaos) *Nemesis {
	s.mu.Lock()
	if len(c.Hosts) == 0 {
		c.Hosts = slices.Clone(s.hosts)
	}
	s.nemeses++
	n := &Nemesis{s: s, number: int(s.nemeses) - 1, random: rand.New(rand.NewPCG(s.seed, s.nemeses<<8|3)), counts: make(map[FaultKind]int)}
	s.mu.Unlock()
	if c.Interval <= 0 {
		c.Interval = time.Second
	}
	if c.Longest <= 0 {
		c.Longest = 3 * c.Interval
	}
	if c.MaxDown <= 0 {
		c.MaxDown = max((len(c.Hosts)-1)/2, 1)
	}
	if !slices.ContainsFunc(draws[:], func(d draw) bool { return *d.weight(&c) != 0 }) {
		for _, d := range draws {
			if d.usual {
				*d.weight(&c) = 1
			}
		}
	}
	if c.ClockDrift >= 1 {
		panic(fmt.Sprintf("sim: Chaos.ClockDrift is %v; it must be less than 1, since no clock stands still", c.ClockDrift))
	}
	if c.ClockOffset <= 0 && c.ClockDrift <= 0 {
		c.BadClocks = 0
	}
	if c.Worst == (LinkConfig{}) {
		c.Worst = worstLink
	}
	n.c = c
	if c.Until > 0 {
		n.at(c.Until, n.Stop)
	}
	if s.replays {
		for _, f := range s.replay {
			if f.Nemesis == n.number {
				n.at(f.At, func() { n.begin(f) })
			}
		}
		return n
	}
	n.swarm()
	if n.c.BadClocks > 0 {
		for _, h := range c.Hosts {
			f := n.wrongClock(h)
			f.Nemesis, f.At = n.number, s.Now()
			n.at(f.At, func() { n.begin(f) })
		}
	}
	n.wait()
	return n
}

// draw is how the faults of one of the weights of Chaos are drawn.
type draw struct {
	weight func(c *Chaos) *int
	faults func(n *Nemesis) []Fault // none: it is not possible now
	usual  bool                     // on if all weights are zero
}

var draws = [...]draw{
	{func(c *Chaos) *int { return &c.Crashes }, (*Nemesis).crash, true},
	{func(c *Chaos) *int { return &c.Pauses }, (*Nemesis).pause, true},
	{func(c *Chaos) *int { return &c.Partitions }, (*Nemesis).partition, true},
	{func(c *Chaos) *int { return &c.OneWay }, (*Nemesis).oneWay, true},
	{func(c *Chaos) *int { return &c.BadLinks }, (*Nemesis).badLink, true},
	{func(c *Chaos) *int { return &c.BadClocks }, (*Nemesis).badClock, true},
	{func(c *Chaos) *int { return &c.BadDisks }, (*Nemesis).badDisk, false},
}

// swarm draws which kinds of faults are on in this run, and how often faults come. Some failures
// need many faults of one kind, or that another kind does not disturb.
func (n *Nemesis) swarm() {
	var weights []*int
	for _, d := range draws {
		if w := d.weight(&n.c); *w > 0 {
			weights = append(weights, w)
		}
	}
	if len(weights) > 0 {
		always := n.random.IntN(len(weights))
		for i, w := range weights {
			if n.random.IntN(2) == 0 && i != always {
				*w = 0
			}
		}
	}
	n.interval = n.c.Interval << n.random.IntN(3)
}

// Stop ends all faults, and causes no more.
func (n *Nemesis) Stop() {
	n.over = true
	for len(n.active) > 0 {
		n.end(n.active[0])
	}
}

// Done reports whether the chaos has ended. It serves as a condition for RunUntil.
func (n *Nemesis) Done() bool { return n.over }

// Counts returns the number of faults so far, by kind.
func (n *Nemesis) Counts() map[FaultKind]int { return maps.Clone(n.counts) }

// at calls f at that time, before all else that happens then. It draws no number that others would draw
// otherwise, so that a run without a fault is the same until the fault begins.
func (n *Nemesis) at(at time.Duration, f func()) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	n.events++
	n.s.push(max(at, n.s.elapsed()), uint64(n.number)<<32|n.events, event{kind: eventFault, call: f})
}

// wait waits for the next fault.
func (n *Nemesis) wait() {
	n.at(n.s.Now()+n.upTo(2*n.interval), func() {
		if n.over {
			return
		}
		n.act()
		n.wait()
	})
}

// upTo draws a time up to d, but not zero.
func (n *Nemesis) upTo(d time.Duration) time.Duration {
	return 1 + time.Duration(n.random.Int64N(int64(d)))
}

// act causes a fault, of a kind that is possible now. Two of them if it is a bad link in both directions.
func (n *Nemesis) act() {
	var weights [len(draws)]int
	for i, d := range draws {
		weights[i] = max(*d.weight(&n.c), 0)
	}
	for {
		total := 0
		for _, w := range weights {
			total += w
		}
		if total == 0 {
			return
		}
		x, i := n.random.IntN(total), 0
		for ; x >= weights[i]; i++ {
			x -= weights[i]
		}
		faults := draws[i].faults(n)
		if len(faults) == 0 {
			weights[i] = 0
			continue
		}
		lasts := n.upTo(n.c.Longest)
		for _, f := range faults {
			f.Nemesis, f.At, f.For = n.number, n.s.Now(), lasts
			n.begin(f)
		}
		return
	}
}

// begin causes a fault, if it is possible now and the chaos has not ended.
func (n *Nemesis) begin(drawn Fault) {
	f := &fault{Fault: drawn}
	if n.over {
		return
	}
	if n.s.replays && !n.fits(&drawn) || !n.cause(f) {
		n.log("leaves out, since it is not possible now: %s", f.what())
		return
	}
	n.counts[f.Kind]++
	n.active = append(n.active, f)
	n.s.schedule = append(n.s.schedule, drawn)
	n.log("begins: %s", f.what())
	if f.For > 0 {
		n.at(n.s.Now()+f.For, func() { n.end(f) })
	}
}

// end ends a fault, if it has not ended.
func (n *Nemesis) end(f *fault) {
	i := slices.Index(n.active, f)
	if i < 0 {
		return
	}
	n.active = slices.Delete(n.active, i, i+1)
	n.log("ends: %s", f.what())
	f.end()
}

func (n *Nemesis) log(format string, args ...any) {
	n.s.Helper()
	text := "nemesis " + fmt.Sprintf(format, args...)
	n.s.Logf("%v: %s", n.s.Now(), text)
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if log := n.s.trace.log; log != nil {
		_, _ = fmt.Fprintf(log, "%v %s\n", n.s.elapsed(), text)
	}
}

// cause makes a fault happen, and reports whether it can.
func (n *Nemesis) cause(f *fault) bool {
	hosts, rest := n.s.named(f.Hosts), n.s.named(f.Rest)
	if len(hosts) == 0 {
		return false
	}
	if kinds[f.Kind].down {
		f.hosts = hosts
	}
	f.end = kinds[f.Kind].cause(n, f, hosts, rest)
	return f.end != nil
}

// named returns those hosts that exist.
func (s *Sim) named(names []string) (hosts []*Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if i := slices.IndexFunc(s.hosts, func(h *Host) bool { return h.name == name }); i >= 0 {
			hosts = append(hosts, s.hosts[i])
		}
	}
	return hosts
}

// up returns the hosts that are not down, in an order of chance, and how many of them may become
// so.
func (n *Nemesis) up() (hosts []*Host, room int) {
	hosts = slices.DeleteFunc(slices.Clone(n.c.Hosts), func(h *Host) bool {
		return h.stands() || slices.ContainsFunc(n.active, func(f *fault) bool { return slices.Contains(f.hosts, h) })
	})
	room = n.c.MaxDown - (len(n.c.Hosts) - len(hosts))
	n.random.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	return hosts, room
}

// fits reports whether a fault that is replayed keeps to MaxDown.
func (n *Nemesis) fits(f *Fault) bool {
	if !kinds[f.Kind].down {
		return true
	}
	up, room := n.up()
	for _, h := range n.s.named(f.Hosts) {
		if slices.Contains(n.c.Hosts, h) {
			if !slices.Contains(up, h) {
				return false
			}
			room--
		}
	}
	return room >= 0
}

// stands reports whether the host is crashed or paused.
func (h *Host) stands() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.down || len(h.pauses) > 0
}

func (n *Nemesis) crash() []Fault {
	hosts, room := n.up()
	i := slices.IndexFunc(hosts, (*Host).busy)
	if room <= 0 || i < 0 {
		return nil
	}
	return []Fault{{Kind: Crash, Hosts: names(hosts[i])}}
}

func (n *Nemesis) pause() []Fault {
	hosts, room := n.up()
	if room <= 0 || len(hosts) == 0 {
		return nil
	}
	return []Fault{{Kind: Pause, Hosts: names(hosts[0])}}
}

func (n *Nemesis) partition() []Fault { return n.divide(Partition) }

func (n *Nemesis) oneWay() []Fault {
	if n.random.IntN(2) == 0 {
		return n.divide(OneWayIn)
	}
	return n.divide(OneWayOut)
}

// divide draws two sides: a group of hosts that may become down, and the rest. A host that is not
// among Chaos.Hosts is on either side, but does not count.
func (n *Nemesis) divide(k FaultKind) []Fault {
	up, room := n.up()
	if room <= 0 || len(up) == 0 {
		return nil
	}
	group, rest := up[:1+n.random.IntN(min(room, max(len(up)/2, 1)))], []*Host(nil)
	for _, h := range n.s.allHosts() {
		switch {
		case slices.Contains(group, h):
		case slices.Contains(n.c.Hosts, h) || len(rest) == 0 || n.random.IntN(2) == 0:
			rest = append(rest, h)
		default:
			group = append(group[:len(group):len(group)], h)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return []Fault{{Kind: k, Hosts: names(group...), Rest: names(rest...)}}
}

func (s *Sim) allHosts() []*Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.hosts)
}

// pairs appends each pair of a host and another.
func pairs(from, to []*Host, list [][2]*Host) [][2]*Host {
	for _, a := range from {
		for _, b := range to {
			list = append(list, [2]*Host{a, b})
		}
	}
	return list
}

// cut cuts pairs of hosts, and returns how to undo that.
func (n *Nemesis) cut(f *fault, list [][2]*Host) (end func()) {
	s := n.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range list {
		s.topology.cut(p[0].node, p[1].node, f)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range list {
			s.topology.heal(p[0].node, p[1].node, f)
		}
	}
}

// badLink draws a worse link, and sometimes one back too.
func (n *Nemesis) badLink() (list []Fault) {
	hosts := n.s.allHosts()
	if len(hosts) < 2 {
		return nil
	}
	from := n.c.Hosts[n.random.IntN(len(n.c.Hosts))]
	to := hosts[n.random.IntN(len(hosts)-1)]
	if to == from {
		to = hosts[len(hosts)-1]
	}
	if n.random.IntN(2) == 0 {
		from, to = to, from
	}
	both := n.random.IntN(2) == 0
	for _, way := range [][2]*Host{{from, to}, {to, from}} {
		if l := n.s.goodLink(way[0], way[1]); l != nil {
			list = append(list, Fault{Kind: BadLink, Hosts: names(way[0]), Rest: names(way[1]), Link: n.worse(l.Config())})
		}
		if !both {
			break
		}
	}
	return list
}

// badClock draws a clock that goes wrong for a while.
func (n *Nemesis) badClock() []Fault {
	return []Fault{n.wrongClock(n.c.Hosts[n.random.IntN(len(n.c.Hosts))])}
}

func (n *Nemesis) badDisk() []Fault {
	return []Fault{{Kind: BadDisk, Hosts: names(n.c.Hosts[n.random.IntN(len(n.c.Hosts))])}}
}

func (n *Nemesis) wrongClock(h *Host) Fault {
	offset := time.Duration((2*n.random.Float64() - 1) * float64(n.c.ClockOffset))
	return Fault{Kind: BadClock, Hosts: names(h), Offset: offset, Drift: (2*n.random.Float64() - 1) * n.c.ClockDrift}
}

// goodLink returns the link by which a host sends to another, unless there is none or it is bad already.
func (s *Sim) goodLink(from, to *Host) *Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	route := s.topology.route(from.node, to.node)
	if len(route) == 0 || route[0].bad {
		return nil
	}
	return route[0]
}

// worsen makes the link by which a host sends to another worse, and returns how to undo that; nil if it cannot.
func (n *Nemesis) worsen(f *fault, from, to []*Host) (end func()) {
	if len(to) == 0 {
		return nil
	}
	l := n.s.goodLink(from[0], to[0])
	if l == nil {
		return nil
	}
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	good := l.fabric.Config
	l.fabric.Config, l.bad = f.Link, true
	return func() {
		n.s.mu.Lock()
		defer n.s.mu.Unlock()
		l.bad = false
		if l.fabric.Config == f.Link {
			l.fabric.Config = good
		}
	}
}

// worse draws a configuration that is worse than a good one in at least one way.
func (n *Nemesis) worse(c LinkConfig) LinkConfig {
	good, w := c, n.c.Worst
	for range 100 {
		probability := func(p *float64, worst float64) {
			if n.random.IntN(2) == 0 && worst > *p {
				*p += (worst - *p) * n.random.Float64()
			}
		}
		delay := func(d *time.Duration, worst time.Duration) {
			if n.random.IntN(2) == 0 && worst > *d {
				*d += n.upTo(worst - *d)
			}
		}
		delay(&c.Latency, w.Latency)
		delay(&c.Jitter, w.Jitter)
		probability(&c.Loss, w.Loss)
		probability(&c.Duplicate, w.Duplicate)
		probability(&c.Corrupt, w.Corrupt)
		probability(&c.Reorder, w.Reorder)
		if c.Reorder != good.Reorder {
			c.ReorderDelay = w.ReorderDelay
		}
		if rate := w.Rate + n.random.Int64N(9*w.Rate+1); n.random.IntN(2) == 0 && w.Rate > 0 && (c.Rate == 0 || rate < c.Rate) {
			c.Rate, c.Queue, c.Mark = rate, w.Queue, w.Mark
		}
		if c != good {
			break
		}
	}
	return c
}

func names(hosts ...*Host) (list []string) {
	for _, h := range hosts {
		list = append(list, h.name)
	}
	return list
}

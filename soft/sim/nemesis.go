package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Chaos says which faults a [Nemesis] causes, how often, and how many at a time.
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
	// Interval is the mean time from one fault to the next. Zero: a second.
	Interval time.Duration
	// Longest is how long a fault lasts at most. Zero: three times Interval.
	Longest time.Duration
	// MaxDown is how many of Hosts are crashed, paused, or cut off by a partition at a time.
	// Hosts that the test crashes or pauses count too. Zero: a minority, but at least one.
	MaxDown int

	// How often each kind of fault is drawn, in proportion to the others. All zero: equally often.

	Crashes    int // of a host whose program runs; it restarts when the fault ends
	Pauses     int // of a host
	Partitions int // some of Hosts can neither send to nor receive from the rest
	OneWay     int // some of Hosts cannot send to the rest, or not receive from it
	BadLinks   int // between one of Hosts and any other host, in one direction or both

	// Worst is how bad links become: a bad link gets some of the properties that are set here,
	// each up to this value. A rate is at least this one. Zero: 20 ms of latency and of jitter,
	// 1 MB/s with a queue of 64 KiB, and probabilities of 0.3 to lose and to reorder a packet,
	// and of 0.1 to duplicate and to corrupt it. MTU is ignored.
	Worst LinkConfig
}

// NemesisCounts counts the faults that a [Nemesis] has caused, by kind.
type NemesisCounts struct {
	Crashes    int // of hosts
	Pauses     int // of hosts
	Partitions int // in both directions
	OneWay     int // partitions in one direction
	BadLinks   int // links, or pairs of links, that became worse
}

// Nemesis causes faults that the seed draws, and ends each of them after a while.
type Nemesis struct {
	s      *Sim
	c      Chaos
	random *rand.Rand
	active []*fault
	bad    []*Link // that a fault has made worse
	counts NemesisCounts
	over   bool
}

// fault is a fault that has not ended.
type fault struct {
	what  string
	hosts []*Host // that count as down
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

var worstLink = LinkConfig{
	Latency: 20 * time.Millisecond, Jitter: 20 * time.Millisecond, Rate: 1e6, Queue: 64 << 10,
	Loss: 0.3, Reorder: 0.3, Duplicate: 0.1, Corrupt: 0.1,
}

// Nemesis begins to cause faults. When it ends, by itself or by Stop, it leaves the network and
// the hosts as it found them: links as before, no pair of hosts cut, and crashed hosts started
// again, so that a test can demand progress then. It logs each fault to the test, which prints
// it if the test fails or is verbose, and to the log of -sim.log. What the test does itself,
// before or meanwhile, outlives the chaos: pairs cut, hosts crashed or paused, links changed.
// Several can run at a time, but do not know each other's limits but MaxDown.
func (s *Sim) Nemesis(c Chaos) *Nemesis {
	s.mu.Lock()
	if len(c.Hosts) == 0 {
		c.Hosts = slices.Clone(s.hosts)
	}
	s.nemeses++
	random := rand.New(rand.NewPCG(s.seed, s.nemeses<<8|3))
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
	if c.Crashes == 0 && c.Pauses == 0 && c.Partitions == 0 && c.OneWay == 0 && c.BadLinks == 0 {
		c.Crashes, c.Pauses, c.Partitions, c.OneWay, c.BadLinks = 1, 1, 1, 1, 1
	}
	if c.Worst == (LinkConfig{}) {
		c.Worst = worstLink
	}
	n := &Nemesis{s: s, c: c, random: random}
	if c.Until > 0 {
		s.At(c.Until, n.Stop)
	}
	n.wait()
	return n
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

// Counts returns the number of faults so far.
func (n *Nemesis) Counts() NemesisCounts { return n.counts }

// wait waits for the next fault.
func (n *Nemesis) wait() {
	n.s.After(n.upTo(2*n.c.Interval), func() {
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

// act causes a fault, of a kind that is possible now.
func (n *Nemesis) act() {
	kinds := []struct {
		weight int
		draw   func() *fault
		count  *int
	}{
		{n.c.Crashes, n.crash, &n.counts.Crashes},
		{n.c.Pauses, n.pause, &n.counts.Pauses},
		{n.c.Partitions, n.partition, &n.counts.Partitions},
		{n.c.OneWay, n.oneWay, &n.counts.OneWay},
		{n.c.BadLinks, n.badLink, &n.counts.BadLinks},
	}
	for {
		total := 0
		for _, k := range kinds {
			total += max(k.weight, 0)
		}
		if total == 0 {
			return
		}
		x, i := n.random.IntN(total), 0
		for ; x >= max(kinds[i].weight, 0); i++ {
			x -= max(kinds[i].weight, 0)
		}
		f := kinds[i].draw()
		if f == nil {
			kinds[i].weight = 0
			continue
		}
		*kinds[i].count++
		n.active = append(n.active, f)
		n.log("begins: %s", f.what)
		n.s.After(n.upTo(n.c.Longest), func() { n.end(f) })
		return
	}
}

// end ends a fault, if it has not ended.
func (n *Nemesis) end(f *fault) {
	i := slices.Index(n.active, f)
	if i < 0 {
		return
	}
	n.active = slices.Delete(n.active, i, i+1)
	n.log("ends: %s", f.what)
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

// stands reports whether the host is crashed or paused.
func (h *Host) stands() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.down || len(h.pauses) > 0
}

func (n *Nemesis) crash() *fault {
	hosts, room := n.up()
	i := slices.IndexFunc(hosts, (*Host).busy)
	if room <= 0 || i < 0 {
		return nil
	}
	h := hosts[i]
	f := &fault{what: "host " + h.name + " crashes", hosts: hosts[i : i+1]}
	f.end = func() { h.endCrash(f) }
	h.crash(f)
	return f
}

func (n *Nemesis) pause() *fault {
	hosts, room := n.up()
	if room <= 0 || len(hosts) == 0 {
		return nil
	}
	h := hosts[0]
	f := &fault{what: "host " + h.name + " pauses", hosts: hosts[:1]}
	f.end = func() { h.endPause(f) }
	h.pause(f)
	return f
}

func (n *Nemesis) partition() *fault {
	group, rest := n.divide()
	if len(group) == 0 || len(rest) == 0 {
		return nil
	}
	f := n.cut(pairs(group, rest, pairs(rest, group, nil)))
	f.what, f.hosts = names(group)+" and "+names(rest)+" are parted", group
	return f
}

func (n *Nemesis) oneWay() *fault {
	group, rest := n.divide()
	if len(group) == 0 || len(rest) == 0 {
		return nil
	}
	from, to := group, rest
	if n.random.IntN(2) == 0 {
		from, to = rest, group
	}
	f := n.cut(pairs(from, to, nil))
	f.what, f.hosts = "nothing gets from "+names(from)+" to "+names(to), group
	return f
}

// divide draws two sides: a group of hosts that may become down, and the rest. A host that is not
// among Chaos.Hosts is on either side, but does not count.
func (n *Nemesis) divide() (group, rest []*Host) {
	up, room := n.up()
	if room <= 0 || len(up) == 0 {
		return nil, nil
	}
	group = up[:1+n.random.IntN(min(room, max(len(up)/2, 1)))]
	for _, h := range n.s.allHosts() {
		switch {
		case slices.Contains(group, h):
		case slices.Contains(n.c.Hosts, h) || len(rest) == 0 || n.random.IntN(2) == 0:
			rest = append(rest, h)
		default:
			group = append(group[:len(group):len(group)], h)
		}
	}
	return group, rest
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

// cut cuts pairs of hosts.
func (n *Nemesis) cut(list [][2]*Host) *fault {
	s, f := n.s, &fault{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range list {
		s.topology.cut(p[0].node, p[1].node, f)
	}
	f.end = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range list {
			s.topology.heal(p[0].node, p[1].node, f)
		}
	}
	return f
}

// badLink makes a link worse, and sometimes the one back too.
func (n *Nemesis) badLink() *fault {
	s := n.s
	hosts := s.allHosts()
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
	f := &fault{}
	worsened := n.worsen(from, to, f)
	if n.random.IntN(2) == 0 {
		worsened = n.worsen(to, from, f) || worsened
	}
	if !worsened {
		return nil
	}
	return f
}

// worsen makes the link by which a host sends to another worse, unless it is bad already.
func (n *Nemesis) worsen(from, to *Host, f *fault) bool {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	route := n.s.topology.route(from.node, to.node)
	if len(route) == 0 || slices.Contains(n.bad, route[0]) {
		return false
	}
	l := route[0]
	good := l.fabric.Config
	bad := n.worse(good)
	l.fabric.Config = bad
	n.bad = append(n.bad, l)
	if f.what != "" {
		f.what += ", and "
	}
	f.what += fmt.Sprintf("the link from %v is bad: %s", l, describeLink(bad, good))
	before := f.end
	f.end = func() {
		if before != nil {
			before()
		}
		n.s.mu.Lock()
		defer n.s.mu.Unlock()
		n.bad = slices.DeleteFunc(n.bad, func(b *Link) bool { return b == l })
		if l.fabric.Config == bad {
			l.fabric.Config = good
		}
	}
	return true
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

// describeLink names the properties in which a link is worse.
func describeLink(bad, good LinkConfig) string {
	var list []string
	add := func(differs bool, format string, args ...any) {
		if differs {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(bad.Latency != good.Latency, "latency %v", bad.Latency)
	add(bad.Jitter != good.Jitter, "jitter %v", bad.Jitter)
	add(bad.Rate != good.Rate, "rate %d B/s", bad.Rate)
	add(bad.Loss != good.Loss, "loss %.3f", bad.Loss)
	add(bad.Duplicate != good.Duplicate, "duplicates %.3f", bad.Duplicate)
	add(bad.Reorder != good.Reorder, "reordering %.3f", bad.Reorder)
	add(bad.Corrupt != good.Corrupt, "corruption %.3f", bad.Corrupt)
	return strings.Join(list, ", ")
}

func names(hosts []*Host) string {
	var list []string
	for _, h := range hosts {
		list = append(list, h.name)
	}
	return strings.Join(list, ", ")
}

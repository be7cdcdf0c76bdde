package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench/internal/stats"
	"github.com/verbena-rdma/verbena/soft/sim"
)

// link returns the link from a switch to a host, and from a host to a switch: there packets
// wait in memory, however many they are.
func (o options) link() (fromSwitch, toSwitch sim.LinkConfig) {
	c := sim.LinkConfig{Latency: o.latency, Rate: int64(o.rate * 1e9 / 8), Queue: o.queue << 10, Mark: o.mark << 10}
	toSwitch = c
	toSwitch.Queue, toSwitch.Mark = 0, 0
	return c, toSwitch
}

// star adds hosts around a switch.
func (o options) star(s *sim.Sim, n int, congestionControl bool) ([]*sim.Host, *sim.Switch) {
	fromSwitch, toSwitch := o.link()
	w := s.Switch("switch")
	hosts := make([]*sim.Host, n)
	for i := range hosts {
		hosts[i] = s.AddHost(sim.HostConfig{Name: fmt.Sprint("h", i), CongestionControl: congestionControl})
		s.Connect(hosts[i], w, toSwitch)
		s.Link(w, hosts[i]).Set(fromSwitch)
	}
	return hosts, w
}

func (o options) describeLink() string {
	return fmt.Sprintf("links of %v Gbit/s, latency %v, queues of the switch %d KiB, marks from %d KiB", o.rate, o.latency, o.queue, o.mark)
}

// traffic is the result of a measurement with many senders.
type traffic struct {
	share     float64 // goodput, of the link
	fairness  float64
	starved   int // connections that completed nothing
	latencies []time.Duration
	link      sim.LinkCounts // to the receiver, in the measured time
	counters  map[string]uint64
	failed    int
}

func measureIncast(o options) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "Writes of %d KiB to one host, one at a time by each sender; %s; %v after a warm-up of %v.\n\n", o.size, o.describeLink(), o.time, o.warmUp)
	b.WriteString("| senders | congestion control | goodput | fairness | starved | p50, p99, p99.9 | dropped | marked | repeated | time-outs | failed |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, n := range o.senders {
		for _, control := range []bool{false, true} {
			r, err := incast(o, n, control)
			if err != nil {
				return b.String(), fmt.Errorf("%d senders: %w", n, err)
			}
			fmt.Fprintf(&b, "| %d | %s | %.3f | %.3f | %d | %s | %d | %d | %d | %d | %d |\n", n, onOff(control), r.share, r.fairness, r.starved, tail(r.latencies),
				r.link.Overflowed, r.link.Marked, r.counters["completer_retry_err"], r.counters["completer_retry_err"]-min(r.counters["rcvd_seq_err"], r.counters["completer_retry_err"]), r.failed)
		}
	}
	return b.String(), nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// incast lets n hosts write to another one.
func incast(o options, n int, control bool) (r traffic, err error) {
	err = sim.Simulate(o.seed, func(s *sim.Sim) {
		hosts, w := o.star(s, n+1, control)
		g := newCluster(s, hosts)
		g.size, g.window = o.size<<10, o.window
		for i := range n {
			g.connect(i+1, 0, 1)
		}
		g.open()
		g.dial(10 * time.Minute)
		g.from = s.Now() + o.warmUp
		g.until = g.from + o.time
		g.begin()
		s.Run(o.warmUp)
		sums, err := counters(hosts)
		if err != nil {
			s.Fatal(err)
		}
		link := s.Link(w, hosts[0]).Counts()
		s.Run(o.time)
		r = traffic{latencies: g.latencies, link: since(link, s.Link(w, hosts[0]).Counts()), failed: len(g.failures)}
		if r.counters, err = counters(hosts); err != nil {
			s.Fatal(err)
		}
		for name, was := range sums {
			r.counters[name] -= was
		}
		r.share, r.fairness, r.starved = shares(g.bytes, o.time, o.rate)
	})
	return r, err
}

// since returns what a link has counted after before.
func since(before, c sim.LinkCounts) sim.LinkCounts {
	c.Sent -= before.Sent
	c.Bytes -= before.Bytes
	c.Overflowed -= before.Overflowed
	c.Marked -= before.Marked
	return c
}

// shares returns the part of a link that data takes, Jain's index, and the number of
// connections that moved nothing.
func shares(bytes []int, d time.Duration, gigabits float64) (share, fairness float64, starved int) {
	total, each := 0, make([]float64, len(bytes))
	for i, b := range bytes {
		total += b
		each[i] = float64(b)
		if b == 0 {
			starved++
		}
	}
	fairness, _ = stats.Fairness(each)
	return float64(total) * 8 / d.Seconds() / (gigabits * 1e9), fairness, starved
}

// tail describes the distribution of latencies.
func tail(list []time.Duration) string {
	if len(list) == 0 {
		return "–"
	}
	slices.Sort(list)
	at := func(q float64) time.Duration { return rounded(list[min(int(q*float64(len(list))), len(list)-1)]) }
	return fmt.Sprintf("%v, %v, %v", at(0.5), at(0.99), at(0.999))
}

// rounded returns a time with three digits.
func rounded(d time.Duration) time.Duration {
	for unit := time.Nanosecond; ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}

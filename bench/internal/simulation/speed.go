package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/internal/processor"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/test/footprint"
)

// speedCase is a row of the table of speeds: hosts in a ring, each with connections to the
// next one; or, with two hosts, from the first to the second only.
type speedCase struct {
	hosts       int
	connections int           // of each host
	idle        time.Duration // without connections
}

func (c speedCase) String() string {
	if c.connections == 0 {
		return fmt.Sprintf("nothing, for %v", c.idle)
	}
	return "writes"
}

// speeds are the results of a case.
type speeds struct {
	simulated, used  time.Duration
	events, packets  uint64
	perHost, perConn int64 // bytes of the heap; of both ends of a connection
	total            int   // connections
}

func (o options) speedCases() []speedCase {
	cases := []speedCase{
		{hosts: 2, connections: 1},
		{hosts: 2, connections: 2},
		{hosts: 2, connections: 256},
		{hosts: 16, connections: 1},
		{hosts: 256, connections: 1},
		{hosts: o.idleHosts, idle: o.idle},
	}
	if o.full {
		cases = append(cases,
			speedCase{hosts: 2, connections: 10000},
			speedCase{hosts: 4096, connections: 1},
			speedCase{hosts: 256, connections: 16},
		)
	}
	return cases
}

func measureSpeeds(o options) (string, error) {
	var b strings.Builder
	b.WriteString("| hosts | connections | traffic | simulated | processor time | simulated per processor time | events/s | packets/s | heap of a host | of a connection |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range o.speedCases() {
		r, err := measureSpeed(o, c)
		if err != nil {
			return b.String(), fmt.Errorf("%d hosts, %d connections of each: %w", c.hosts, c.connections, err)
		}
		used := max(r.used.Seconds(), 1e-6)
		conn := "–"
		if r.total > 0 {
			conn = fmt.Sprintf("%.1f KiB", float64(r.perConn)/1024)
		}
		fmt.Fprintf(&b, "| %d | %d | %v | %v | %.2f s | %s | %s | %s | %.1f KiB | %s |\n", c.hosts, r.total, c, r.simulated.Round(10*time.Microsecond), used,
			short(r.simulated.Seconds()/used), short(float64(r.events)/used), short(float64(r.packets)/used), float64(r.perHost)/1024, conn)
	}
	return b.String(), nil
}

// short returns a number with three digits.
func short(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.3g M", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%.3g k", x/1e3)
	}
	return fmt.Sprintf("%.3g", x)
}

func measureSpeed(o options, c speedCase) (r speeds, err error) {
	err = sim.Simulate(o.seed, func(s *sim.Sim) {
		before := footprint.Heap()
		hosts := s.Hosts("h", c.hosts)
		g := newCluster(s, hosts)
		g.limit = o.operations
		for i := range hosts {
			if i == 1 && c.hosts == 2 || c.connections == 0 {
				break
			}
			g.connect(i, (i+1)%c.hosts, c.connections)
		}
		g.limit = max(g.limit, 2*g.connections())
		r.total = g.connections()
		g.open()
		opened := footprint.Heap()
		r.perHost = int64(opened-before) / int64(c.hosts)
		if r.total > 0 {
			g.dial(time.Minute)
			r.perConn = (int64(footprint.Heap()) - int64(opened)) / int64(r.total)
		}
		simulated, events, packets, used := s.Now(), s.Events(), s.Packets(), processor.Time()
		if r.total == 0 {
			s.Run(c.idle)
		} else {
			g.begin()
			s.RunUntil(func() bool { return g.completed == g.limit || len(g.failures) > 0 }, time.Hour)
			g.check()
		}
		r.used, r.simulated = processor.Time()-used, s.Now()-simulated
		r.events, r.packets = s.Events()-events, s.Packets()-packets
	})
	return r, err
}

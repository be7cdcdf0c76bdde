package rdma

import (
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/verbs"
)

// Counters are the counters of a context: those of all its connections, or of its endpoint, since
// the context was made. What has ended still counts in the totals.
type Counters struct {
	QueuePairs  uint64 `gauge:"queue_pairs" help:"connections in any state, or the endpoint of datagrams"`
	Established uint64 `counter:"connections_established" help:"connections that have become Ready"`
	Failed      uint64 `counter:"connections_failed" help:"connections that have failed"`
	Ready       uint64 `gauge:"connections_ready" help:"connections that are Ready"`
	verbs.QPCounters
}

// Counters are the present counters. Any goroutine may call it. It takes as long as there are
// connections: a fraction of a microsecond for each. On adapters, whose queue pairs do not count,
// messages and bytes are those of requests and receives that have completed, and the rest is zero.
func (c *parts) Counters() Counters {
	sum, n := c.lanes.Counters()
	return Counters{QueuePairs: uint64(n), Established: c.established.Load(), Failed: c.failures.Load(), Ready: uint64(c.ready.Load()), QPCounters: sum}
}

// Counters are the present counters of the connection. Any goroutine may call it, also after the
// connection has ended. On adapters it has what the Counters of contexts have.
//
// Path is how packets travel now. The software device uses shared memory if the peer is a process
// of the same user and network namespace, and else the network.
func (conn *Connection) Counters() verbs.QPCounters { return conn.view().lane.Counters() }

// Metrics implements metrics.Source: the context and, if each is set, its connections.
func (c *parts) Metrics(each bool) iter.Seq[metrics.Object] {
	return func(yield func(metrics.Object) bool) {
		sum := metrics.Object{Kind: "context", Name: c.set.Name, Device: c.dev.Name(), State: c.State().String(), Counters: counters.Of(c.Counters())}
		if _, datagrams := c.queuePairs.(*Datagrams); datagrams { // which have no peer that could be silent
			sum.Counters = slices.DeleteFunc(sum.Counters, func(c verbs.Counter) bool { return c.Name == "silence" })
		}
		if !yield(sum) || !each {
			return
		}
		for _, l := range c.lanes.Lanes() {
			owner, ok := l.Owner().(*laneOwner)
			if !ok {
				continue
			}
			v := (*Connection)(owner).view()
			if v != nil && !yield(v.metrics(c, owner.id)) { // nil: the program does not know it yet
				return
			}
		}
	}
}

func (v *connectionView) metrics(c *parts, id uint64) metrics.Object {
	n := v.lane.Counters()
	return metrics.Object{
		Kind: "connection", Name: strconv.FormatUint(id, 10), Device: c.dev.Name(), State: v.state.String(), Path: n.Path.String(),
		Local: addrText(v.local), Peer: addrText(v.peer), Counters: counters.Of(n),
	}
}

// addrText is an address in text, or nothing.
func addrText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

package rsocket

import (
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/metrics"
	"github.com/verbena-rdma/verbena/verbs"
)

// Counters are the counters of a Stack, since it was made. Those of verbs.QPCounters are of all its
// connections, and what has ended still counts in the totals.
type Counters struct {
	Connections    uint64 `gauge:"connections" help:"connections that use resources, closed ones that still send included"`
	Accepted       uint64 `counter:"connections_accepted" help:"connections that peers have made"`
	Dialled        uint64 `counter:"connections_dialled" help:"connections that this program has made"`
	Refused        uint64 `counter:"connections_refused" help:"requests rejected: no connection left, too many that wait, or invalid private data"`
	ProtocolErrors uint64 `counter:"protocol_errors" help:"connections ended since the peer violated the protocol"`
	ReceiveMemory  uint64 `gauge:"receive_memory_bytes" unit:"bytes" help:"receive memory that connections hold: see Config.ReceiveMemory"`
	SendMemory     uint64 `gauge:"send_memory_bytes" unit:"bytes" help:"send memory that is allocated: see Config.SendMemory"`
	verbs.QPCounters
}

// ConnCounters are the counters of a connection. Those of verbs.QPCounters are of its queue pair, with
// the messages of the protocol: writes of data, and of 16 bytes for each receive buffer. On adapters,
// some are zero: see rdma.Connection.Counters.
type ConnCounters struct {
	Read    uint64 `counter:"read_bytes" unit:"bytes" help:"data that the program has read, and after Close what was dropped"`
	Written uint64 `counter:"written_bytes" unit:"bytes" help:"data that the program has written"`
	Unread  uint64 `gauge:"unread_bytes" unit:"bytes" help:"data that has arrived and was not read: ss calls it Recv-Q"`
	Unacked uint64 `gauge:"unacknowledged_bytes" unit:"bytes" help:"data written that the peer's device has not acknowledged: ss calls it Send-Q"`
	verbs.QPCounters
}

// Counters are the present counters. Any goroutine may call it, also after Close. It takes as long as
// there are connections: a fraction of a microsecond for each.
func (s *Stack) Counters() Counters {
	s.mu.Lock()
	connections := s.conns.Len()
	s.mu.Unlock()
	return Counters{
		Connections: uint64(connections),
		Accepted:    s.accepted.Load(), Dialled: s.dialled.Load(), Refused: s.refused.Load(), ProtocolErrors: s.protocolErrors.Load(),
		ReceiveMemory: uint64(s.memory.Held()), SendMemory: uint64(s.chunks.Held()), QPCounters: s.rdma.Counters().QPCounters,
	}
}

// Conns are the connections that use resources: those that are open, and those that the program has
// closed and whose data is still being sent.
func (s *Stack) Conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns.Values()
}

// Counters are the present counters, also after Close.
func (c *Conn) Counters() ConnCounters {
	c.mu.Lock()
	n := ConnCounters{Written: c.out.Total(), Unacked: uint64(c.out.Held())}
	n.Read, n.Unread = c.in.Consumed()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		n.QPCounters = conn.Counters()
	}
	return n
}

// state is what metrics call the state of the connection.
func (c *Conn) state() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failure != nil:
		return "failed"
	case c.closed:
		return "closing"
	case c.conn == nil:
		return "dialling"
	case c.writeClosed || c.readClosed:
		return "half closed"
	}
	return "established"
}

// connected reports whether the connection has addresses.
func (c *Conn) connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// Metrics implements metrics.Source: the stack and, if each is set, its connections.
func (s *Stack) Metrics(each bool) iter.Seq[metrics.Object] {
	return func(yield func(metrics.Object) bool) {
		name := s.cfg.Device.Name()
		if yield(metrics.Object{Kind: "stack", Name: name, Device: name, Counters: counters.Of(s.Counters())}) && each {
			s.streams(yield)
		}
	}
}

// streams goes through the connections, and reports whether yield wants more.
func (s *Stack) streams(yield func(metrics.Object) bool) bool {
	for _, c := range s.Conns() {
		n := c.Counters()
		o := metrics.Object{Kind: "stream", Device: s.cfg.Device.Name(), State: c.state(), Path: n.Path.String(), Counters: counters.Of(n)}
		if c.connected() {
			o.Local, o.Peer = c.LocalAddr().String(), c.RemoteAddr().String()
		}
		if !yield(o) {
			return false
		}
	}
	return true
}

// Stacks are the stacks that are open now, by their devices.
func (s *Stacks) Stacks() (list []*Stack) {
	devices, _ := s.counted.all()
	for _, d := range devices {
		list = append(list, d.open...)
	}
	return list
}

// DefaultMetrics has the counters of the stacks of Listen and Dial, as Stacks.Metrics has those of others.
func DefaultMetrics() metrics.Source { return source{defaults} }

// source is Stacks as a metrics.Source, and nothing else.
type source struct{ stacks *Stacks }

// Metrics implements metrics.Source.
func (s source) Metrics(each bool) iter.Seq[metrics.Object] { return s.stacks.Metrics(each) }

// Metrics implements metrics.Source: for each device that was used, the device while it is open, the
// sums of its stacks, and, if each is set, the connections. Closed stacks still count in the totals: of
// the 64 devices that were used last, and of all others together, as the device "former".
// The counters of a device of the software begin anew when it is opened again.
func (s *Stacks) Metrics(each bool) iter.Seq[metrics.Object] {
	return func(yield func(metrics.Object) bool) {
		devices, former := s.counted.all()
		for _, d := range devices {
			for _, stack := range d.open {
				one := stack.Counters()
				counters.Add(&d.closed, &one)
			}
			more := true
			if n := len(d.open); n > 0 {
				for o := range metrics.Device(d.open[n-1].Device()).Metrics(false) {
					more = yield(o)
				}
			}
			more = more && yield(metrics.Object{Kind: "stack", Name: d.device, Device: d.device, Counters: counters.Of(d.closed)})
			for i := 0; more && each && i < len(d.open); i++ {
				more = d.open[i].streams(yield)
			}
			if !more {
				return
			}
		}
		if former != (Counters{}) {
			yield(metrics.Object{Kind: "stack", Name: "former", Device: "former", Counters: counters.Of(former)})
		}
	}
}

// counted knows the stacks of a Stacks, by the names of their devices, and the totals of the closed ones.
type counted struct {
	mu      sync.Mutex
	entries map[string]*entry
	ended   uint64   // number of stacks that were closed
	former  Counters // the totals of devices that were forgotten
}

type entry struct {
	device string
	open   []*Stack // oldest first
	closed Counters // has no gauges
	last   uint64   // which one of all the last closed stack was
}

// maxUnused limits the devices without a stack that have totals of their own: a server at all addresses
// has a device for each interface that comes and goes.
const maxUnused = 64

// all returns the devices that were used, in order, and the totals of those that were forgotten.
func (t *counted) all() (list []entry, former Counters) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(t.entries)) {
		e := *t.entries[name]
		e.open = slices.Clone(e.open)
		list = append(list, e)
	}
	return list, t.former
}

// add adds a stack.
func (t *counted) add(device string, s *Stack) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries == nil {
		t.entries = make(map[string]*entry)
	}
	if t.entries[device] == nil {
		t.entries[device] = &entry{device: device}
	}
	e := t.entries[device]
	e.open = append(e.open, s)
}

// remove keeps the totals of a stack that is closed.
func (t *counted) remove(s *Stack) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		if at := slices.Index(e.open, s); at >= 0 {
			e.open = slices.Delete(e.open, at, at+1)
			last := s.Counters()
			counters.ClearGauges(&last)
			counters.Add(&e.closed, &last)
			t.ended++
			e.last = t.ended
		}
	}
	t.forget()
}

// forget adds the totals of the devices that were used longest ago to former.
func (t *counted) forget() {
	unused := 0
	var oldest *entry
	for _, e := range t.entries {
		if len(e.open) > 0 {
			continue
		}
		if unused++; oldest == nil || e.last < oldest.last {
			oldest = e
		}
	}
	if unused > maxUnused {
		counters.Add(&t.former, &oldest.closed)
		delete(t.entries, oldest.device)
	}
}

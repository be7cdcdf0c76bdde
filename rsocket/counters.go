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
	for _, name := range s.counted.devices() {
		stacks, _ := s.counted.of(name)
		list = append(list, stacks...)
	}
	return list
}

// Metrics has the counters of the stacks of Listen and Dial, as Stacks.Metrics has those of others.
func Metrics() metrics.Source { return source{defaults} }

// source is Stacks as a metrics.Source, and nothing else.
type source struct{ stacks *Stacks }

// Metrics implements metrics.Source.
func (s source) Metrics(each bool) iter.Seq[metrics.Object] { return s.stacks.Metrics(each) }

// Metrics implements metrics.Source: for each device that was used, the device while it is open, the
// sums of its stacks, and, if each is set, the connections. Closed stacks still count in the totals.
// The counters of a device of the software begin anew when it is opened again.
func (s *Stacks) Metrics(each bool) iter.Seq[metrics.Object] {
	return func(yield func(metrics.Object) bool) {
		for _, name := range s.counted.devices() {
			stacks, sum := s.counted.of(name)
			for _, stack := range stacks {
				one := stack.Counters()
				counters.Add(&sum, &one)
			}
			more := true
			if n := len(stacks); n > 0 {
				for o := range metrics.Device(stacks[n-1].Device()).Metrics(false) {
					more = yield(o)
				}
			}
			more = more && yield(metrics.Object{Kind: "stack", Name: name, Device: name, Counters: counters.Of(sum)})
			for i := 0; more && each && i < len(stacks); i++ {
				more = stacks[i].streams(yield)
			}
			if !more {
				return
			}
		}
	}
}

// counted knows the stacks of a Stacks, by the names of their devices, and the totals of the closed ones.
type counted struct {
	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	open   []*Stack // oldest first
	closed Counters // has no gauges
}

// devices are the names of all devices that were used.
func (t *counted) devices() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.entries))
}

// of returns the stacks of a device that are open, and the totals of the closed ones.
func (t *counted) of(device string) ([]*Stack, Counters) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[device]
	return slices.Clone(e.open), e.closed
}

// add adds a stack.
func (t *counted) add(device string, s *Stack) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries == nil {
		t.entries = make(map[string]*entry)
	}
	if t.entries[device] == nil {
		t.entries[device] = new(entry)
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
		}
	}
}

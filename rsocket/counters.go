package rsocket

import (
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
func (s *Stack) Metrics(each bool) []metrics.Object {
	name := s.cfg.Device.Name()
	list := []metrics.Object{{Kind: "stack", Name: name, Device: name, Counters: counters.Of(s.Counters())}}
	if !each {
		return list
	}
	for _, c := range s.Conns() {
		n := c.Counters()
		o := metrics.Object{Kind: "stream", Device: name, State: c.state(), Path: n.Path.String(), Counters: counters.Of(n)}
		if c.connected() {
			o.Local, o.Peer = c.LocalAddr().String(), c.RemoteAddr().String()
		}
		list = append(list, o)
	}
	return list
}

// Default has the stacks of the functions Listen and Dial. Its Close ends them for good.
func Default() *Stacks { return defaults }

// Stacks are the stacks that are open now.
func (s *Stacks) Stacks() []*Stack { return s.set.List() }

// Metrics implements metrics.Source: the stacks that are open now, their devices and, if each is set,
// their connections.
func (s *Stacks) Metrics(each bool) (list []metrics.Object) {
	for _, stack := range s.Stacks() {
		list = append(list, metrics.Device(stack.Device()).Metrics(false)...)
		list = append(list, stack.Metrics(each)...)
	}
	return list
}

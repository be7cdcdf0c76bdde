package rdma

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// lanes is the part of a context that posts requests and handles completions: its queue pairs
// with their requests, and the completion queue that they share.
type lanes struct {
	lane.Group
	core     *core
	receives *receives
	received func(*verbs.WC) // handles the completion of a receive
	failed   func(error)     // is called when the completion queue fails

	tasks int // tasks for send queues, of all pools
	cq    verbs.CQ
}

// fewTasks is the send queue size of a connection if the context has no pool yet.
const fewTasks = 16

// depth is the size of the send queues, which follows from the configuration and the pools.
func (l *lanes) depth() int {
	s := l.core.set
	if s.SendQueueSize != 0 {
		return s.SendQueueSize
	}
	return min(cmp.Or(l.tasks, fewTasks), defaultSendQueue, s.caps.MaxSends)
}

// open implements part: it makes the completion queue.
func (l *lanes) open() error {
	c, s := l.core, l.core.set
	// At most, all receives complete, one request of each connection, which its signal may be, and
	// all tasks: of later pools as many as there is room for.
	received := l.receives.most()
	requests := min(max(l.tasks, defaultSendQueue)+s.MaxConnections, s.maxCQE-received)
	if requests <= s.MaxConnections {
		advice := "make the pools of receives smaller"
		if l.receives.Each() > 0 {
			advice = "lower the number in ReceivePerConnection"
		}
		return fmt.Errorf("%w: %d receives and %d connections leave no room for tasks, since a completion queue of %s holds only %d entries; lower Config.MaxConnections, or %s",
			ErrRange, received, s.MaxConnections, c.dev.Name(), s.maxCQE, advice)
	}
	entries := received + requests
	poller := any(nil)
	if s.caps.connections() {
		poller = c.Engine()
	}
	var err error
	if l.cq, err = c.dev.CreateCQ(verbs.CQInit{Capacity: entries, Fields: s.completionFields, Poller: poller}); err != nil {
		return fmt.Errorf("create a completion queue of %d entries on %s: %w", entries, c.dev.Name(), err)
	}
	l.cq.OnCompletion(c.control.Wake)
	l.Attach(l.cq, requests-s.MaxConnections, l.received)
	if s.completionFields != 0 {
		l.Extend()
	}
	return nil
}

// work implements part.
func (l *lanes) work() int {
	l.postAll()
	return l.handleCompletions()
}

// busy implements part.
func (l *lanes) busy() bool { return l.HasWork() }

// arm asks for an event at the next completion, and reports whether there is none yet.
func (l *lanes) arm() bool {
	if l.Broken() {
		return true
	}
	armed, err := l.cq.Arm(false)
	if errors.Is(err, verbs.ErrNotSupported) {
		return false // a device without completion events, such as an old EFA, is polled
	}
	if err != nil {
		l.failed(err)
	}
	return armed
}

// end ends the lanes that the device has given back, and returns how many tasks and connections
// ended.
func (l *lanes) end() int {
	n := 0
	for d := l.Drained(); d != nil; d = l.Drained() {
		n += d.Owner().(laneDrainer).laneDrained()
	}
	return n
}

// laneDrainer is the owner of a lane in a context.
type laneDrainer interface {
	lane.Owner
	// laneDrained is called when the device has given back all requests of the lane. It returns
	// how many tasks have ended.
	laneDrained() int
}

// close implements part.
func (l *lanes) close() error {
	l.Release()
	if l.cq == nil {
		return nil
	}
	err := l.cq.Close()
	l.cq = nil
	return err
}

// postAll posts all waiting tasks that there is room for. Receives go first, so that a message
// which the peer sends in reply to a request finds one.
func (l *lanes) postAll() {
	if l.receives.Busy() {
		l.receives.post()
	}
	l.Post()
}

// handleCompletions polls the completion queue.
func (l *lanes) handleCompletions() int {
	n, err := l.Poll()
	if err != nil {
		l.failed(err)
	}
	return n
}

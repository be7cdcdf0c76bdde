package rdma

import (
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// events is the part of a context that takes the asynchronous events of its device.
type events struct {
	core   *core
	lanes  *lanes
	handle func(*verbs.Event) int // handles an event, and returns 1 if it concerned the context
	// taken is called as soon as an event is taken from the device, before it is handled.
	taken func(*verbs.Event)

	incoming    lane.Events
	deferred    fifo.Queue[deferredEvent]
	unsubscribe func()
}

// eventsLost is the type of an event that stands for others, which were dropped.
const eventsLost verbs.EventType = -1

// deferredEvent is an event that waits until all earlier completions have been handled.
// Completions name the exact failure, and an event that ends a connection would flush tasks
// whose completions have not been polled yet.
type deferredEvent struct {
	barrier uint64 // of the lanes
	event   verbs.Event
	call    func() // to be called in place of handling an event; nil: there is an event
}

// open implements part.
func (e *events) open() error {
	e.unsubscribe = e.core.dev.SubscribeEvents(e.eventCame)
	return nil
}

// eventCame queues an event, on the device's goroutine.
func (e *events) eventCame(ev verbs.Event) {
	e.incoming.Add(ev)
	e.core.wake()
}

// close implements part.
func (e *events) close() error {
	if e.unsubscribe != nil {
		e.unsubscribe()
		e.unsubscribe = nil
	}
	e.incoming.Clear()
	e.deferred.Clear()
	return nil
}

// busy implements part.
func (e *events) busy() bool { return e.incoming.Pending() || e.deferred.Len() > 0 }

// work implements part: it takes the events so far. They are handled later.
func (e *events) work() int {
	e.takeEvents()
	return 0
}

// takeEvents takes over the events so far from the device's goroutine.
func (e *events) takeEvents() {
	if !e.incoming.Pending() {
		return
	}
	list, lost := e.incoming.Take()
	if lost {
		list = append(list, verbs.Event{Type: eventsLost})
	}
	for _, ev := range list {
		if e.taken != nil {
			e.taken(&ev)
		}
		e.deferred.Push(deferredEvent{barrier: e.lanes.Barrier(), event: ev})
	}
}

// afterCompletions makes f be called when all earlier events and completions have been handled.
func (e *events) afterCompletions(f func()) {
	e.takeEvents()
	e.deferred.Push(deferredEvent{barrier: e.lanes.Barrier(), call: f})
}

// handleEventsOf handles the events so far that concern one queue pair, or all of them.
func (e *events) handleEventsOf(qpn uint32) {
	e.takeEvents()
	for range e.deferred.Len() {
		d := e.deferred.Pop()
		if d.call == nil && d.event.Type != eventsLost && (d.event.QPN == 0 || d.event.QPN == qpn) {
			e.handle(&d.event)
		} else {
			e.deferred.Push(d)
		}
	}
}

// dueEvents is the part of a context that handles the events that are due.
type dueEvents events

func (e *dueEvents) open() error  { return nil }
func (e *dueEvents) busy() bool   { return false } // events is
func (e *dueEvents) close() error { return nil }

// work implements part.
func (e *dueEvents) work() int {
	n := 0
	for e.deferred.Len() > 0 && e.lanes.Passed(e.deferred.Front().barrier) {
		if d := e.deferred.Pop(); d.call != nil {
			d.call()
			n++
		} else {
			n += e.handle(&d.event)
		}
	}
	if n > 0 {
		n += e.lanes.handleCompletions() // tasks of connections that have ended come back at once
	}
	return n
}

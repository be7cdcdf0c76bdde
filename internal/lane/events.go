package lane

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/verbs"
)

// maxEvents bounds the queued events, because peers can cause them at any rate.
const maxEvents = 1024

// Events passes asynchronous events from the device's goroutine to the engine's. Its zero
// value is usable.
type Events struct {
	pending atomic.Bool
	mu      sync.Mutex
	list    []verbs.Event
	lost    bool // an event was dropped
}

// Add queues an event. If too many wait, it drops an event that concerns only one queue pair.
// It may be called on any goroutine.
func (e *Events) Add(ev verbs.Event) {
	e.mu.Lock()
	if len(e.list) < maxEvents || fatal(ev.Type) {
		e.list = append(e.list, ev)
	} else {
		e.lost = true
	}
	e.mu.Unlock()
	e.pending.Store(true)
}

// fatal reports whether an event ends everything that uses the device, or one of its queues.
// Peers cannot cause such events, and they are never dropped.
func fatal(t verbs.EventType) bool {
	return t == verbs.EventDeviceFatal || t == verbs.EventCQError || t == verbs.EventSRQError
}

// Pending reports whether there are events. It costs one atomic load.
func (e *Events) Pending() bool { return e.pending.Load() }

// Take returns and clears the queued events, and reports whether some were lost since the last
// call.
func (e *Events) Take() (list []verbs.Event, lost bool) {
	e.pending.Store(false)
	e.mu.Lock()
	defer e.mu.Unlock()
	list, lost = e.list, e.lost
	e.list, e.lost = nil, false
	return list, lost
}

// Clear drops the queued events.
func (e *Events) Clear() { e.Take() }

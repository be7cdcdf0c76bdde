//go:build linux && cgo && verbs

package main

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/internal/spin"
)

// eventWait is how threads wait for events of the completion queues of a context. While events
// come soon, one thread polls the device for a while before it sleeps, as pe.Engine.Run does.
type eventWait struct {
	began    time.Time    // times are relative to it
	polls    atomic.Bool  // the next thread that waits polls first
	arms     atomic.Int32 // since a thread last waited
	polling  sync.Mutex   // held by the thread that polls
	spinning spin.Spin    // guarded by polling

	mu sync.Mutex
	// awake is the queue armed last for a thread that polls. Progress for one queue of a context is
	// progress for all.
	awake cverbs.CQ
}

// maxArms is how many queues may be armed for the next thread that waits. Programs that arm more
// use the descriptor of the channel instead, so that no thread waits here.
const maxArms = 16

func newEventWait() eventWait { return eventWait{began: time.Now(), spinning: spin.New(0)} }

// arm arms a queue for its next completion.
func (w *eventWait) arm(cq cverbs.CQ, solicitedOnly bool) error {
	if w.polls.Load() && w.arms.Add(1) > maxArms {
		w.polls.Store(false)
	}
	if !w.polls.Load() {
		return cq.ArmNext(solicitedOnly)
	}
	err := cq.ArmAwake(solicitedOnly)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awake = cq
	return err
}

// poll polls the device while it is worth it, until the number of events differs from seen.
func (w *eventWait) poll(events *uint32, seen uint32) {
	w.arms.Store(0)
	if !w.polling.TryLock() {
		w.sleep() // the other thread may end at any time
		return
	}
	defer w.polling.Unlock()
	w.mu.Lock()
	cq := w.awake
	w.mu.Unlock()
	for cq == nil || cq.Progress(false) == nil {
		if atomic.LoadUint32(events) != seen {
			w.spinning.Found()
			return
		}
		if !w.spinning.KeepPolling(time.Since(w.began), false) {
			break
		}
		w.spinning.YieldThread()
	}
	w.sleep()
	if atomic.LoadUint32(events) != seen {
		w.spinning.Found()
		return
	}
	w.polls.Store(false) // until the thread wakes
}

// sleep leaves the progress to the device.
func (w *eventWait) sleep() {
	w.mu.Lock()
	cq := w.awake
	w.awake = nil
	w.mu.Unlock()
	if cq != nil {
		_ = cq.Progress(true) // it fails if the queue is closed, which has called sleep
	}
}

// woken is called when a thread has slept after poll.
func (w *eventWait) woken() {
	if w.polling.TryLock() {
		w.spinning.Woken(time.Since(w.began))
		w.polls.Store(w.spinning.Polls())
		w.polling.Unlock()
	}
}

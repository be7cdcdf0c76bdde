//go:build linux && cgo && verbs

package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/spin"
	"github.com/verbena-rdma/verbena/verbs"
)

// eventWait is how threads wait for events of the completion queues of a context. While events
// come soon, one thread polls the device for a while before it sleeps, as pe.Engine.Run does.
type eventWait struct {
	began    time.Time       // times are relative to it
	arms     atomic.Int32    // since a thread last waited
	polls    atomic.Bool     // the next thread that waits polls first
	polling  sync.Mutex      // held by the thread that polls
	spinning spin.Spin       // guarded by polling
	polled   []verbs.AwakeCQ // guarded by polling

	mu    sync.Mutex
	awake []verbs.AwakeCQ // armed for a thread that polls
}

// maxArms is how many queues may be armed for the next thread that waits. Programs that arm more
// use the descriptor of the channel instead, so that no thread waits here.
const maxArms = 16

func newEventWait() eventWait { return eventWait{began: time.Now(), spinning: spin.New(0)} }

// arm arms a queue for its next completion.
func (w *eventWait) arm(cq verbs.CQ, solicitedOnly bool) error {
	if !w.polls.Load() || w.arms.Add(1) > maxArms {
		return cq.(verbs.ArmNextCQ).ArmNext(solicitedOnly)
	}
	awake := cq.(verbs.AwakeCQ)
	w.mu.Lock()
	if !slices.Contains(w.awake, awake) {
		w.awake = append(w.awake, awake)
	}
	w.mu.Unlock()
	return awake.ArmAwake(solicitedOnly)
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
	w.polled = append(w.polled[:0], w.awake...)
	w.mu.Unlock()
	for w.progress() {
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
}

func (w *eventWait) progress() bool {
	for _, cq := range w.polled {
		if cq.Progress(false) != nil {
			return false
		}
	}
	return true
}

// sleep leaves the progress to the device.
func (w *eventWait) sleep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, cq := range w.awake {
		_ = cq.Progress(true) // it fails if the queue is closed
	}
	clear(w.awake)
	w.awake = w.awake[:0]
}

// woken is called when a thread has slept after poll.
func (w *eventWait) woken() {
	if w.polling.TryLock() {
		w.spinning.Woken(time.Since(w.began))
		w.polls.Store(w.spinning.Polls())
		w.polling.Unlock()
	}
}

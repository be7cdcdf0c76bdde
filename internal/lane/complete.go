package lane

import (
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Poll handles at most PollBudget completions and a few more, and returns the number handled.
// An error of the completion queue is returned once, after the completions that came with it
// have been handled; none come after it. If a callback panics, the next Poll goes on with the
// next completion.
func (g *Group) Poll() (n int, err error) {
	all := false
	g.empty = false
	for n < PollBudget {
		if g.next == g.count {
			if all || g.broken {
				break
			}
			g.fetch()
			// A batch that is not full held everything that was there, but callbacks may cause
			// more: only an empty batch means that the queue is empty.
			all, g.empty = g.count < len(g.wcs), g.count == 0
			if g.count == 0 {
				break
			}
		}
		n += g.complete(&g.wcs[g.next])
	}
	if g.next == g.count {
		err, g.failure = g.failure, nil
	}
	return n, err
}

// fetch takes a batch of completions off the completion queue.
func (g *Group) fetch() {
	g.next = 0
	if g.extended != nil {
		g.count, g.failure = g.extended.PollExtended(g.wcs[:], g.extras)
	} else {
		g.count, g.failure = g.cq.Poll(g.wcs[:])
	}
	g.fetched += uint64(g.count)
	g.broken = g.failure != nil
}

// complete handles one completion. It also stands for the earlier requests that were not
// signaled (IBTA 10.8.6), unless the queue pair completes requests in no order.
func (g *Group) complete(wc *verbs.WC) int {
	if wc.ID&ReceiveID != 0 || wc.Unsolicited {
		g.next++
		g.received(wc)
		return 1
	}
	r := g.requestOf(wc.ID)
	if r == nil {
		g.next++
		return 1
	}
	l, status, vendor := r.lane, wc.Status, wc.VendorError
	n := 1
	for !l.unordered && l.requests.Front().Value != r {
		earlier := l.popPosted()
		l.noteSent(&earlier.WR)
		earlier.owner.Completed(verbs.StatusSuccess, 0)
		n++
	}
	g.next++
	l.take(r)
	if status == verbs.StatusSuccess {
		l.noteSent(&r.WR)
	}
	l.returned()
	r.owner.Completed(status, vendor)
	return n
}

// requestOf is the request at the device that has the ID, or nil: completions of earlier uses
// of requests are ignored.
func (g *Group) requestOf(id uint64) *Request {
	i := id & indexMask
	if i >= uint64(len(g.requests)) {
		return nil
	}
	if r := g.requests[i]; r != nil && r.WR.ID == id && r.posted {
		return r
	}
	return nil
}

// popPosted removes the oldest posted request from the lane, which the device has given back.
func (l *Lane) popPosted() *Request {
	r := l.requests.Front().Value
	l.take(r)
	return r
}

// take removes a request from the lane, which the device has given back.
func (l *Lane) take(r *Request) {
	l.requests.Remove(&r.place)
	r.lane, r.posted = nil, false
	l.posted--
	l.group.posted--
}

// pop removes the first request from the lane, in the order in which they end, or returns nil.
// A posted request gets another ID.
func (l *Lane) pop() *Request {
	if l.posted > 0 {
		r := l.popPosted()
		r.ChangeID()
		r.kept = l.kept
		return r
	}
	e := l.requests.Pop()
	l.unposted = l.requests.Front()
	if e == nil {
		e = l.withheld.Pop()
	}
	if e == nil {
		return nil
	}
	e.Value.lane = nil
	return e.Value
}

// returned does the work that follows when the device has given back a request.
func (l *Lane) returned() {
	if !l.up && !l.atDevice() {
		l.group.pending.Remove(&l.pending)
	}
	switch {
	case !l.shut:
		l.queueForPosting()
	case !l.atDevice():
		l.drain()
	}
}

// drain puts the lane on the group's list of drained lanes, once.
func (l *Lane) drain() {
	if !l.drained {
		l.drained = true
		l.group.pending.Remove(&l.pending)
		l.group.drained.Push(&l.place)
	}
}

// Limit bounds the time that the device may take to give back the requests of a lane that was
// shut, or whose send queue it has flushed. When the time is over, wake is called on another
// goroutine; then call Drained. Without Limit there is no bound.
func (g *Group) Limit(d time.Duration, wake func()) { g.limit, g.wake = d, wake }

// Release stops the timer of Limit. No lane may be left.
func (g *Group) Release() {
	if g.timer != nil {
		g.timer.Stop()
	}
	g.timer = nil
	g.due.Store(false)
	for g.pending.Pop() != nil {
	}
}

// startTimeLimit starts the time limit of a lane for the device to give back its requests, if
// it has not started.
func (g *Group) startTimeLimit(l *Lane) {
	if g.limit <= 0 || l.pending.Queued() {
		return
	}
	l.giveUpAt = g.host.Now().Add(g.limit)
	g.pending.Push(&l.pending)
	if g.pending.Len() == 1 {
		g.startTimer(g.limit)
	}
}

func (g *Group) startTimer(d time.Duration) {
	if g.timer != nil {
		g.timer.Reset(d)
		return
	}
	g.timer = g.host.AfterFunc(d, func() {
		g.due.Store(true)
		g.wake()
	})
}

// expire gives up on the lanes whose time limit is over.
func (g *Group) expire() {
	for e := g.pending.Front(); e != nil; e = g.pending.Front() {
		if wait := e.Value.giveUpAt.Sub(g.host.Now()); wait > 0 {
			g.startTimer(wait)
			return
		}
		l := e.Value
		_ = l.Shut() // a lane that was only held
		l.drain()
	}
}

// Drained returns the first drained lane, or nil. A lane is drained when it was shut and the
// device has given back everything, or has failed to in time. Drained returns the lane until
// Lane.Flush has ended its requests, so that a panicking callback leaves none behind.
func (g *Group) Drained() *Lane {
	if g.due.Load() {
		g.due.Store(false)
		g.expire()
	}
	if e := g.drained.Front(); e != nil {
		return e.Value
	}
	return nil
}

// Fetch takes a batch of completions, which Poll then handles, and reports whether there are
// any. Use it for the last completions, when no queue pair is left.
func (g *Group) Fetch() bool {
	if g.next == g.count && !g.broken {
		g.fetch()
	}
	return g.next < g.count
}

// Flush completes every request of the lane as flushed, and returns their number. It settles
// the lane first; later completions of the device are ignored. When it is done, it takes the
// lane off the list of Group.Drained; after a callback that panicked it can be called again.
func (l *Lane) Flush() int {
	_ = l.Settle() // each request has the error
	n := 0
	for r := l.pop(); r != nil; r = l.pop() {
		n++
		r.owner.Completed(verbs.StatusFlushed, 0)
	}
	l.group.drained.Remove(&l.place)
	return n
}

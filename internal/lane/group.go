package lane

import (
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// PollBatch is how many completions are taken from the device at a time.
	PollBatch = 32
	// PostBatch is how many requests are given to the device at a time: as many small
	// messages as the software device sends together.
	PostBatch = 64
	// PollBudget bounds the completions handled in one call of Poll, so that the
	// engine gets on to other contexts.
	PollBudget = 4 * PollBatch
)

// ReceiveID marks the IDs of receives in a group's completion queue. The other 63
// bits are the owner's.
const ReceiveID = 1 << 63

// The ID of a send request is its index in the group's table, and a generation that
// distinguishes uses of the same index.
const (
	indexBits      = 32
	indexMask      = 1<<indexBits - 1
	generationMask = 1<<(63-indexBits) - 1
)

// Group is the lanes that share a completion queue. The zero value becomes usable
// with Attach.
type Group struct {
	cq       verbs.CQ
	received func(wc *verbs.WC)

	requests []*Request // by index; nil: free
	free     []uint64   // IDs for Add, with generations that no request had

	wcs     [PollBatch]verbs.WC
	next    int    // of wcs, to be handled
	count   int    // in wcs
	fetched uint64 // completions, ever
	empty   bool   // the completion queue was, when it was last polled
	broken  bool   // the completion queue has failed
	failure error  // of the completion queue, to be returned by Poll

	toPost  []*Lane // with requests that wait
	spare   []*Lane // the array that toPost had before
	drained fifo.List[*Lane]
	wrs     [PostBatch]verbs.SendWR
}

// Attach has the group use a completion queue. Completions whose ID has ReceiveID
// set go to received. No lane of an earlier completion queue may be in use.
func (g *Group) Attach(cq verbs.CQ, received func(wc *verbs.WC)) {
	g.cq, g.received = cq, received
	g.next, g.count, g.empty, g.broken, g.failure = 0, 0, false, false, nil
	g.toPost = g.toPost[:0]
	for g.drained.Pop() != nil {
	}
}

// Add gives a request its ID, which is the request's until Remove. The owner is
// called at the end of each of its uses.
func (g *Group) Add(r *Request, owner Completer) {
	r.owner = owner
	r.place.Value = r
	if n := len(g.free); n > 0 {
		r.WR.ID = g.free[n-1]
		g.free = g.free[:n-1]
		g.requests[r.WR.ID&indexMask] = r
	} else {
		r.WR.ID = uint64(len(g.requests))
		g.requests = append(g.requests, r)
	}
}

// Remove takes back the ID of a request that is on no lane. The next request with
// its index gets another generation, so that late completions of this one are
// ignored.
func (g *Group) Remove(r *Request) {
	r.Renew()
	g.requests[r.WR.ID&indexMask] = nil
	g.free = append(g.free, r.WR.ID)
}

// Flush posts all requests that wait, as far as there is room for them.
func (g *Group) Flush() {
	for len(g.toPost) > 0 {
		list := g.toPost
		g.toPost = g.spare[:0] // PostFailed may add to it
		for _, l := range list {
			l.listed = false
			l.post()
		}
		clear(list)
		g.spare = list[:0]
	}
}

// Poll handles completions, PollBudget and a few at most, and returns how many. An
// error of the completion queue is returned once, when the completions that came
// with it have been handled; there are none after it. After a callback that panicked,
// the next Poll goes on with the next completion.
func (g *Group) Poll() (n int, err error) {
	all := false
	g.empty = false
	for n < PollBudget {
		if g.next == g.count {
			if all || g.broken {
				break
			}
			g.fetch()
			// A batch that is not full has all that there were, but callbacks may
			// cause more: only a batch of none means that the queue is empty.
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
	g.count, g.failure = g.cq.Poll(g.wcs[:])
	g.fetched += uint64(g.count)
	g.broken = g.failure != nil
}

// Fetch takes a batch of completions, to be handled by Poll, and reports whether
// there are any. It is for the last ones, when no queue pair is left.
func (g *Group) Fetch() bool {
	if g.next == g.count && !g.broken {
		g.fetch()
	}
	return g.next < g.count
}

// complete handles one completion. That of a request stands also for those before
// it that were not signaled (IBTA 10.8.6).
func (g *Group) complete(wc *verbs.WC) int {
	if wc.ID&ReceiveID != 0 {
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
	for l.requests.Front().Value != r {
		l.popPosted().owner.Completed(verbs.StatusSuccess, 0)
		n++
	}
	g.next++
	l.popPosted()
	l.freed()
	r.owner.Completed(status, vendor)
	return n
}

// requestOf is the request at the device that has an ID, or nil: completions of
// earlier uses of requests are ignored.
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

// Empty reports whether the completion queue was empty when it was last polled, or has
// failed.
func (g *Group) Empty() bool { return g.empty || g.broken }

// Handled is the number of completions handled so far. A completion that is in the
// completion queue now has been handled when it has grown by the queue's capacity,
// and that of a batch: a queue under load may never be seen empty.
func (g *Group) Handled() uint64 { return g.fetched - uint64(g.count-g.next) }

// Broken reports whether the completion queue has failed.
func (g *Group) Broken() bool { return g.broken }

// Break has the group treat the completion queue as failed.
func (g *Group) Break() { g.broken = true }

// Busy reports whether there is work that no further completion will announce.
func (g *Group) Busy() bool {
	return g.next < g.count || len(g.toPost) > 0 || g.drained.Len() > 0 || g.failure != nil
}

// Drained returns the first of the lanes that were shut, and of which the device has
// nothing left, or nil. It is returned until Lane.Flush has ended its requests, so
// that a callback that panics leaves none behind.
func (g *Group) Drained() *Lane {
	if e := g.drained.Front(); e != nil {
		return e.Value
	}
	return nil
}

package lane

import "github.com/verbena-rdma/verbena/verbs"

const (
	// PollBatch is how many completions are taken at a time.
	PollBatch = 32
	// PostBatch is as many small messages as fit into one train of packets.
	PostBatch = 64
	// PollBudget bounds the completions of one pass of the engine.
	PollBudget = 4 * PollBatch
)

// ReceiveID marks the IDs of receives in a group's completion queue. The other 63
// bits are the owner's.
const ReceiveID = 1 << 63

// The ID of a send request is its index in the group's table, and a generation that
// tells an earlier use of the index apart.
const (
	indexBits      = 32
	indexMask      = 1<<indexBits - 1
	generationMask = 1<<(63-indexBits) - 1
)

// Group is the lanes that share a completion queue.
type Group struct {
	cq       verbs.CQ
	received func(wc *verbs.WC)

	requests []*Request // by index; nil: free
	free     []uint32

	wcs    [PollBatch]verbs.WC
	next   int // of wcs, to be handled
	count  int // in wcs
	empty  bool
	broken bool

	waiting []*Lane // with requests to be posted
	spare   []*Lane // the array that waiting had before
	drained []*Lane
	wrs     [PostBatch]verbs.SendWR
}

// Attach has the group use a completion queue. Completions whose ID has ReceiveID
// set go to received.
func (g *Group) Attach(cq verbs.CQ, received func(wc *verbs.WC)) {
	g.cq, g.received = cq, received
	g.next, g.count, g.empty, g.broken = 0, 0, false, false
	g.waiting, g.drained = g.waiting[:0], nil
}

// Add gives a request its ID, which it keeps until Remove. The request's owner
// learns of the end of each of its uses.
func (g *Group) Add(r *Request, owner Completer) {
	r.owner = owner
	if n := len(g.free); n > 0 {
		i := g.free[n-1]
		g.free = g.free[:n-1]
		g.requests[i] = r
		r.WR.ID = uint64(i)
	} else {
		r.WR.ID = uint64(len(g.requests))
		g.requests = append(g.requests, r)
	}
}

// Remove takes back the ID of a request that is on no lane. generation is that of
// its last use, which no request with the same index may have: see Renew.
func (g *Group) Remove(r *Request) {
	i := uint32(r.WR.ID & indexMask)
	g.requests[i] = nil
	g.free = append(g.free, i)
}

// Flush posts everything that waits and has room.
func (g *Group) Flush() {
	for len(g.waiting) > 0 {
		list := g.waiting
		g.waiting = g.spare[:0] // posting may fail, and a callback add to it
		for _, l := range list {
			l.waits = false
			l.post()
		}
		clear(list)
		g.spare = list[:0]
	}
}

// Poll handles completions, up to a bound, and returns how many. The place in the
// batch is kept, so that a callback that panics costs no completion. An error of
// the completion queue is returned once; from then on there are no completions.
func (g *Group) Poll() (n int, err error) {
	all := false
	g.empty = false
	for n < PollBudget && !g.broken {
		if g.next == g.count {
			if all {
				break
			}
			got, failure := g.cq.Poll(g.wcs[:])
			g.next, g.count = 0, got
			// Fewer than there was room for were all, until a callback runs.
			all, g.empty = got < len(g.wcs), got == 0
			if failure != nil {
				g.broken, err = true, failure
			}
			if got == 0 {
				break
			}
		}
		n += g.complete(&g.wcs[g.next])
	}
	return n, err
}

// Fetch takes a batch of completions, to be handled by Poll, and reports whether
// there are any. It is for the last ones, when no queue pair is left.
func (g *Group) Fetch() bool {
	if g.next == g.count && !g.broken {
		n, err := g.cq.Poll(g.wcs[:])
		g.next, g.count = 0, n
		g.broken = err != nil
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
	i := wc.ID & indexMask
	if i >= uint64(len(g.requests)) || g.requests[i] == nil || g.requests[i].WR.ID != wc.ID || !g.requests[i].posted {
		g.next++ // of an attempt that was given up
		return 1
	}
	r := g.requests[i]
	l, status, vendor := r.lane, wc.Status, wc.VendorError
	n := 1
	for l.head != r {
		l.pop().owner.Completed(verbs.StatusSuccess, 0)
		n++
	}
	g.next++
	l.pop()
	l.changed()
	r.owner.Completed(status, vendor)
	return n
}

// Empty reports whether the last look into the completion queue found nothing.
func (g *Group) Empty() bool { return g.empty || g.broken }

// Broken reports whether the completion queue has failed.
func (g *Group) Broken() bool { return g.broken }

// Break has the group take the completion queue for failed.
func (g *Group) Break() { g.broken = true }

// Busy reports whether there is something to be done that no completion will tell
// of.
func (g *Group) Busy() bool { return g.next < g.count || len(g.waiting) > 0 || len(g.drained) > 0 }

// Drained returns the lanes that were shut and of which the device has given back
// everything since the last call, each once. The slice holds until the next call.
func (g *Group) Drained() []*Lane {
	list := g.drained
	g.drained = nil
	return list
}

package lane

import (
	"sync/atomic"
	"time"

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

// DefaultLimit is for Group.Limit.
const DefaultLimit = 10 * time.Second

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
	extended verbs.ExtendedCQ // the same, if it reports more than a WC has; otherwise nil
	received func(wc *verbs.WC)

	requests []*Request // by index; nil: free
	free     []uint64   // IDs for Add, with generations that no request had

	wcs     [PollBatch]verbs.WC
	extras  []verbs.WCExtra // beside them; nil unless extended
	next    int             // of wcs, to be handled
	count   int             // in wcs
	fetched uint64          // completions, ever
	empty   bool            // the completion queue was, when it was last polled
	broken  bool            // the completion queue has failed
	failure error           // of the completion queue, to be returned by Poll

	toPost  []*Lane // with requests that wait
	spare   []*Lane // the array that toPost had before
	drained fifo.List[*Lane]
	wrs     [PostBatch]verbs.SendWR

	pending fifo.List[*Lane] // that the device has something of, in the order of giveUp
	limit   time.Duration
	timer   *time.Timer
	due     atomic.Bool // the timer has gone off
	wake    func()
}

// Attach has the group use a completion queue. Completions whose ID has ReceiveID
// set, and those that are unsolicited, go to received. No lane of an earlier completion queue may
// be in use.
func (g *Group) Attach(cq verbs.CQ, received func(wc *verbs.WC)) {
	g.cq, g.received, g.extended = cq, received, nil
	g.next, g.count, g.empty, g.broken, g.failure = 0, 0, false, false, nil
	g.toPost = g.toPost[:0]
	for g.drained.Pop() != nil {
	}
}

// Extend has the group ask the completion queue, which was made with CQInit.Fields, for
// what it reports beside completions.
func (g *Group) Extend() {
	g.extended = g.cq.(verbs.ExtendedCQ)
	g.extras = make([]verbs.WCExtra, len(g.wcs))
}

// Extra is what the queue has reported beside the completion that received has got. It
// is for received to call, after Extend.
func (g *Group) Extra() *verbs.WCExtra { return &g.extras[g.next-1] }

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
	return g.next < g.count || len(g.toPost) > 0 || g.drained.Len() > 0 || g.failure != nil || g.due.Load()
}

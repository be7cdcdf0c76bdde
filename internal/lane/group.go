package lane

import (
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// PollBatch is the number of completions taken from the device at a time.
	PollBatch = 32
	// PostBatch is the number of requests posted at a time: as many small messages as the
	// software device sends together.
	PostBatch = 64
	// PollBudget bounds the completions that one call of Poll handles, so that the engine
	// serves other contexts too.
	PollBudget = 4 * PollBatch
)

// DefaultLimit is the default for Group.Limit.
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
	extended verbs.ExtendedCQ // cq, if it reports more than a WC has; otherwise nil
	received func(wc *verbs.WC)
	sleeper  host.Sleeper

	requests []*Request // by index; nil: free
	free     []uint64   // IDs for Add, with generations not used before

	wcs     [PollBatch]verbs.WC
	extras  []verbs.WCExtra // beside them; nil unless extended
	next    int             // index in wcs of the next to handle
	count   int             // completions in wcs
	fetched uint64          // completions taken, in total
	empty   bool            // the completion queue was empty when last polled
	broken  bool            // the completion queue has failed
	failure error           // of the completion queue, to be returned by Poll

	toPost  fifo.List[*Lane] // lanes with waiting requests that the next Flush looks at
	noRoom  fifo.List[*Lane] // other lanes with waiting requests, until posted is below most; they have some posted
	posted  int              // requests at the device, of all lanes
	most    int              // the largest that posted may be; a lane with nothing posted may post one more
	drained fifo.List[*Lane]
	wrs     [PostBatch]verbs.SendWR

	pending fifo.List[*Lane] // lanes with something at the device, in the order of giveUp
	limit   time.Duration
	timer   host.Timer
	host    host.Host   // of the device of the lanes
	due     atomic.Bool // the timer has gone off
	wake    func()

	counting counting
}

// Attach sets the group's completion queue. All lanes together have most requests at the device at a
// time, at least 1, and each lane can have one in any case. So the queue needs room for the
// completions of most requests if there is one lane; if there are several, also for one of each.
// Completions whose ID has ReceiveID set, and
// unsolicited ones, go to received. No lane of an earlier completion queue may be in use.
func (g *Group) Attach(cq verbs.CQ, most int, received func(wc *verbs.WC)) {
	g.cq, g.most, g.received, g.extended, g.sleeper = cq, most, received, nil, nil
	if q, ok := cq.(interface{ Sleeper() host.Sleeper }); ok {
		g.sleeper = q.Sleeper()
	}
	g.posted = 0
	g.next, g.count, g.empty, g.broken, g.failure = 0, 0, false, false, nil
	for _, list := range []*fifo.List[*Lane]{&g.toPost, &g.noRoom, &g.drained} {
		for list.Pop() != nil {
		}
	}
}

// Sleeper is where a goroutine can sleep that waits for the completion queue; nil: nowhere.
func (g *Group) Sleeper() host.Sleeper { return g.sleeper }

// Extend makes the group ask the completion queue for extra fields. The queue must have been
// made with CQInit.Fields.
func (g *Group) Extend() {
	g.extended = g.cq.(verbs.ExtendedCQ)
	g.extras = make([]verbs.WCExtra, len(g.wcs))
}

// Extra holds the extra fields of the completion that received is handling. received calls it,
// after Extend.
func (g *Group) Extra() *verbs.WCExtra { return &g.extras[g.next-1] }

// Add gives a request its ID, which stays the request's until Remove. owner is called at the
// end of each use of the request.
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

// Remove takes back the ID of a request that is on no lane. The next request with its index
// gets another generation, so late completions of this one are ignored.
func (g *Group) Remove(r *Request) {
	r.ChangeID()
	g.requests[r.WR.ID&indexMask] = nil
	g.free = append(g.free, r.WR.ID)
}

// Empty reports whether the completion queue was empty when last polled, or has failed.
func (g *Group) Empty() bool { return g.empty || g.broken }

// Handled is the number of completions handled so far.
func (g *Group) Handled() uint64 { return g.fetched - uint64(g.count-g.next) }

// Barrier is what Handled is when every completion that is in the queue now has been handled.
// A queue under load may never be seen empty.
func (g *Group) Barrier() uint64 { return g.Handled() + uint64(g.cq.Capacity()) + PollBatch }

// Passed reports whether every completion before a Barrier has been handled. Call it after Poll.
func (g *Group) Passed(barrier uint64) bool { return g.Empty() || g.Handled() >= barrier }

// Broken reports whether the completion queue has failed.
func (g *Group) Broken() bool { return g.broken }

// Break makes the group treat the completion queue as failed.
func (g *Group) Break() { g.broken = true }

// HasWork reports whether there is work that no further completion will announce.
func (g *Group) HasWork() bool {
	return g.next < g.count || g.toPost.Len() > 0 || g.noRoom.Len() > 0 && g.posted < g.most || g.drained.Len() > 0 || g.failure != nil || g.due.Load()
}

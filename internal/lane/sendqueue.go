package lane

import "github.com/verbena-rdma/verbena/verbs"

// Push appends a request, which Group.Post posts.
func (l *Lane) Push(r *Request) {
	r.lane, r.kept = l, nil
	l.requests.Push(&r.place)
	if l.unposted == nil {
		l.unposted = &r.place
	}
	l.queueForPosting()
}

// Withhold appends a request that is not posted before Admit, because the peer may not be
// ready for it. Reset keeps it waiting, and Flush ends it.
func (l *Lane) Withhold(r *Request) {
	r.lane, r.kept = l, nil
	l.withheld.Push(&r.place)
}

// Admit pushes the withheld requests, in order.
func (l *Lane) Admit() {
	for e := l.withheld.Pop(); e != nil; e = l.withheld.Pop() {
		l.Push(e.Value)
	}
}

// TakeWithheld takes over the withheld requests of another lane, which is to be closed.
func (l *Lane) TakeWithheld(old *Lane) {
	for e := old.withheld.Pop(); e != nil; e = old.withheld.Pop() {
		l.Withhold(e.Value)
	}
}

// queueForPosting makes the next Group.Post post the waiting requests for which there is room.
func (l *Lane) queueForPosting() {
	if l.unposted == nil {
		return
	}
	if l.posted == 0 {
		l.group.noRoom.Remove(&l.toPost) // there is room for one
	}
	if !l.toPost.Queued() {
		l.group.toPost.Push(&l.toPost)
	}
}

// Post posts the waiting requests for which there is room. Lanes that found none go first.
func (g *Group) Post() {
	for {
		switch { // PostFailed may add lanes
		case g.noRoom.Len() > 0 && g.posted < g.most:
			g.noRoom.Pop().Value.post()
		case g.toPost.Len() > 0:
			g.toPost.Pop().Value.post()
		default:
			return
		}
	}
}

// post posts as many requests as the send queue has room for. The last request of each batch
// is always signaled: otherwise no completion might stand for those before it.
// A lane with nothing at the device posts one request whatever the others have there. So posted is
// at most most, and one for each lane.
func (l *Lane) post() {
	g := l.group
	for l.up && l.unposted != nil && l.posted < l.depth {
		room := min(PostBatch, l.depth-l.posted, max(g.most-g.posted, 1-l.posted))
		if room <= 0 {
			g.noRoom.Push(&l.toPost) // behind the other lanes
			return
		}
		n := 0
		for e := l.unposted; e != nil && n < room; e = e.Next() {
			r, wr := e.Value, &g.wrs[n]
			*wr = r.WR
			if !r.Unreported || l.unordered {
				wr.Flags |= verbs.FlagSignaled
			}
			n++
		}
		g.wrs[n-1].Flags |= verbs.FlagSignaled
		taken, err := l.qp.PostSend(g.wrs[:n])
		for range taken {
			l.unposted.Value.posted = true
			l.unposted = l.unposted.Next()
		}
		l.posted += taken
		g.posted += taken
		if err != nil {
			// Requests already taken may be unsignaled; shutting the lane brings them back.
			l.owner.PostFailed(err)
			return
		}
	}
}

// StopPosting keeps the waiting requests from being posted: Flush ends them, after all others.
// Requests pushed from now on are posted, and so is except, which may be nil.
func (l *Lane) StopPosting(except *Request) {
	waiting := l.unposted
	l.unposted = nil
	for waiting != nil {
		e := waiting
		waiting = e.Next()
		if e.Value == except {
			l.unposted = e
			continue
		}
		l.requests.Remove(e)
		l.withheld.Push(e)
	}
}

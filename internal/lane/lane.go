package lane

import (
	"github.com/verbena-rdma/verbena/verbs"
)

// Completer is what a request is made for.
type Completer interface {
	// Completed says that the request has come to its end, in the order of
	// submission: the lane does not hold it any more.
	Completed(status verbs.Status, vendorError uint32)
}

// Owner is what a lane is made for.
type Owner interface {
	// PostFailed says that the device refused a request that it should have taken.
	// The owner is expected to shut the lane.
	PostFailed(err error)
}

// Request is a request for a send queue. It is embedded in what it does the work
// for, and made known to a group once (Group.Add).
type Request struct {
	WR verbs.SendWR // ID is the group's
	// Unreported: it does without a completion of its own where one of a later
	// request tells of both.
	Unreported bool

	owner  Completer
	lane   *Lane
	next   *Request
	posted bool
}

// Renew has completions of earlier uses of the request ignored, which may still be
// on their way when its queue pair was reset.
func (r *Request) Renew() {
	generation := (r.WR.ID>>indexBits + 1) & generationMask
	r.WR.ID = generation<<indexBits | r.WR.ID&indexMask
}

// Lane is one queue pair with its send requests, in the order of submission.
type Lane struct {
	group *Group
	owner Owner
	qp    verbs.QP
	num   uint32
	depth int // requests at the device at a time
	up    bool

	// From head on in the order of submission; those before unposted are at the
	// device. Those from sealed on are not posted any more.
	head, tail, unposted *Request
	sealed               *Request
	posted               int
	waits                bool // on the group's list of those to be posted

	shut    bool
	drained bool // handed out by the group
}

// Open creates a queue pair, in the state Reset, with room for depth send requests.
func (g *Group) Open(pd verbs.PD, init verbs.QPInit, depth int, owner Owner) (*Lane, error) {
	init.SendCQ, init.RecvCQ = g.cq, g.cq
	init.MaxSendWR = depth
	qp, err := pd.CreateQP(init)
	if err != nil {
		return nil, err
	}
	return &Lane{group: g, owner: owner, qp: qp, num: qp.Num(), depth: depth}, nil
}

// QP is the queue pair.
func (l *Lane) QP() verbs.QP { return l.qp }

// Num is the number of the queue pair.
func (l *Lane) Num() uint32 { return l.num }

// Owner is what the lane was made for.
func (l *Lane) Owner() Owner { return l.owner }

// Initialize takes the queue pair from Reset to Init.
func (l *Lane) Initialize(port int, access verbs.Access) error {
	return l.qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: port, Access: access},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
}

// Connect takes the queue pair of a reliable connection from Init to Ready to Send,
// with all attributes but State. Requests can be posted from then on.
func (l *Lane) Connect(a verbs.QPAttr) error {
	a.State = verbs.QPReadyToReceive
	err := l.qp.Modify(a, verbs.QPAttrState|verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|
		verbs.QPAttrRQPSN|verbs.QPAttrMaxDestReadAtomic|verbs.QPAttrMinRNRTimer)
	if err != nil {
		return err
	}
	a.State = verbs.QPReadyToSend
	err = l.qp.Modify(a, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
		verbs.QPAttrSQPSN|verbs.QPAttrMaxInitReadAtomic)
	l.up = err == nil
	return err
}

// Reset takes the queue pair back to Reset, from any state. Requests on the lane are
// forgotten, without a completion.
func (l *Lane) Reset() error {
	l.up = false
	for l.head != nil {
		l.pop()
	}
	return l.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState)
}

// Push appends a request, which Group.Flush posts.
func (l *Lane) Push(r *Request) {
	r.lane = l
	switch {
	case l.sealed != nil:
		l.insert(r)
	case l.tail == nil:
		l.head, l.tail = r, r
	default:
		l.tail.next = r
		l.tail = r
	}
	if l.unposted == nil || l.unposted == l.sealed {
		l.unposted = r
	}
	l.wait()
}

// insert puts a request before those that are not posted any more.
func (l *Lane) insert(r *Request) {
	r.next = l.sealed
	if l.head == l.sealed {
		l.head = r
		return
	}
	p := l.head
	for p.next != l.sealed {
		p = p.next
	}
	p.next = r
}

// Seal has what was not posted until now stay so: it is flushed in the end. What is
// pushed from now on is posted before it.
func (l *Lane) Seal() {
	if l.sealed == nil {
		l.sealed = l.unposted
	}
}

// Posted is the number of requests at the device.
func (l *Lane) Posted() int { return l.posted }

func (l *Lane) wait() {
	if !l.waits {
		l.waits = true
		l.group.waiting = append(l.group.waiting, l)
	}
}

// post posts what the send queue has room for. The last request of each batch is
// signaled in any case: without that, nothing would tell of those before it.
func (l *Lane) post() {
	g := l.group
	for l.up && l.unposted != l.sealed && l.posted < l.depth {
		n := 0
		for r := l.unposted; r != l.sealed && n < min(PostBatch, l.depth-l.posted); r = r.next {
			wr := &g.wrs[n]
			*wr = r.WR
			if !r.Unreported {
				wr.Flags |= verbs.FlagSignaled
			}
			n++
		}
		g.wrs[n-1].Flags |= verbs.FlagSignaled
		taken, err := l.qp.PostSend(g.wrs[:n])
		for range taken {
			l.unposted.posted = true
			l.unposted = l.unposted.next
		}
		l.posted += taken
		if err != nil {
			// Those taken may not be signaled; shutting the lane brings them back.
			l.owner.PostFailed(err)
			return
		}
	}
}

// pop takes the oldest request off the lane.
func (l *Lane) pop() *Request {
	r := l.head
	l.head = r.next
	if l.head == nil {
		l.tail = nil
	}
	if l.unposted == r {
		l.unposted = r.next
	}
	if l.sealed == r {
		l.sealed = r.next
	}
	r.next, r.lane = nil, nil
	if r.posted {
		r.posted = false
		l.posted--
	}
	return r
}

// changed draws the consequences of a place that became free.
func (l *Lane) changed() {
	switch {
	case l.shut:
		if l.posted == 0 {
			l.drain()
		}
	case l.unposted != l.sealed:
		l.wait()
	}
}

// drain hands the lane out, once.
func (l *Lane) drain() {
	if !l.drained {
		l.drained = true
		l.group.drained = append(l.group.drained, l)
	}
}

// Shut puts the queue pair in error, so that what is posted comes back as flushed.
// When all of it has, Group.Drained returns the lane. Where the device fails, the
// lane is drained at once, and the error returned: the device keeps what it has
// until Close. Shutting again does nothing.
func (l *Lane) Shut() error {
	if l.shut {
		return nil
	}
	l.shut, l.up = true, false
	err := l.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState)
	if err != nil || l.posted == 0 || l.group.broken {
		l.drain()
	}
	return err
}

// GiveUp has Group.Drained return a lane that was shut without waiting for what is
// posted: the completion queue has failed.
func (l *Lane) GiveUp() {
	if l.shut {
		l.drain()
	}
}

// IsShut reports whether Shut was called.
func (l *Lane) IsShut() bool { return l.shut }

// Flush completes as flushed everything that the device does not have, or will not
// give back, and returns how many requests that were.
func (l *Lane) Flush() int {
	n := 0
	for l.head != nil {
		r := l.pop()
		n++
		r.owner.Completed(verbs.StatusFlushed, 0)
	}
	return n
}

// Close destroys the queue pair. Flush is to follow.
func (l *Lane) Close() error {
	l.up, l.shut = false, true
	return l.qp.Close()
}

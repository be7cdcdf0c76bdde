package lane

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/internal/errs"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/verbs"
)

// Completer is told when a request ends.
type Completer interface {
	// Completed is called when the request has ended, in the order of submission except on SRD
	// queue pairs, which keep none. The request is on no lane then, and can be pushed again.
	Completed(status verbs.Status, vendorError uint32)
}

// Owner is told when a lane fails.
type Owner interface {
	// PostFailed is called when the device refused a request that it should have taken. The
	// owner should shut the lane.
	PostFailed(err error)
}

// Request is a request for a send queue. Embed it in the type it works for, and add it to a
// group once (Group.Add).
type Request struct {
	WR verbs.SendWR // the group sets its ID
	// Unreported: the request needs no completion of its own if a later one stands for both.
	Unreported bool

	owner  Completer
	lane   *Lane
	place  fifo.Node[*Request] // in one of the lane's lists
	posted bool
	kept   error
}

// Kept is why the device may still use the memory of a flushed request: an error that matches
// errs.ErrMemoryKept. It is nil if the device does not.
func (r *Request) Kept() error { return r.kept }

// ChangeID changes the request's ID, so that completions of earlier uses are ignored. Such
// completions may still come after the queue pair was reset.
func (r *Request) ChangeID() {
	r.kept = nil
	generation := (r.WR.ID>>indexBits + 1) & generationMask
	r.WR.ID = generation<<indexBits | r.WR.ID&indexMask
}

// Lane is one queue pair with its send requests.
type Lane struct {
	group *Group
	owner Owner
	qp    verbs.QP
	num   uint32
	depth int // most requests at the device at a time
	kind  verbs.QPType
	up    bool // requests can be posted
	// unordered: requests complete in any order, each with a completion of its own.
	unordered bool

	requests fifo.List[*Request]  // in the order of submission
	unposted *fifo.Node[*Request] // the first that is not at the device; nil: all are
	posted   int                  // the number before unposted
	receives int                  // receives of PostRecv at the device
	withheld fifo.List[*Request]  // not posted until Admit or, after StopPosting, never

	toPost   fifo.Node[*Lane] // among the group's lanes with waiting requests, in toPost or noRoom
	shut     bool             // by Shut or Close
	drained  bool             // has been in the group's list of drained lanes
	place    fifo.Node[*Lane] // in that list
	pending  fifo.Node[*Lane] // among those that the device still has something of
	giveUpAt time.Time        // when the device's time to give everything back ends
	closed   bool             // the queue pair is destroyed, or gone with its device
	kept     error            // why the queue pair could not be destroyed

	counted fifo.Node[*Lane] // in counting.lanes
	traffic *traffic         // nil: the queue pair counts
}

// Open creates a queue pair, in the state Reset, with room for depth send requests.
func (g *Group) Open(pd verbs.PD, init verbs.QPInit, depth int, owner Owner) (*Lane, error) {
	init.SendCQ, init.RecvCQ = g.cq, g.cq
	init.MaxSendWR = depth
	qp, err := pd.CreateQP(init)
	if err != nil {
		return nil, err
	}
	g.host = host.Of(pd.Device())
	l := &Lane{group: g, owner: owner, qp: qp, num: qp.Num(), depth: depth, kind: init.Type, unordered: init.Type == verbs.SRD}
	l.place.Value, l.pending.Value, l.toPost.Value = l, l, l
	l.count()
	return l, nil
}

// QP is the queue pair.
func (l *Lane) QP() verbs.QP { return l.qp }

// Num is the number of the queue pair, also after Close.
func (l *Lane) Num() uint32 { return l.num }

// Owner is the owner given to Open.
func (l *Lane) Owner() Owner { return l.owner }

// Initialize takes the queue pair from Reset to Init.
func (l *Lane) Initialize(port, pKeyIndex int, access verbs.Access) error {
	return l.qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: port, PKeyIndex: pKeyIndex, Access: access}, verbs.RCToInit)
}

// Connect takes the queue pair of a connection from Init to Ready to Send. a has all
// attributes but State. Requests can be posted from then on.
func (l *Lane) Connect(a verbs.QPAttr) error {
	if err := l.BringUp(a); err != nil {
		return err
	}
	l.Connected()
	return nil
}

// BringUp is Connect without Connected; call Connected after it. BringUp may run on another
// goroutine while only Push, Withhold, StopPosting and Num are called on the lane.
func (l *Lane) BringUp(a verbs.QPAttr) error {
	toRTR, toRTS := verbs.RCToRTR, verbs.RCToRTS
	if l.kind == verbs.UC {
		toRTR, toRTS = verbs.UCToRTR, verbs.UCToRTS
	}
	a.State = verbs.QPReadyToReceive
	if err := l.qp.Modify(a, toRTR); err != nil {
		return err
	}
	a.State = verbs.QPReadyToSend
	return l.qp.Modify(a, toRTS)
}

// OpenDatagrams takes the queue pair of datagrams, of UD or SRD, from Reset to Ready to Send.
// It uses the attributes Port, PKeyIndex, QKey and SQPSN, and those of the mask. Requests can
// be posted from then on.
func (l *Lane) OpenDatagrams(a verbs.QPAttr, mask verbs.QPAttrMask) error {
	for _, step := range [...]struct {
		to   verbs.QPState
		mask verbs.QPAttrMask
	}{
		{verbs.QPInitialized, verbs.UDToInit},
		{verbs.QPReadyToReceive, verbs.UDToRTR},
		{verbs.QPReadyToSend, verbs.UDToRTS | mask},
	} {
		a.State = step.to
		if err := l.qp.Modify(a, step.mask); err != nil {
			return err
		}
	}
	l.Connected()
	return nil
}

// Hold keeps requests from being posted until Resume. The device has flushed the send queue,
// and gets no more before it has given back what it had. If it does not in time, the lane is
// shut and Group.Drained returns it.
func (l *Lane) Hold() {
	l.up = false
	if l.posted > 0 {
		l.group.startTimeLimit(l)
	}
}

// Resume takes the send queue of a queue pair out of the state SQE, and posts the waiting
// requests. All posted requests must have come back.
func (l *Lane) Resume() error {
	if err := l.qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend}, verbs.QPAttrState); err != nil {
		return err
	}
	l.Connected()
	return nil
}

// Connected lets requests be posted: the queue pair was taken to Ready to Send elsewhere.
func (l *Lane) Connected() {
	l.up = true
	l.queueForPosting()
}

// Reset takes the queue pair back to Reset, from any state. Requests on the lane, and receives,
// are dropped without a completion; withheld requests go on waiting.
func (l *Lane) Reset() error {
	l.up = false
	for l.requests.Len() > 0 {
		l.pop()
	}
	if err := l.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState); err != nil {
		return err
	}
	l.receives = 0
	return nil
}

// Posted is the number of requests at the device.
func (l *Lane) Posted() int { return l.posted }

// Receives is the number of receives of PostRecv at the device.
func (l *Lane) Receives() int { return l.receives }

// Drained reports whether Group.Drained has returned the lane, or will: see there.
func (l *Lane) Drained() bool { return l.drained }

// PostRecv posts receives to the queue pair itself, and counts them: the lane is drained only
// after Received was called for each.
func (l *Lane) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := l.qp.PostRecv(wrs)
	l.receives += n
	return n, err
}

// Received is called when a receive of PostRecv has completed.
func (l *Lane) Received() {
	l.receives--
	if l.shut && !l.atDevice() {
		l.drain()
	}
}

// atDevice reports whether the device still has something to give back.
func (l *Lane) atDevice() bool { return l.posted > 0 || l.receives > 0 }

// Shut puts the queue pair in error, so that the device gives back, as flushed, what was
// posted. When it has, Group.Drained returns the lane. It also does so if the device has not
// given everything back within the time of Group.Limit, and at once if the device fails; Shut
// returns that error. Shutting again does nothing.
func (l *Lane) Shut() error {
	if l.shut {
		return nil
	}
	l.shut, l.up = true, false
	l.group.noRoom.Remove(&l.toPost)
	err := l.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState)
	if err != nil || l.group.broken || !l.atDevice() {
		l.drain()
	} else {
		l.group.startTimeLimit(l)
	}
	return err
}

// GiveUp makes a lane that was shut count as drained, whatever is posted: the completion queue
// has failed.
func (l *Lane) GiveUp() {
	if l.shut {
		l.drain()
	}
}

// IsShut reports whether Shut or Close was called.
func (l *Lane) IsShut() bool { return l.shut }

// Closed reports whether the queue pair is destroyed, or gone with its device.
func (l *Lane) Closed() bool { return l.closed }

// IsUp reports whether requests can be posted.
func (l *Lane) IsUp() bool { return l.up }

// Settle ensures that the device no longer uses the memory of a drained lane: it destroys the
// queue pair, unless the device has given back everything. If that fails, the error matches
// errs.ErrMemoryKept, and the requests at the device end with it (Request.Kept). Settle may be
// called again.
func (l *Lane) Settle() error {
	if l.atDevice() && !l.closed {
		_ = l.Close() // the error is in kept, unless the device is gone
	}
	return l.kept
}

// Close destroys the queue pair. Call Flush after it. If the kernel reports that the device is
// gone (verbs.ErrNoDevice), Close returns that error, but nothing uses memory any more.
// Otherwise the error matches errs.ErrMemoryKept, and Close may be tried again.
func (l *Lane) Close() error {
	l.up, l.shut = false, true
	if l.closed {
		return nil
	}
	l.group.noRoom.Remove(&l.toPost)
	l.group.pending.Remove(&l.pending)
	err := l.qp.Close()
	switch {
	case err == nil || errors.Is(err, verbs.ErrNoDevice):
		l.closed, l.kept, l.receives = true, nil, 0
		l.stopCounting()
	default:
		l.kept = Kept(fmt.Sprintf("queue pair %#x", l.num), err)
		err = l.kept
	}
	return err
}

// Kept is the error for memory that the device may still use, because what failed to be
// destroyed.
func Kept(what string, err error) error {
	return fmt.Errorf("%w, since %s could not be destroyed: %w; do not reuse that memory: its memory maps stay registered until the device is closed",
		errs.ErrMemoryKept, what, err)
}

package rdma

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// receives is the part of a context that posts receives, and knows which of them the device
// has.
type receives struct {
	core           *core
	list           []*receive      // without those of each
	total          int             // with those that no pool has made yet
	messageBuffers *messageBuffers // nil unless Receive was called
	each           *perConnection  // nil unless ReceivePerConnection was called

	// The fields below belong to one run, from Start to Idle.
	depth    int                    // the most that are at the device
	srq      verbs.SRQ              // nil: there is none
	queue    receiveQueue           // nil: each connection has its own, or there are no receives
	headers  *mmap.Map              // of the messages of UD, by the index of the receive
	header   verbs.SGE              // of the first receive
	waiting  fifo.List[*receive]    // submitted, in order, and not posted
	toRefill fifo.List[*Connection] // with room in receive queues of their own
	posted   int                    // of list
	wrs      [lane.PostBatch]verbs.RecvWR
	flushed  int     // of list, when the context stops
	arrival  arrival // the one that is being handled
}

// receive is one receive of a context, for any of its connections: of a task, or of messageBuffers,
// which posts it again and again.
type receive struct {
	owner  receiver
	index  int                 // among the receives of the context
	place  fifo.Node[*receive] // in waiting of the context, or in receives of conn
	posted bool
	conn   *Connection // to whose queue pair it was posted; nil: to the context's queue
	wr     verbs.RecvWR
}

// The ID of a receive is lane.ReceiveID, its index, and a generation. The generation tells it
// from an earlier post to a queue pair that no longer exists.
const (
	receiveIndexMask      = 1<<32 - 1
	receiveGeneration     = 1 << 32
	receiveGenerationMask = 1<<31 - 1
)

// receiveQueue is where receives are posted: a shared receive queue, or the endpoint's
// queue pair.
type receiveQueue interface {
	PostRecv(wrs []verbs.RecvWR) (int, error)
}

// receiver handles the outcome of a receive: a task or a message buffer.
type receiver interface {
	// arrived is called when the receive has taken a message.
	arrived(a *arrival)
	// failed is called when the receive has failed. The connection may be nil.
	failed(conn *Connection, err *TaskError)
	// lengthAdvice says what to do about a message that was too long for the receive.
	lengthAdvice() string
	// flushed is called when the queue has been destroyed, or could not be, even if the
	// receive was not in flight. posted says whether the receive was at the device. flushed
	// returns how many callbacks it ran.
	flushed(posted bool) int
}

// headerStride is the distance between the headers of two receives, so that no two share a
// cache line.
const headerStride = 64

// add registers a receive, until the context is closed.
func (r *receives) add(one *receive, owner receiver) {
	one.owner, one.place.Value, one.index = owner, one, len(r.list)
	one.wr.ID = lane.ReceiveID | uint64(one.index)
	r.list = append(r.list, one)
}

// depthNow is the most receives at the device, which follows from the configuration and the
// pools.
func (r *receives) depthNow() int {
	return cmp.Or(r.core.set.Queues.RecvQueueSize, min(r.total, r.core.set.caps.MaxReceives))
}

// most is how many receives can complete at a time.
func (r *receives) most() int {
	if r.each != nil {
		return r.each.n * r.core.set.MaxConnections
	}
	return r.total
}

// open implements part.
func (r *receives) open() (err error) {
	c, s := r.core, r.core.set
	r.depth, r.posted, r.flushed = r.depthNow(), 0, 0
	switch {
	case r.total == 0: // there are none, or each connection has its own
		return nil
	case s.Transport == verbs.UD:
		r.headers, err = mmap.New(c.dev, mmap.Config{Size: headerStride * r.total, Permissions: mmap.LocalReadWrite, PD: s.PD})
		if err != nil {
			return fmt.Errorf("allocate memory for the headers of %d receives: %w", r.total, err)
		}
		r.header = verbs.SGE{Addr: r.headers.Addr(), Length: verbs.GRHLen}
		if r.header.LKey, err = r.headers.LKey(s.PD); err != nil {
			return err
		}
	case !s.caps.connections():
	case s.receivesShared:
		if r.srq, err = s.PD.CreateSRQ(verbs.SRQInit{MaxWR: r.depth, MaxSGE: s.Queues.MaxRecvSGE, Poller: c.Engine()}); err != nil {
			return fmt.Errorf("create a shared receive queue of %d receives on %s: %w", r.depth, c.dev.Name(), err)
		}
		r.queue = r.srq
	case r.depth < s.MaxConnections:
		return fmt.Errorf("%w: the device takes %d receives at a time, which is less than Config.MaxConnections, %d; connections of %v on %s have no shared receive queue, so each needs a receive of its own: use larger pools of receives, or more buffers in Receive, and leave Config.Queues.RecvQueueSize at 0 or raise it, or lower Config.MaxConnections",
			ErrRange, r.depth, s.MaxConnections, s.Transport, c.dev.Name())
	}
	if r.messageBuffers != nil {
		return r.messageBuffers.open()
	}
	return nil
}

// appendHeader appends the entry for the header of a receive, if messages come with one.
func (r *receives) appendHeader(sgl []verbs.SGE, one *receive) []verbs.SGE {
	if r.headers == nil {
		return sgl
	}
	e := r.header
	e.Addr += uint64(headerStride * one.index)
	return append(sgl, e)
}

// headerOf is the memory for the header of a receive.
func (r *receives) headerOf(one *receive) []byte { return r.headers.Bytes()[headerStride*one.index:] }

// work implements part: receives are posted with requests.
func (r *receives) work() int { return 0 }

// busy implements part: it reports whether a receive is to be posted and there is room for it.
func (r *receives) busy() bool {
	waiting := r.waiting.Len() > 0 && r.posted < r.depth
	return r.core.phase == phaseUp && (waiting && r.queue != nil || r.toRefill.Len() > 0 && (waiting || r.each != nil))
}

// post posts waiting receives while the receive queues have room.
func (r *receives) post() {
	c := r.core
	for r.busy() {
		if r.queue == nil {
			r.refill()
			continue
		}
		if _, err := r.postSome(r.queue, lane.PostBatch, nil); err != nil {
			c.control.Fail(fmt.Errorf("rdma: %w: post receives of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
			return
		}
	}
}

// postSome posts the first receives that wait to a queue: to that of conn, or to that of the
// context if conn is nil. It returns how many the queue has taken.
func (r *receives) postSome(queue receiveQueue, most int, conn *Connection) (int, error) {
	n := 0
	for e := r.waiting.Front(); e != nil && n < min(most, lane.PostBatch, r.depth-r.posted); e = e.Next() {
		r.wrs[n] = e.Value.wr
		n++
	}
	taken, err := queue.PostRecv(r.wrs[:n])
	for range taken {
		one := r.waiting.Pop().Value
		one.posted, one.conn = true, conn
		if conn != nil {
			conn.receives.Push(&one.place)
		}
	}
	r.posted += taken
	return taken, err
}

// returned notes that the device no longer has a receive.
func (r *receives) returned(one *receive) {
	one.posted = false
	r.posted--
	if conn := one.conn; conn != nil {
		one.conn = nil
		conn.receives.Remove(&one.place)
		conn.queueRefill()
	}
}

// take returns the receive that a completion is about, and the connection to whose own queue
// pair it was posted, or nil. It returns no receive for one that was returned already.
func (r *receives) take(wc *verbs.WC) (*receive, *Connection) {
	i := wc.ID & receiveIndexMask
	if i >= uint64(len(r.list)) || !r.list[i].posted || r.list[i].wr.ID != wc.ID {
		return nil, nil
	}
	one := r.list[i]
	conn := one.conn
	r.returned(one)
	return one, conn
}

// arrivalOf is the arrival of a message.
func (r *receives) arrivalOf(wc *verbs.WC) *arrival {
	a := &r.arrival
	*a = arrival{length: int(wc.Bytes)}
	a.opcode, a.imm = kindOf(wc)
	return a
}

// failedReceive is the error of a receive.
func failedReceive(r *receive, conn *Connection, wc *verbs.WC) *TaskError {
	err := &TaskError{Op: OpReceive, Status: wc.Status, Connection: conn, VendorError: wc.VendorError}
	if wc.Status == verbs.StatusLocalLengthError {
		err.advice = r.owner.lengthAdvice()
	}
	return err
}

// closeShared destroys the shared receive queue. Its error says that the device may still use
// the memory of receives.
func (r *receives) closeShared() error {
	if r.srq == nil {
		return nil
	}
	err := r.srq.Close()
	r.srq = nil
	if err == nil {
		return nil
	}
	r.core.set.Log.Warn().Err(err).Str("context", r.core.set.Name).Msg("failed to close the shared receive queue")
	if errors.Is(err, verbs.ErrNoDevice) {
		return nil
	}
	return lane.Kept("the shared receive queue", err)
}

// flush ends some of the receives when no receive queue is left. It returns how many callbacks
// that took, and whether it has ended all.
func (r *receives) flush() (n int, all bool) {
	for ; r.flushed < len(r.list) && n < lane.PollBudget; r.flushed++ {
		one := r.list[r.flushed]
		r.waiting.Remove(&one.place)
		posted := one.posted
		if one.conn != nil { // its queue pair could not be destroyed
			one.conn.receives.Remove(&one.place)
			one.conn = nil
		}
		one.posted = false
		n += one.owner.flushed(posted)
	}
	return n, r.flushed == len(r.list)
}

// close implements part.
func (r *receives) close() error {
	for r.toRefill.Pop() != nil {
	}
	var errs []error
	if r.srq != nil {
		errs = append(errs, r.srq.Close())
	}
	if r.messageBuffers != nil {
		errs = append(errs, r.messageBuffers.close())
	}
	errs = append(errs, r.core.closeMemory(r.headers))
	r.srq, r.queue, r.headers = nil, nil, nil
	return errors.Join(errs...)
}

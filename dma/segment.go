package dma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/verbs"
)

// segment is the part of a copy that the device moves at a time: a send of the queue pair to
// itself, and the receive that takes it.
type segment struct {
	send      lane.Request
	ctx       *Context
	task      *CopyTask
	completed [2]bool       // whether each half, receive and send, has come back
	errors    [2]*TaskError // the errors of the halves
}

// The halves of a segment. If both fail, the receive's error says more.
const (
	receiving = iota
	sending
)

// makeSegments makes the ring of segments: as many as can be at the device at a time.
func (c *Context) makeSegments(depth int) {
	c.first, c.next = 0, 0
	if len(c.segments) == depth {
		return
	}
	for i := range c.segments {
		c.lanes.Remove(&c.segments[i].send)
	}
	c.segments = make([]segment, depth)
	for i := range c.segments {
		p := &c.segments[i]
		p.ctx = c
		c.lanes.Add(&p.send, p)
	}
	n := lane.PostBatch * c.set.MaxSGE
	c.sendSGL, c.recvSGL = make([]verbs.SGE, 0, n), make([]verbs.SGE, 0, n)
}

// at returns the segment with a number. Segments are numbered in the order of posting.
func (c *Context) at(number uint64) *segment { return &c.segments[number%uint64(len(c.segments))] }

// room is the number of further segments that the queues can take.
func (c *Context) room() int { return len(c.segments) - int(c.next-c.first) }

func (c *Context) postable() bool { return !c.ended && c.unposted != nil && c.room() > 0 }

// post posts as many segments as the queues have room for. All receives of a batch are posted
// before all of its sends, so that every send finds a receive.
func (c *Context) post() {
	for c.postable() {
		n := c.fill(min(lane.PostBatch, c.room()))
		if n == 0 {
			continue
		}
		taken, err := c.lane.PostRecv(c.recvWRs[:n])
		for i := range uint64(n) {
			p := c.at(c.next + i)
			if err == nil {
				c.lane.Push(&p.send)
				continue
			}
			p.note(sending, verbs.StatusFlushed, 0)
			if i >= uint64(taken) {
				p.note(receiving, verbs.StatusFlushed, 0)
			}
		}
		c.next += uint64(n)
		if err != nil {
			c.postFailed(err)
			return
		}
		c.lanes.Post()
	}
}

func (c *Context) postFailed(err error) {
	c.end(fmt.Errorf("dma: %w: post copies of context %q on %s: %w", ErrDevice, c.set.Name, c.dev.Name(), err))
}

// laneOwner is the lane.Owner of a Context.
type laneOwner Context

// PostFailed implements lane.Owner.
func (o *laneOwner) PostFailed(err error) { (*Context)(o).postFailed(err) }

// fill makes up to most segments, from c.next on, and returns how many.
func (c *Context) fill(most int) int {
	n := 0
	c.sendSGL, c.recvSGL = c.sendSGL[:0], c.recvSGL[:0]
	for n < most && c.unposted != nil {
		t := c.unposted.Value
		if from, to := c.split(t); len(from) > 0 {
			number := c.next + uint64(n)
			p := c.at(number)
			p.task, p.completed, p.errors = t, [2]bool{}, [2]*TaskError{}
			p.send.WR = verbs.SendWR{ID: p.send.WR.ID, Op: verbs.OpSend, SGL: from}
			p.send.Unreported = t.left > 0 || t.unreported
			c.recvWRs[n] = verbs.RecvWR{ID: lane.ReceiveID | number%uint64(len(c.segments)), SGL: to}
			t.segments++
			n++
		}
		if t.left == 0 {
			c.unposted = c.unposted.Next()
		}
	}
	return n
}

// Completed implements lane.Completer.
func (p *segment) Completed(status verbs.Status, vendor uint32) { p.note(sending, status, vendor) }

// received handles the completion of a receive.
func (c *Context) received(wc *verbs.WC) {
	if i := wc.ID &^ lane.ReceiveID; i < uint64(len(c.segments)) && c.segments[i].task != nil && !c.segments[i].completed[receiving] {
		c.lane.Received()
		c.segments[i].note(receiving, wc.Status, wc.VendorError)
	}
}

// note records how one half of a segment has ended.
func (p *segment) note(half int, status verbs.Status, vendor uint32) {
	p.completed[half] = true
	if status == verbs.StatusSuccess {
		return
	}
	c := p.ctx
	c.failed = true
	p.errors[half] = &TaskError{Context: c, Status: status, VendorError: vendor}
	if status != verbs.StatusFlushed && c.faults[half] == nil {
		c.faults[half] = p.errors[half]
	}
}

// retire reports the completed segments to their tasks, in order.
func (c *Context) retire() {
	for c.first != c.next {
		p := c.at(c.first)
		if !p.completed[receiving] || !p.completed[sending] {
			return
		}
		c.first++
		t := p.task
		p.task = nil
		t.segments--
		for _, err := range p.errors {
			if err != nil && (t.failure == nil || t.failure.Status == verbs.StatusFlushed) {
				t.failure = err
			}
		}
	}
}

// abandonSegments ends, as flushed, the segments that the device did not give back. It is called
// when the queue pair has been destroyed.
func (c *Context) abandonSegments() {
	for i := c.first; i != c.next; i++ {
		for half, back := range c.at(i).completed {
			if !back {
				c.at(i).note(half, verbs.StatusFlushed, 0)
			}
		}
	}
	c.retire()
}

// finished returns the oldest task if the device has given back all its segments, or nil. When
// the context ends, that includes tasks that were never posted.
func (c *Context) finished() *CopyTask {
	e := c.submitted.Front()
	if e == nil || e.Value.segments > 0 || e.Value.left > 0 && !c.ended {
		return nil
	}
	return e.Value
}

// finish runs the callbacks of completed tasks, up to a bound, and returns their number.
func (c *Context) finish() int {
	n := 0
	for ; n < lane.PollBudget; n++ {
		t := c.finished()
		if t == nil {
			break
		}
		c.pop()
		if err := c.result(t); err != nil {
			t.fail(err)
		} else {
			t.succeed()
		}
	}
	return n
}

// result returns the error of a task, or nil.
func (c *Context) result(t *CopyTask) error {
	switch {
	case t.changed != nil:
		return t.changed
	case t.kept != nil:
		return &TaskError{Context: c, Status: verbs.StatusFlushed, Cause: t.kept}
	case t.failure != nil:
		if t.failure.Status == verbs.StatusFlushed {
			t.failure.Cause = c.Err()
		}
		return t.failure
	case t.left > 0:
		return &TaskError{Context: c, Status: verbs.StatusFlushed, Cause: c.Err()}
	}
	return nil
}

// push appends a task, to be posted by post.
func (c *Context) push(t *CopyTask) {
	c.submitted.Push(&t.place)
	if c.unposted == nil {
		c.unposted = &t.place
	}
}

// pop takes the oldest task off.
func (c *Context) pop() {
	if e := c.submitted.Pop(); e == c.unposted {
		c.unposted = c.submitted.Front()
	}
}

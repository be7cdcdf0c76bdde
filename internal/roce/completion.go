package roce

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

// completionQueue is guarded by the device's lock.
type completionQueue struct {
	device  *Device
	entries transport.Ring[verbs.WC]
	overrun bool
	armed   armed
	notify  func()
	refs    int
	closed  bool
}

type armed uint8

const (
	notArmed armed = iota
	armedSolicited
	armedAny
)

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	const op = "create completion queue"
	if init.Capacity < 1 || init.Capacity > maxCQE {
		return nil, fmt.Errorf("%s: %d entries, 1 to %d are possible: %w", op, init.Capacity, maxCQE, verbs.ErrLimit)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.closedError(op)
	}
	d.cqs++
	return &completionQueue{device: d, entries: transport.NewRing[verbs.WC](init.Capacity)}, nil
}

func (c *completionQueue) Capacity() int { return c.entries.Depth() }

// Complete implements transport.Completer. The lock is held.
func (c *completionQueue) Complete(wc verbs.WC, solicited bool) {
	entry := c.entries.Push()
	if entry == nil {
		c.overflow()
		return
	}
	*entry = wc
	if c.armed == armedAny || c.armed == armedSolicited && (solicited || wc.Status != verbs.StatusSuccess) {
		c.fire()
	}
}

func (c *completionQueue) fire() {
	c.armed = notArmed
	if c.notify != nil {
		c.notify()
	}
}

func (c *completionQueue) overflow() {
	if c.overrun {
		return
	}
	c.overrun = true
	c.device.overrun = append(c.device.overrun, c)
	c.device.log.Error().Str("device", c.device.cfg.Name).Int("entries", c.Capacity()).Msg("completion queue overrun")
	c.device.report(verbs.Event{Type: verbs.EventCQError, CQ: c})
	if c.armed != notArmed {
		c.fire()
	}
}

// failOverrun puts the queue pairs in error whose completion queue has
// overflowed. It is not done on the spot, since one of them may be in the middle
// of a packet.
func (d *Device) failOverrun() {
	for len(d.overrun) > 0 {
		c := d.overrun[0]
		d.overrun = d.overrun[1:]
		for _, q := range d.queuePairs {
			if q.sendCQ == c || q.recvCQ == c {
				// Refused in Reset, where nothing completes.
				_ = q.transport.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState)
			}
		}
	}
}

// Poll implements verbs.CQ.
func (c *completionQueue) Poll(wc []verbs.WC) (int, error) {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.closed {
		return 0, d.closedError("poll completion queue")
	}
	// A program that has armed its queue polls once more before it sleeps. That
	// poll does not mean that others follow.
	if c.armed == notArmed && d.asleep.Load() {
		d.asleep.Store(false)
	}
	if c.entries.Len() < len(wc) {
		d.polls.Add(1)
		d.progress(d.now(), nil)
	}
	if c.overrun {
		d.failOverrun()
		return 0, fmt.Errorf("poll completion queue of %d entries on device %s: it overflowed, make it larger: %w", c.Capacity(), d.cfg.Name, verbs.ErrOverrun)
	}
	n := 0
	for n < len(wc) && c.entries.Len() > 0 {
		wc[n] = *c.entries.Pop()
		n++
	}
	return n, nil
}

// Arm implements verbs.CQ.
func (c *completionQueue) Arm(solicitedOnly bool) (bool, error) {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.closed:
		return false, d.closedError("arm completion queue")
	case c.entries.Len() > 0 || c.overrun:
		return false, nil
	}
	switch {
	case !solicitedOnly:
		c.armed = armedAny
	case c.armed == notArmed:
		c.armed = armedSolicited
	}
	d.asleep.Store(true)
	for _, e := range d.endpoints {
		if e.users > 0 {
			e.endPause()
		}
	}
	return true, nil
}

// OnCompletion implements verbs.CQ.
func (c *completionQueue) OnCompletion(notify func()) {
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	c.notify = notify
}

func (c *completionQueue) Close() error {
	d := c.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.closed:
		return nil
	case c.refs > 0:
		return fmt.Errorf("close completion queue: %d queue pairs use it: %w", c.refs, verbs.ErrInUse)
	}
	c.closed = true
	d.cqs--
	return nil
}

package roce

import (
	"fmt"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// xrcDomain is an XRC domain. Its queues and queue pairs are in the first shard: a queue pair can
// receive for every queue.
type xrcDomain struct {
	device *Device
	queues map[uint32]*transport.XRCQueue // by number
	cqs    map[uint32]*completionQueue    // by the number of their queue
	refs   int                            // queues and queue pairs
	closed bool
}

// OpenXRCDomain implements verbs.XRCDevice.
func (d *Device) OpenXRCDomain() (verbs.XRCDomain, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen("open XRC domain"); err != nil {
		return nil, err
	}
	if !d.transports().Has(verbs.XRCRecv) {
		return nil, fmt.Errorf("open XRC domain: device %s does not have XRC: %w", d.cfg.Name, verbs.ErrNotSupported)
	}
	return &xrcDomain{device: d, queues: make(map[uint32]*transport.XRCQueue), cqs: make(map[uint32]*completionQueue)}, nil
}

// Close implements verbs.XRCDomain.
func (x *xrcDomain) Close() error {
	x.device.mu.Lock()
	defer x.device.mu.Unlock()
	if x.refs > 0 {
		return fmt.Errorf("close XRC domain of device %s: %d queues and queue pairs are still open: %w", x.device.cfg.Name, x.refs, verbs.ErrInUse)
	}
	x.closed = true
	return nil
}

// xrcDomainOf returns the domain that a program has passed back.
func (d *Device) xrcDomainOf(op string, domain verbs.XRCDomain) (*xrcDomain, error) {
	x, ok := domain.(*xrcDomain)
	switch {
	case !ok || x.device != d:
		return nil, fmt.Errorf("%s: XRCDomain must be an XRC domain of device %s: %w", op, d.cfg.Name, verbs.ErrInvalid)
	case x.closed:
		return nil, fmt.Errorf("%s: XRCDomain: %w", op, verbs.ErrClosed)
	}
	return x, nil
}

// xrcQueue is a shared receive queue of an XRC domain.
type xrcQueue struct {
	*sharedReceiveQueue
	domain *xrcDomain
	num    uint32
}

// SRQNum implements verbs.XRCSRQ.
func (q *xrcQueue) SRQNum() uint32 { return q.num }

// joinXRC gives a new shared receive queue its place in an XRC domain.
func (s *sharedReceiveQueue) joinXRC(op string, init *verbs.SRQInit) (*xrcQueue, error) {
	d := s.pd.device
	x, err := d.xrcDomainOf(op, init.XRCDomain)
	if err != nil {
		return nil, err
	}
	cq := asCompletionQueue(init.CQ)
	switch {
	case cq == nil || cq.device != d:
		return nil, fmt.Errorf("%s: CQ must belong to device %s: %w", op, d.cfg.Name, verbs.ErrInvalid)
	case cq.closed:
		return nil, fmt.Errorf("%s: CQ: %w", op, verbs.ErrClosed)
	case s.shard != d.main.shard:
		return nil, fmt.Errorf("%s: an XRC shared receive queue cannot belong to a poller: leave SRQInit.Poller nil: %w", op, verbs.ErrInvalid)
	}
	q := &xrcQueue{sharedReceiveQueue: s, domain: x}
	for q.num == 0 || x.queues[q.num] != nil {
		q.num = d.random() & wire.PSNMask
	}
	x.queues[q.num] = transport.NewXRCQueue(s.queue, cq.completerFor(s.shard))
	x.cqs[q.num] = cq
	x.refs++
	cq.refs++
	return q, nil
}

// Close implements verbs.SRQ. Queue pairs of the domain may stay open.
func (q *xrcQueue) Close() error {
	d := q.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.closed {
		return nil
	}
	queue := q.domain.queues[q.num]
	q.domain.cqs[q.num].refs--
	delete(q.domain.queues, q.num)
	delete(q.domain.cqs, q.num)
	for _, p := range d.mu.queuePairs {
		if p.xrc == q.domain {
			p.transport.QueueClosed(queue)
		}
	}
	q.domain.refs--
	q.close()
	return nil
}

// completesTo reports whether completions of the queue pair may go to c.
func (q *queuePair) completesTo(c *completionQueue) bool {
	if q.xrc != nil {
		for _, cq := range q.xrc.cqs {
			if cq == c {
				return true
			}
		}
	}
	return q.sendCQ == c || q.recvCQ == c
}

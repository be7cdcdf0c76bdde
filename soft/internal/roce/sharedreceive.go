package roce

import (
	"fmt"

	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

type sharedReceiveQueue struct {
	pd     *protectionDomain
	shard  *shard
	queue  *transport.RecvQueue
	refs   int
	closed bool
}

// CreateSRQ implements verbs.PD.
func (p *protectionDomain) CreateSRQ(init verbs.SRQInit) (verbs.SRQ, error) {
	const op = "create shared receive queue"
	if init.MaxWR < 1 || init.MaxWR > maxQPWR {
		return nil, fmt.Errorf("%s: MaxWR is %d, must be from 1 to %d: %w", op, init.MaxWR, maxQPWR, verbs.ErrLimit)
	}
	if init.MaxSGE < 0 || init.MaxSGE > maxSGE {
		return nil, fmt.Errorf("%s: MaxSGE is %d, must be from 0 to %d: %w", op, init.MaxSGE, maxSGE, verbs.ErrLimit)
	}
	d := p.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.checkOpen(op); err != nil {
		return nil, err
	}
	if err := d.checkRoom(op, d.mu.receiveQueues, d.limits.sharedReceiveQueues, "shared receive queues"); err != nil {
		return nil, err
	}
	s := &sharedReceiveQueue{pd: p, shard: d.shardOf(init.Poller), queue: transport.NewRecvQueue(d.mu.memory, p.id, init.MaxWR, init.MaxSGE)}
	made := verbs.SRQ(s)
	if init.XRCDomain != nil {
		x, err := s.joinXRC(op, &init)
		if err != nil {
			return nil, err
		}
		made = x
	}
	s.queue.Share(func() { d.report(verbs.Event{Type: verbs.EventSRQLimitReached, SRQ: made}) })
	p.refs++
	d.mu.receiveQueues++
	return made, nil
}

// lock takes the lock of the queue's shard. The caller unlocks it.
func (s *sharedReceiveQueue) lock() *shard {
	s.shard.mu.Lock()
	return s.shard
}

func (s *sharedReceiveQueue) PostRecv(wrs []verbs.RecvWR) (int, error) {
	defer s.lock().mu.Unlock()
	if s.closed {
		return 0, s.pd.device.closedError("post to shared receive queue")
	}
	if err := s.pd.device.broken("post to shared receive queue"); err != nil {
		return 0, err
	}
	return s.queue.Post(wrs)
}

func (s *sharedReceiveQueue) SetLimit(limit int) error {
	defer s.lock().mu.Unlock()
	if s.closed {
		return s.pd.device.closedError("set limit of shared receive queue")
	}
	if limit < 0 || limit > s.queue.Depth() {
		return fmt.Errorf("set limit of shared receive queue to %d: it must be from 0 to %d: %w", limit, s.queue.Depth(), verbs.ErrInvalid)
	}
	s.queue.SetLimit(limit)
	return nil
}

func (s *sharedReceiveQueue) Close() error {
	d := s.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case s.closed:
		return nil
	case s.refs > 0:
		return fmt.Errorf("close shared receive queue: %d queue pairs use it: %w", s.refs, verbs.ErrInUse)
	}
	s.close()
	return nil
}

func (s *sharedReceiveQueue) close() {
	s.closed = true
	s.pd.refs--
	s.pd.device.mu.receiveQueues--
}

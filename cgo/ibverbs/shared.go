//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"fmt"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
)

type sharedReceiveQueue struct {
	pd    *protectionDomain
	key   uint64 // its address in libibverbs
	refs  int    // guarded by the device's lock
	maxWR int

	mu    sync.Mutex
	c     *C.struct_ibv_srq // nil when closed
	posts receives
}

// CreateSRQ implements [verbs.PD].
func (p *protectionDomain) CreateSRQ(init verbs.SRQInit) (verbs.SRQ, error) {
	const op = "create shared receive queue"
	d := p.device
	if d.attr.MaxSRQ == 0 {
		return nil, fmt.Errorf("%s: device %s has no shared receive queues: %w", op, d.info.Name, verbs.ErrNotSupported)
	}
	if init.XRCDomain != nil {
		return nil, fmt.Errorf("%s: device %s: XRC is on software devices only: %w", op, d.info.Name, verbs.ErrNotSupported)
	}
	if init.MaxWR < 1 || init.MaxWR > d.attr.MaxSRQWR {
		return nil, fmt.Errorf("%s: %d receives; give 1 to %d: %w", op, init.MaxWR, d.attr.MaxSRQWR, verbs.ErrLimit)
	}
	if init.MaxSGE < 0 || init.MaxSGE > d.attr.MaxSRQSGE {
		return nil, fmt.Errorf("%s: %d scatter-gather entries; at most %d are possible: %w", op, init.MaxSGE, d.attr.MaxSRQSGE, verbs.ErrLimit)
	}
	if err := p.use(op); err != nil {
		return nil, err
	}
	entries := max(init.MaxSGE, 1)
	c, err := C.vb_create_srq(p.c, C.uint32_t(init.MaxWR), C.uint32_t(entries))
	if c == nil {
		p.release()
		return nil, verbError("ibv_create_srq", fmt.Sprintf("%d receives of %d entries on %s", init.MaxWR, entries, d.info.Name), err)
	}
	s := &sharedReceiveQueue{pd: p, c: c, key: addressOf(c), maxWR: init.MaxWR, posts: newReceives(init.MaxWR, entries)}
	add(d, d.shared, s.key, s)
	return s, nil
}

func (s *sharedReceiveQueue) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		return 0, s.pd.device.closedError("post to shared receive queue")
	}
	n, err := s.posts.post(wrs, nil, s.c)
	if err != nil {
		return n, fmt.Errorf("post receive %d of %d to shared receive queue of %s: %w", n+1, len(wrs), s.pd.device.info.Name, err)
	}
	return n, nil
}

func (s *sharedReceiveQueue) SetLimit(limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		return s.pd.device.closedError("set limit of shared receive queue")
	}
	if limit < 0 || limit > s.maxWR {
		return fmt.Errorf("set limit of shared receive queue to %d: give 0 to %d: %w", limit, s.maxWR, verbs.ErrInvalid)
	}
	return checkErrno("ibv_modify_srq", fmt.Sprintf("limit %d on %s", limit, s.pd.device.info.Name), C.vb_limit_srq(s.c, C.uint32_t(limit)))
}

func (s *sharedReceiveQueue) Close() error {
	d := s.pd.device
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		return nil
	}
	if err := remove(d, d.shared, s.key, &s.refs, "shared receive queue"); err != nil {
		return err
	}
	if err := d.checkDestroyed("ibv_destroy_srq", "a shared receive queue of "+d.info.Name, C.vb_destroy_srq(s.c)); err != nil {
		add(d, d.shared, s.key, s) // the program can try again
		return err
	}
	s.c = nil
	s.posts.free()
	s.pd.release()
	return nil
}

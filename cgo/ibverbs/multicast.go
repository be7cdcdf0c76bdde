//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// AttachMulticast implements [verbs.MulticastQP].
func (q *queuePair) AttachMulticast(group verbs.GID, lid uint16) error {
	return q.multicast("attach", group, func(gid *C.union_ibv_gid) error {
		return checkErrno("ibv_attach_mcast", "", C.vb_attach_mcast(q.c, gid, C.uint16_t(lid)))
	})
}

// DetachMulticast implements [verbs.MulticastQP].
func (q *queuePair) DetachMulticast(group verbs.GID, lid uint16) error {
	return q.multicast("detach", group, func(gid *C.union_ibv_gid) error {
		return q.pd.device.checkDestroyed("ibv_detach_mcast", "", C.vb_detach_mcast(q.c, gid, C.uint16_t(lid)))
	})
}

func (q *queuePair) multicast(op string, group verbs.GID, call func(*C.union_ibv_gid) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	op = fmt.Sprintf("%s queue pair %#x of %s, group %v", op, q.num, q.pd.device.info.Name, group.Addr())
	if err := q.open(op); err != nil {
		return err
	}
	switch {
	case q.init.Type != verbs.UD:
		return fmt.Errorf("%s: its transport service is %v; only UD has multicast groups: %w", op, q.init.Type, verbs.ErrInvalid)
	case group != (verbs.GID{}) && !group.Addr().IsMulticast():
		return fmt.Errorf("%s: the GID is not a multicast group: %w", op, verbs.ErrInvalid)
	}
	gid := C.union_ibv_gid(group)
	if err := call(&gid); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

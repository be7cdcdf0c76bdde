package faultydevice

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// RefuseError makes changes of queue pairs to the state Error return err, without any change.
func (d *Device) RefuseError(err error) {
	d.Set(func(h *Hooks) {
		next := h.modify()
		h.Modify = func(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
			if attr.State == verbs.QPError && mask&verbs.QPAttrState != 0 {
				return err
			}
			return next(qp, attr, mask)
		}
	})
}

// modify returns the hook for Modify or, without one, the call that it replaces.
func (h *Hooks) modify() func(verbs.QP, verbs.QPAttr, verbs.QPAttrMask) error {
	if h.Modify != nil {
		return h.Modify
	}
	return verbs.QP.Modify
}

// Hang makes the device report no completions, and ignore changes of queue pairs to the state
// Error while reporting success, as mlx5 does after an internal error.
func (d *Device) Hang() {
	d.RefuseError(nil)
	d.WithholdCompletions()
}

// WithholdCompletions makes the completion queues look empty. They keep their completions
// until the hooks of Poll and Arm are removed.
func (d *Device) WithholdCompletions() {
	d.Set(func(h *Hooks) {
		h.Poll = func(verbs.CQ, []verbs.WC) (int, error) { return 0, nil }
		h.Arm = func(verbs.CQ, bool) (bool, error) { return true, nil }
	})
}

// NoSharedReceiveQueues makes the device support none, as some RoCE adapters do.
func (d *Device) NoSharedReceiveQueues() {
	d.Set(func(h *Hooks) {
		h.query(func(a *verbs.DeviceAttr) { a.MaxSRQ, a.MaxSRQWR, a.MaxSRQSGE = 0, 0, 0 })
		h.CreateSRQ = func(*verbs.SRQInit) error {
			return fmt.Errorf("create a shared receive queue: %w", verbs.ErrNotSupported)
		}
	})
}

// Neighbours adds the resolution of peers' addresses that the kernel does for adapters: in the
// change of a reliable connection's queue pair from Init to RTR, and in the creation of an
// address handle. resolve may block. To fail like the kernel, it returns ErrDown.
func (d *Device) Neighbours(resolve func(verbs.AddressAttr) error) {
	d.Set(func(h *Hooks) {
		next, create := h.modify(), h.CreateAH
		h.Modify = func(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
			if attr.State == verbs.QPReadyToReceive && mask&verbs.QPAttrAddress != 0 {
				if err := resolve(attr.Address); err != nil {
					return err
				}
			}
			return next(qp, attr, mask)
		}
		h.CreateAH = func(a *verbs.AddressAttr) error {
			if err := resolve(*a); err != nil || create == nil {
				return err
			}
			return create(a)
		}
	})
}

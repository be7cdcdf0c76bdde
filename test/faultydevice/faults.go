package faultydevice

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// RefuseError has changes of queue pairs to the state Error fail.
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

// modify is the hook of Modify, or what stands in for one.
func (h *Hooks) modify() func(verbs.QP, verbs.QPAttr, verbs.QPAttrMask) error {
	if h.Modify != nil {
		return h.Modify
	}
	return verbs.QP.Modify
}

// Mute has the device give no completions, and say yes to the change of a queue pair to Error
// without doing it, as mlx5 does in internal error.
func (d *Device) Mute() {
	d.RefuseError(nil)
	d.WithholdCompletions()
}

// WithholdCompletions has the completion queues look empty. They keep what comes, for when the
// hooks of Poll and Arm are removed.
func (d *Device) WithholdCompletions() {
	d.Set(func(h *Hooks) {
		h.Poll = func(verbs.CQ, []verbs.WC) (int, error) { return 0, nil }
		h.Arm = func(verbs.CQ, bool) (bool, error) { return true, nil }
	})
}

// RefuseDestroy has queue pairs and shared receive queues not be destroyed. Without that, an
// error that matches verbs.ErrNoDevice is of a device that is gone.
func (d *Device) RefuseDestroy(err error) {
	d.Set(func(h *Hooks) {
		h.DestroyQP = func(verbs.QP) error { return err }
		h.DestroySRQ = func(verbs.SRQ) error { return err }
	})
}

// NoSharedReceiveQueues has the device have none, as some RoCE adapters do.
func (d *Device) NoSharedReceiveQueues() {
	d.Set(func(h *Hooks) {
		h.query(func(a *verbs.DeviceAttr) { a.MaxSRQ, a.MaxSRQWR, a.MaxSRQSGE = 0, 0, 0 })
		h.CreateSRQ = func(*verbs.SRQInit) error {
			return fmt.Errorf("create a shared receive queue: %w", verbs.ErrNotSupported)
		}
	})
}

// Neighbours has the kernel resolve peers' addresses as it does for adapters: in the change of a
// reliable connection's queue pair from Init to RTR, and in the creation of an address handle.
// resolve may block, and fails as the kernel does with ErrDown.
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

package faultydevice

import "github.com/verbena-rdma/verbena/verbs"

// query adds to what changes the answer to Query.
func (h *Hooks) query(change func(*verbs.DeviceAttr)) {
	next := h.Query
	h.Query = func(a *verbs.DeviceAttr) error {
		change(a)
		if next != nil {
			return next(a)
		}
		return nil
	}
}

// KernelCM has the connection manager take path MTUs from the network interface, as the
// kernel's does.
func (d *Device) KernelCM() {
	d.Set(func(h *Hooks) {
		h.query(func(a *verbs.DeviceAttr) { a.CMPathMTU = false })
		h.Dial = func(p *verbs.CMDial) { p.MTU = 0 }
		h.Listen = func(p *verbs.CMListen) { p.MTU = 0 }
	})
}

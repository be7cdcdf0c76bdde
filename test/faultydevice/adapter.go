package faultydevice

import "github.com/verbena-rdma/verbena/verbs"

// query adds a change of the attributes that Query returns.
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

// InfiniBand makes the port one of InfiniBand, with a LID. Its GID table has no IP addresses:
// those of IPoIB are the addresses of the software device.
func (d *Device) InfiniBand(lid uint16) {
	d.Set(func(h *Hooks) {
		h.QueryPort = func(p *verbs.PortAttr) error {
			p.LinkLayer, p.LID = verbs.LinkInfiniBand, lid
			return nil
		}
		h.GIDs = func(list []verbs.GIDEntry) ([]verbs.GIDEntry, error) {
			gid := verbs.GID{0: 0xfe, 1: 0x80, 14: byte(lid >> 8), 15: byte(lid)}
			return []verbs.GIDEntry{{GID: gid, Type: verbs.GIDInfiniBand}}, nil
		}
	})
}

// KernelCM makes the connection manager take path MTUs from the network interface, as the
// kernel's does.
func (d *Device) KernelCM() {
	d.Set(func(h *Hooks) {
		h.query(func(a *verbs.DeviceAttr) { a.CMPathMTU = false })
		h.Dial = func(p *verbs.CMDial) { p.MTU = 0 }
		h.Listen = func(p *verbs.CMListen) { p.MTU = 0 }
	})
}

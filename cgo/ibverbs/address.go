//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

type addressHandle struct {
	pd *protectionDomain
	c  *C.struct_ibv_ah // nil when closed; guarded by the device's handles lock
}

// numberedHandle is an address handle with a number, by which receive completions name it.
type numberedHandle struct {
	*addressHandle
	number uint16
}

func (h numberedHandle) Number() uint16 { return h.number }

// handleOf returns nil if ah is not an address handle of this driver.
func handleOf(ah verbs.AH) *addressHandle {
	switch ah := ah.(type) {
	case *addressHandle:
		return ah
	case numberedHandle:
		return ah.addressHandle
	}
	return nil
}

// CreateAH implements [verbs.PD].
func (p *protectionDomain) CreateAH(attr verbs.AddressAttr) (verbs.AH, error) {
	const op = "create address handle"
	if err := p.use(op); err != nil {
		return nil, err
	}
	to, err := p.device.address(attr, 1)
	if err != nil {
		p.release()
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	c, err := C.vb_create_ah(p.c, &to)
	if c == nil {
		p.release()
		return nil, asResolutionError(verbError("ibv_create_ah", fmt.Sprintf("the address %v from GID index %d of %s", attr.DGID.Addr(), attr.SGIDIndex, p.device.info.Name), err))
	}
	ah := &addressHandle{pd: p, c: c}
	if p.device.efa == nil {
		return ah, nil
	}
	number, err := p.device.handleNumber(c)
	if err != nil {
		_ = ah.Close()
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return numberedHandle{ah, number}, nil
}

func (a *addressHandle) Close() error {
	d := a.pd.device
	d.handles.Lock()
	defer d.handles.Unlock()
	if a.c == nil {
		return nil
	}
	if err := d.checkDestroyed("ibv_destroy_ah", "an address handle of "+d.info.Name, C.vb_destroy_ah(a.c)); err != nil {
		return err
	}
	a.c = nil
	a.pd.release()
	return nil
}

const (
	defaultHopLimit = 64
	maxFlowLabel    = 1<<20 - 1
)

// address checks an address vector and converts it to libibverbs' form. port is used if
// a.Port is zero.
func (d *device) address(a verbs.AddressAttr, port int) (to C.struct_ibv_ah_attr, err error) {
	if a.Port != 0 {
		port = a.Port
	}
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), verbs.ErrInvalid)
	}
	if a.UDPPort != 0 && a.UDPPort != roceV2Port {
		return to, invalid("UDPPort is %d: adapters send to %d only; let the software device listen there", a.UDPPort, roceV2Port)
	}
	if a.FlowLabel > maxFlowLabel {
		return to, invalid("FlowLabel is %#x; it must fit into 20 bits", a.FlowLabel)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		return to, d.closedError("use address")
	}
	p, err := d.portAttr(port)
	if err != nil {
		return to, err
	}
	global := p.link_layer == C.IBV_LINK_LAYER_ETHERNET || a.DGID != verbs.GID{}
	if global {
		if err := d.checkGID(port, a); err != nil {
			return to, err
		}
		to.is_global = 1
	}
	*(*[16]byte)(unsafe.Pointer(&to.grh.dgid)) = a.DGID
	to.grh.sgid_index = C.uint8_t(a.SGIDIndex)
	to.grh.hop_limit = C.uint8_t(a.HopLimit)
	if a.HopLimit == 0 {
		to.grh.hop_limit = defaultHopLimit
		if a.DGID.Addr().IsMulticast() {
			to.grh.hop_limit = 1
		}
	}
	to.grh.traffic_class = C.uint8_t(a.TrafficClass)
	to.grh.flow_label = C.uint32_t(a.FlowLabel)
	to.dlid, to.sl, to.port_num = C.uint16_t(a.DLID), C.uint8_t(a.SL), C.uint8_t(port)
	return to, nil
}

// checkGID refuses a source GID that is not in the table, or cannot reach the peer. The error
// lists the GIDs that can.
func (d *device) checkGID(port int, a verbs.AddressAttr) error {
	table, err := d.gids(port)
	if err != nil {
		return err
	}
	reaches := func(e verbs.GIDEntry) bool {
		return e.Type == verbs.GIDInfiniBand || e.GID.Addr().Is4() == a.DGID.Addr().Is4()
	}
	at := slices.IndexFunc(table, func(e verbs.GIDEntry) bool { return e.Index == a.SGIDIndex })
	if at >= 0 && reaches(table[at]) && a.SGIDIndex <= 0xff {
		return nil
	}
	why := "it is empty"
	if at >= 0 {
		why = fmt.Sprintf("its GID %v does not have the peer's address family", table[at].GID.Addr())
	}
	var right []string
	for _, e := range table {
		if reaches(e) {
			right = append(right, fmt.Sprintf("%d (%v, %v, %s)", e.Index, e.GID.Addr(), e.Type, e.Interface))
		}
	}
	return fmt.Errorf("GID index %d of port %d of %s cannot be used for the peer %v: %s; these can: %s: %w",
		a.SGIDIndex, port, d.info.Name, a.DGID.Addr(), why, strings.Join(right, ", "), verbs.ErrInvalid)
}

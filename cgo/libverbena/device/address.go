//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/verbs"
)

type addressHandle struct {
	verbs.AH
	context *deviceContext
}

var addressHandles table[addressHandle]

func (a *addressHandle) close() error          { return a.Close() }
func (a *addressHandle) owner() *deviceContext { return a.context }

// addressOf converts an address. Like adapters, it takes the 20 bits of the flow label that
// packets have: UCX sets more.
func addressOf(attr *C.struct_ibv_ah_attr) (verbs.AddressAttr, error) {
	if attr.is_global == 0 {
		return verbs.AddressAttr{}, errNotGlobal
	}
	if attr.port_num == 0 {
		return verbs.AddressAttr{}, errNoPort
	}
	a := abi.Address(unsafe.Pointer(attr))
	a.FlowLabel &= C.IB_GRH_FLOWLABEL_MASK
	if a.DLID = 0; attr.static_rate == C.VD_HAS_UDP_PORT {
		a.UDPPort = uint16(attr.dlid)
	}
	return a, nil
}

var (
	errNotGlobal = fmt.Errorf("is_global is 0 in the address, and RoCE needs a GRH: %w", verbs.ErrInvalid)
	errNoPort    = fmt.Errorf("port_num is 0 in the address, and ports are counted from 1: %w", verbs.ErrInvalid)
)

//export vd_create_ah
func vd_create_ah(pd C.uint32_t, attr *C.struct_ibv_ah_attr, handle *C.uint32_t) C.int {
	p := domains.get(uint32(pd))
	if p == nil {
		return noSuch
	}
	address, err := addressOf(attr)
	if err != nil {
		return errnoOf(err)
	}
	v, err := p.CreateAH(address)
	if err != nil {
		return errnoOf(err)
	}
	return register(C.VD_AH, &addressHandles, &addressHandle{v, p.context}, handle)
}

func copyAddress(to *C.struct_ibv_ah_attr, from *verbs.AddressAttr) {
	if from.DGID == (verbs.GID{}) {
		return // not set yet
	}
	*(*verbs.GID)(unsafe.Pointer(&to.grh.dgid)) = from.DGID
	to.grh.flow_label, to.grh.sgid_index = C.uint32_t(from.FlowLabel), C.uint8_t(from.SGIDIndex)
	to.grh.hop_limit, to.grh.traffic_class = C.uint8_t(from.HopLimit), C.uint8_t(from.TrafficClass)
	to.sl, to.is_global, to.port_num = C.uint8_t(from.SL), 1, C.uint8_t(from.Port)
	if from.UDPPort != 0 {
		to.dlid, to.static_rate = C.uint16_t(from.UDPPort), C.VD_HAS_UDP_PORT
	}
}

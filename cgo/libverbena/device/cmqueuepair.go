//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"fmt"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/verbs"
)

// udpQKey is the Q_Key of RDMA_PS_UDP.
const udpQKey = C.RDMA_UDP_QKEY

// attr returns the arguments of Modify that move a queue pair to a state (rdma_init_qp_attr(3)).
func (id *cmID) attr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	if id.device == nil {
		return verbs.QPAttr{}, 0, errCMState("attributes of a queue pair")
	}
	if id.conn == nil {
		return id.attrBeforeConnect(to)
	}
	attr, mask, err := id.conn.Attr(to)
	if mask&verbs.QPAttrAddress != 0 && id.tos != 0 {
		attr.Address.TrafficClass = id.tos
	}
	if mask&verbs.QPAttrTimeout != 0 && id.ackTimeout >= 0 {
		attr.Timeout = uint8(id.ackTimeout)
	}
	return attr, mask, err
}

func (id *cmID) attrBeforeConnect(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	attr, mask := verbs.QPAttr{State: to}, verbs.QPAttrState
	switch {
	case to == verbs.QPInitialized:
		attr.Port = cmPort
		mask |= verbs.QPAttrPKeyIndex | verbs.QPAttrPort
		if id.kind == verbs.UD {
			attr.QKey = udpQKey
			mask |= verbs.QPAttrQKey
		} else {
			mask |= verbs.QPAttrAccess // none, before the peer is known
		}
	case id.kind != verbs.UD:
		return attr, 0, errCMState("attributes of a queue pair for the states RTR and RTS")
	case to == verbs.QPReadyToReceive:
	case to == verbs.QPReadyToSend:
		mask |= verbs.QPAttrSQPSN
	default:
		return attr, 0, fmt.Errorf("attributes of a queue pair for %v: the state must be INIT, RTR or RTS: %w", to, verbs.ErrInvalid)
	}
	return attr, mask, nil
}

//export vd_cm_qp_attr
func vd_cm_qp_attr(handle C.uint32_t, state C.enum_ibv_qp_state, to *C.struct_ibv_qp_attr, flags *C.int) C.int {
	return onID(handle, func(id *cmID) error {
		attr, mask, err := id.attr(verbs.QPState(state))
		if err != nil {
			return err
		}
		copyAttr(to, &attr)
		*flags = C.int(abi.MaskFlags(mask))
		return nil
	})
}

//export vd_cm_modify_qp
func vd_cm_modify_qp(handle, qp C.uint32_t, state C.enum_ibv_qp_state, responderResources, initiatorDepth C.uint8_t) C.int {
	q := queuePairs.get(uint32(qp))
	if q == nil {
		return noSuch
	}
	return onID(handle, func(id *cmID) error {
		attr, mask, err := id.attr(verbs.QPState(state))
		if err != nil {
			return err
		}
		attr.MaxDestReadAtomic = min(attr.MaxDestReadAtomic, int(responderResources))
		attr.MaxInitReadAtomic = min(attr.MaxInitReadAtomic, int(initiatorDepth))
		if err = q.Modify(attr, mask); err != nil {
			return err
		}
		id.mu.Lock()
		defer id.mu.Unlock()
		id.received = q.received
		return nil
	})
}

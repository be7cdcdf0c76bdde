//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"fmt"
	"strings"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/verbs"
)

// Modify implements [verbs.QP].
func (q *queuePair) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.open("modify"); err != nil {
		return err
	}
	var c C.struct_ibv_qp_attr
	c.qp_state = C.enum_ibv_qp_state(attr.State)
	c.pkey_index = C.uint16_t(attr.PKeyIndex)
	c.port_num = C.uint8_t(attr.Port)
	c.qp_access_flags = C.uint(abi.AccessFlags(attr.Access))
	c.qkey = C.uint32_t(attr.QKey)
	c.path_mtu = C.enum_ibv_mtu(abi.MTUCode(attr.PathMTU))
	c.timeout, c.retry_cnt, c.rnr_retry = C.uint8_t(attr.Timeout), C.uint8_t(attr.RetryCount), C.uint8_t(attr.RNRRetry)
	c.min_rnr_timer = C.uint8_t(attr.MinRNRTimer)
	c.rq_psn, c.sq_psn, c.dest_qp_num = C.uint32_t(attr.RQPSN), C.uint32_t(attr.SQPSN), C.uint32_t(attr.DestQPN)
	c.max_rd_atomic, c.max_dest_rd_atomic = C.uint8_t(attr.MaxInitReadAtomic), C.uint8_t(attr.MaxDestReadAtomic)
	if err := q.checkRange(&attr, mask); err != nil {
		return q.modifyError(&attr, mask, 0, err)
	}
	if mask&verbs.QPAttrAddress != 0 {
		var err error
		if c.ah_attr, err = q.pd.device.address(attr.Address, q.port); err != nil {
			return q.modifyError(&attr, mask, 0, fmt.Errorf("attribute Address: %w", err))
		}
	}
	if errno := syscall.Errno(C.vb_modify_qp(q.c, &c, C.int(abi.MaskFlags(mask)))); errno != 0 {
		return q.modifyError(&attr, mask, errno, q.findFault(&attr, mask))
	}
	if mask&verbs.QPAttrState != 0 {
		q.state = attr.State
	}
	if mask&verbs.QPAttrPort != 0 {
		q.port = attr.Port
		if q.init.Type == verbs.UD {
			q.recvCQ.setLIDs(q.num, q.pd.device.onInfiniBand(q.port))
		}
	}
	return nil
}

// checkRange refuses values that libibverbs' types would truncate, and attributes that package
// verbs does not have. libibverbs would never see either of them.
func (q *queuePair) checkRange(a *verbs.QPAttr, mask verbs.QPAttrMask) error {
	for _, f := range [...]struct {
		mask        verbs.QPAttrMask
		value, most int
	}{
		{verbs.QPAttrPKeyIndex, a.PKeyIndex, 0xffff}, {verbs.QPAttrPort, a.Port, 0xff},
		{verbs.QPAttrMaxInitReadAtomic, a.MaxInitReadAtomic, min(q.pd.device.attr.MaxInitReadAtomic, 0xff)},
		{verbs.QPAttrMaxDestReadAtomic, a.MaxDestReadAtomic, min(q.pd.device.attr.MaxQPReadAtomic, 0xff)},
	} {
		if mask&f.mask != 0 && (f.value < 0 || f.value > f.most) {
			return fmt.Errorf("attribute %s is %d; it must be from 0 to %d", rules.AttributeName(f.mask), f.value, f.most)
		}
	}
	return rules.CheckAttributes(a, mask)
}

// findFault returns an error that names the attribute for which the device refused a change, or
// nil if that is not known. Devices do not report the attribute.
func (q *queuePair) findFault(a *verbs.QPAttr, mask verbs.QPAttrMask) error {
	d := q.pd.device
	var now C.struct_ibv_qp_attr
	var init C.struct_ibv_qp_init_attr
	if C.vb_query_qp(q.c, &now, &init) == 0 {
		q.state = verbs.QPState(now.qp_state)
	}
	err := rules.CheckTransition(q.init.Type, q.state, a, mask, rules.Limits{
		Ports: d.attr.Ports, InitReadAtomic: d.attr.MaxInitReadAtomic, DestReadAtomic: d.attr.MaxQPReadAtomic,
	})
	if err != nil {
		return err
	}
	if mask&verbs.QPAttrPathMTU != 0 {
		if port, err := d.QueryPort(q.port); err == nil && a.PathMTU > port.ActiveMTU {
			return fmt.Errorf("attribute PathMTU is %d, but the active MTU of port %d is %d", a.PathMTU, q.port, port.ActiveMTU)
		}
	}
	return nil
}

// modifyError returns the error of a refused change. It names the attribute at fault, if known.
func (q *queuePair) modifyError(a *verbs.QPAttr, mask verbs.QPAttrMask, errno syscall.Errno, fault error) error {
	to := q.state
	if mask&verbs.QPAttrState != 0 {
		to = a.State
	}
	e := &Error{
		Verb:    "ibv_modify_qp",
		Request: fmt.Sprintf("queue pair %#x of %s, %v to %v", q.num, q.pd.device.info.Name, q.state, to),
		Errno:   errno, Kind: kindOf(errno), Detail: adviceFor(errno),
	}
	if mask&verbs.QPAttrAddress != 0 {
		e = asResolutionError(e)
	}
	switch {
	case fault != nil:
		e.Detail, e.Kind = fault.Error(), verbs.ErrInvalid
	case e.Detail == "":
		e.Detail = "the device rejected the value of one of these attributes: " + strings.Join(attrNames(mask), ", ")
	}
	return e
}

func attrNames(mask verbs.QPAttrMask) []string {
	var names []string
	for _, b := range abi.MaskBits {
		if mask&b.Attr != 0 && b.Attr != verbs.QPAttrState {
			names = append(names, rules.AttributeName(b.Attr))
		}
	}
	return names
}

// Query implements [verbs.QP].
func (q *queuePair) Query() (verbs.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.open("query"); err != nil {
		return verbs.QPAttr{}, err
	}
	var a C.struct_ibv_qp_attr
	var init C.struct_ibv_qp_init_attr
	if err := checkErrno("ibv_query_qp", fmt.Sprintf("queue pair %#x of %s", q.num, q.pd.device.info.Name), C.vb_query_qp(q.c, &a, &init)); err != nil {
		return verbs.QPAttr{}, err
	}
	return abi.QPAttr(unsafe.Pointer(&a)), nil
}

//go:build linux && cgo && verbs

package abi

// #include <infiniband/verbs.h>
import "C"

import (
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

// MTU returns the path MTU for a code, from 1 for 256 bytes to 5 for 4096; zero for other codes.
func MTU(code uint32) verbs.MTU {
	if code < C.IBV_MTU_256 || code > C.IBV_MTU_4096 {
		return 0
	}
	return 128 << code
}

// MTUCode returns the code of a path MTU; zero for an invalid one.
func MTUCode(mtu verbs.MTU) uint32 {
	for code := uint32(C.IBV_MTU_256); code <= C.IBV_MTU_4096; code++ {
		if MTU(code) == mtu {
			return code
		}
	}
	return 0
}

// bit is a bit of package verbs, and libibverbs' bit of the same meaning.
type bit[A ~uint32, F int32 | uint32] struct {
	Attr A
	Flag F
}

func toFlags[A ~uint32, F int32 | uint32](bits []bit[A, F], a A) (flags F) {
	for _, b := range bits {
		if a&b.Attr != 0 {
			flags |= b.Flag
		}
	}
	return flags
}

func fromFlags[A ~uint32, F int32 | uint32](bits []bit[A, F], flags F) (a A) {
	for _, b := range bits {
		if flags&b.Flag != 0 {
			a |= b.Attr
		}
	}
	return a
}

var accessBits = []bit[verbs.Access, uint32]{
	{verbs.AccessLocalWrite, C.IBV_ACCESS_LOCAL_WRITE},
	{verbs.AccessRemoteWrite, C.IBV_ACCESS_REMOTE_WRITE},
	{verbs.AccessRemoteRead, C.IBV_ACCESS_REMOTE_READ},
	{verbs.AccessRemoteAtomic, C.IBV_ACCESS_REMOTE_ATOMIC},
	{verbs.AccessRelaxedOrdering, C.IBV_ACCESS_RELAXED_ORDERING},
	{verbs.AccessMWBind, C.IBV_ACCESS_MW_BIND},
	{verbs.AccessZeroBased, C.IBV_ACCESS_ZERO_BASED},
}

// AccessFlags converts access rights to IBV_ACCESS_... flags.
func AccessFlags(a verbs.Access) uint32 { return toFlags(accessBits, a) }

// Access converts IBV_ACCESS_... flags to access rights. It drops flags that package verbs does
// not have.
func Access(flags uint32) verbs.Access { return fromFlags(accessBits, flags) }

// MaskBits are the attributes of a queue pair that both package verbs and libibverbs have.
var MaskBits = []bit[verbs.QPAttrMask, int32]{
	{verbs.QPAttrState, C.IBV_QP_STATE}, {verbs.QPAttrPKeyIndex, C.IBV_QP_PKEY_INDEX},
	{verbs.QPAttrPort, C.IBV_QP_PORT}, {verbs.QPAttrAccess, C.IBV_QP_ACCESS_FLAGS},
	{verbs.QPAttrQKey, C.IBV_QP_QKEY}, {verbs.QPAttrAddress, C.IBV_QP_AV},
	{verbs.QPAttrPathMTU, C.IBV_QP_PATH_MTU}, {verbs.QPAttrTimeout, C.IBV_QP_TIMEOUT},
	{verbs.QPAttrRetryCount, C.IBV_QP_RETRY_CNT}, {verbs.QPAttrRNRRetry, C.IBV_QP_RNR_RETRY},
	{verbs.QPAttrRQPSN, C.IBV_QP_RQ_PSN}, {verbs.QPAttrMaxInitReadAtomic, C.IBV_QP_MAX_QP_RD_ATOMIC},
	{verbs.QPAttrMaxDestReadAtomic, C.IBV_QP_MAX_DEST_RD_ATOMIC},
	{verbs.QPAttrMinRNRTimer, C.IBV_QP_MIN_RNR_TIMER}, {verbs.QPAttrSQPSN, C.IBV_QP_SQ_PSN},
	{verbs.QPAttrDestQPN, C.IBV_QP_DEST_QPN},
}

// MaskFlags converts a mask to IBV_QP_... flags.
func MaskFlags(mask verbs.QPAttrMask) int32 { return toFlags(MaskBits, mask) }

// Mask converts IBV_QP_... flags to a mask. It drops flags that package verbs does not have.
func Mask(flags int32) verbs.QPAttrMask { return fromFlags(MaskBits, flags) }

// QPAttr converts a struct ibv_qp_attr to package verbs' form.
func QPAttr(attr unsafe.Pointer) verbs.QPAttr {
	a := (*C.struct_ibv_qp_attr)(attr)
	return verbs.QPAttr{
		State: verbs.QPState(a.qp_state), PKeyIndex: int(a.pkey_index), Port: int(a.port_num),
		Access: Access(uint32(a.qp_access_flags)), QKey: uint32(a.qkey),
		Address: Address(unsafe.Pointer(&a.ah_attr)), PathMTU: MTU(uint32(a.path_mtu)),
		Timeout: uint8(a.timeout), RetryCount: uint8(a.retry_cnt), RNRRetry: uint8(a.rnr_retry),
		MinRNRTimer: uint8(a.min_rnr_timer),
		RQPSN:       uint32(a.rq_psn), SQPSN: uint32(a.sq_psn), DestQPN: uint32(a.dest_qp_num),
		MaxInitReadAtomic: int(a.max_rd_atomic), MaxDestReadAtomic: int(a.max_dest_rd_atomic),
	}
}

// Address converts a struct ibv_ah_attr to package verbs' form.
func Address(attr unsafe.Pointer) verbs.AddressAttr {
	a := (*C.struct_ibv_ah_attr)(attr)
	return verbs.AddressAttr{
		DGID:      *(*verbs.GID)(unsafe.Pointer(&a.grh.dgid)),
		SGIDIndex: int(a.grh.sgid_index), Port: int(a.port_num),
		SL: uint8(a.sl), HopLimit: uint8(a.grh.hop_limit),
		TrafficClass: uint8(a.grh.traffic_class), FlowLabel: uint32(a.grh.flow_label),
		DLID: uint16(a.dlid),
	}
}

// The members of the unions in struct ibv_send_wr, which cgo shows as bytes. AH, MW and MR point
// to structs of libibverbs.
type (
	RDMAArgs struct {
		RemoteAddr uint64
		RKey       uint32
	}
	AtomicArgs struct {
		RemoteAddr, CompareAdd, Swap uint64
		RKey                         uint32
	}
	DatagramArgs struct {
		AH        unsafe.Pointer
		QPN, QKey uint32
	}
	BindArgs struct {
		MW           unsafe.Pointer
		RKey         uint32
		MR           unsafe.Pointer
		Addr, Length uint64
		Access       uint32
	}
)

//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

const roceV2Port = 4791 // UDP, IBTA annex A17

func errnoOf(n int) error { return syscall.Errno(n) }

// The path MTU's codes are 1 for 256 bytes to 5 for 4096.
func mtuOf(code C.enum_ibv_mtu) verbs.MTU {
	if code < C.IBV_MTU_256 || code > C.IBV_MTU_4096 {
		return 0
	}
	return 128 << code
}

func codeOf(mtu verbs.MTU) C.enum_ibv_mtu {
	for code := C.enum_ibv_mtu(C.IBV_MTU_256); code <= C.IBV_MTU_4096; code++ {
		if mtuOf(code) == mtu {
			return code
		}
	}
	return 0
}

var accessBits = []struct {
	access verbs.Access
	flag   C.uint
}{
	{verbs.AccessLocalWrite, C.IBV_ACCESS_LOCAL_WRITE},
	{verbs.AccessRemoteWrite, C.IBV_ACCESS_REMOTE_WRITE},
	{verbs.AccessRemoteRead, C.IBV_ACCESS_REMOTE_READ},
	{verbs.AccessRemoteAtomic, C.IBV_ACCESS_REMOTE_ATOMIC},
	{verbs.AccessRelaxedOrdering, C.IBV_ACCESS_RELAXED_ORDERING},
}

func accessFlags(a verbs.Access) (flags C.uint) {
	for _, b := range accessBits {
		if a&b.access != 0 {
			flags |= b.flag
		}
	}
	return flags
}

func accessOf(flags C.uint) (a verbs.Access) {
	for _, b := range accessBits {
		if flags&b.flag != 0 {
			a |= b.access
		}
	}
	return a
}

var attrBits = []struct {
	attr verbs.QPAttrMask
	flag C.int
}{
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

func attrFlags(mask verbs.QPAttrMask) (flags C.int) {
	for _, b := range attrBits {
		if mask&b.attr != 0 {
			flags |= b.flag
		}
	}
	return flags
}

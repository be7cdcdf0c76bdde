//go:build linux && cgo && verbs

package efa

// #include "verbena_efa.h"
import "C"

import "github.com/verbena-rdma/verbena/verbs"

// VendorID is Amazon's vendor ID.
const VendorID = 0x1d0f

// Caps are the capabilities of a device that the library and the kernel's driver know
// (efadv_query_device(3)).
type Caps uint32

// The capabilities.
const (
	CapRead                 Caps = C.VB_EFA_CAP_RDMA_READ
	CapRNRRetry             Caps = C.VB_EFA_CAP_RNR_RETRY
	CapSourceGID            Caps = C.VB_EFA_CAP_CQ_WITH_SGID
	CapWrite                Caps = C.VB_EFA_CAP_RDMA_WRITE             // rdma-core 46
	CapUnsolicitedWriteRecv Caps = C.VB_EFA_CAP_UNSOLICITED_WRITE_RECV // rdma-core 52
)

// Attr has the attributes of a device.
type Attr struct {
	MaxSendWR, MaxRecvWR   int
	MaxSendSGE, MaxRecvSGE int
	MaxInline              int
	MaxRDMA                uint32
	Caps                   Caps
	// ExtendedCQ: the library makes extended completion queues (efadv_create_cq(3)).
	ExtendedCQ bool
}

// SRD returns the attributes of SRD on a port with messages of up to maxMessage bytes, and reads
// of up to readSGE scatter-gather entries.
func (a *Attr) SRD(maxMessage uint32, readSGE int) verbs.SRDAttr {
	s := verbs.SRDAttr{
		MaxSendWR: a.MaxSendWR, MaxRecvWR: a.MaxRecvWR, MaxSendSGE: a.MaxSendSGE, MaxRecvSGE: a.MaxRecvSGE,
		MaxInline: a.MaxInline, MaxMessage: maxMessage,
		Read: a.Caps&CapRead != 0, Write: a.Caps&CapWrite != 0,
		// Without a completion queue that marks unsolicited completions, they would be
		// mistaken for those of receives.
		UnsolicitedWriteRecv: a.Caps&CapUnsolicitedWriteRecv != 0 && a.ExtendedCQ,
		RNRRetry:             a.Caps&CapRNRRetry != 0,
	}
	if s.Read {
		s.MaxReadSGE = readSGE
	}
	if s.Read || s.Write {
		s.MaxRDMA = a.MaxRDMA
	}
	return s
}

// Fields returns the fields that a completion queue can have. Without CapSourceGID, the
// source of a message from a peer without an address handle stays unknown.
func (a *Attr) Fields() verbs.WCFields {
	if a.ExtendedCQ {
		return verbs.WCSource
	}
	return 0
}

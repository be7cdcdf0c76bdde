//go:build linux && cgo && verbs

package main

// #include "device.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

func (d *openDevice) isEFA() bool { return d.attr.VendorID == soft.EFAVendorID }

// maxMessage is the longest message that a port reports: of an EFA, the longest send.
func (d *openDevice) maxMessage() uint32 {
	if d.isEFA() {
		return d.attr.SRD.MaxMessage
	}
	return d.attr.MaxMessage
}

// partEFA is the part ID of an EFA of the second generation, the first with reads.
const partEFA = 0xefa1

// describeEFA stores what an EFA reports of itself. Its limits are those of queue pairs of any type.
func describeEFA(o *C.struct_ibv_device_attr, a *verbs.SRDAttr) {
	o.vendor_part_id = partEFA
	o.max_qp_wr = C.int(min(a.MaxSendWR, a.MaxRecvWR))
	o.max_sge, o.max_sge_rd = C.int(min(a.MaxSendSGE, a.MaxRecvSGE)), C.int(a.MaxReadSGE)
	o.atomic_cap = C.IBV_ATOMIC_NONE
}

//export vd_query_efa
func vd_query_efa(context C.uint32_t, to *C.struct_vd_efa_attr) C.int {
	c := contexts.get(uint32(context))
	if c == nil {
		return noSuch
	}
	a := &c.device.attr.SRD
	*to = C.struct_vd_efa_attr{
		max_send_wr: C.uint32_t(a.MaxSendWR), max_recv_wr: C.uint32_t(a.MaxRecvWR), max_rdma: C.uint32_t(a.MaxRDMA),
		max_send_sge: C.uint16_t(a.MaxSendSGE), max_recv_sge: C.uint16_t(a.MaxRecvSGE), max_inline: C.uint16_t(a.MaxInline),
	}
	return 0
}

//export vd_ah_number
func vd_ah_number(ah C.uint32_t, number *C.uint16_t) C.int {
	a := addressHandles.get(uint32(ah))
	if a == nil {
		return noSuch
	}
	*number = C.uint16_t(a.AH.(verbs.NumberedAH).Number())
	return 0
}

// fromSRD reports whether a completion is that of a message that came by SRD. On an EFA, others come
// by UD, and have a header.
func fromSRD(wc *verbs.WC) bool {
	return !wc.HasGRH && (wc.Opcode == verbs.WCRecv || wc.Opcode == verbs.WCRecvWriteImm)
}

// addSRD appends a request of an SRD queue pair to the batch. As with libefa, ibv_post_send has sends
// only: just the functions of ibv_wr_post(3) make requests with VD_SRD_REMOTE.
func (s *sends) addSRD(c *C.struct_ibv_send_wr) (err error) {
	const flags = C.IBV_SEND_SIGNALED | C.IBV_SEND_INLINE
	if c.send_flags&^flags != 0 {
		return fmt.Errorf("SRD does not have the send flags %#x: %w", c.send_flags&^flags, verbs.ErrInvalid)
	}
	op, ok := opcodeOf(c.opcode &^ C.VD_SRD_REMOTE)
	hasRemote := c.opcode&C.VD_SRD_REMOTE != 0
	if !ok || hasRemote == (op == verbs.OpSend || op == verbs.OpSendImm) {
		return fmt.Errorf("SRD does not have opcode %d here; ibv_post_send has sends only: %w", c.opcode, verbs.ErrInvalid)
	}
	wr := verbs.SendWR{ID: uint64(c.wr_id), Op: op, Flags: sendFlags(c.send_flags)}
	if wr.SGL, err = scatterGather(&s.entries, c.sg_list, c.num_sge, s.maxSGE); err != nil {
		return err
	}
	if err = addressed(&wr, (*abi.DatagramArgs)(unsafe.Pointer(&c.wr))); err != nil {
		return err
	}
	if hasRemote {
		remote := (*abi.BindArgs)(unsafe.Pointer(&c.anon1))
		wr.RKey, wr.RemoteAddr = remote.RKey, remote.Addr
	}
	wr.Imm = binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&c.anon0))[:])
	s.wrs, s.from = append(s.wrs, wr), append(s.from, c)
	return nil
}

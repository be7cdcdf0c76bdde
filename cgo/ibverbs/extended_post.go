//go:build linux && cgo && verbs

package ibverbs

// #cgo noescape vb_post_send_ex
// #cgo nocallback vb_post_send_ex
// #include "verbena_extended.h"
// #include "verbena_ibverbs.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

// extendedSends is the additional state for posting by ibv_wr_start (ibv_wr_post(3)). The
// device takes a batch whole or not at all. The requests of a refused batch are posted one by
// one, so that PostSend keeps its contract.
type extendedSends struct {
	poster       *C.struct_vb_poster
	destinations []C.struct_vb_destination // the destination of each request; nil: the queue pair is connected
	inline       int                       // the most inline data, in bytes
}

// postsExtended reports whether requests are posted by ibv_wr_start.
func (q *queuePair) postsExtended() bool { return q.init.Type == verbs.SRD || q.pd.device.extended }

// addressed reports whether each request names its destination.
func (q *queuePair) addressed() bool { return q.init.Type == verbs.UD || q.init.Type == verbs.SRD }

const (
	sendOps   = C.IBV_QP_EX_WITH_SEND | C.IBV_QP_EX_WITH_SEND_WITH_IMM
	writeOps  = C.IBV_QP_EX_WITH_RDMA_WRITE | C.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
	atomicOps = C.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | C.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
)

// sendOpsOf returns the operations of a queue pair of the service. Providers refuse to create a
// queue pair for operations that the device lacks.
func (d *device) sendOpsOf(t verbs.QPType) (ops C.uint64_t) {
	ops = sendOps
	switch t {
	case verbs.RC:
		ops |= writeOps | C.IBV_QP_EX_WITH_RDMA_READ
		if d.attr.Atomics {
			ops |= atomicOps
		}
		if d.attr.Invalidation {
			ops |= C.IBV_QP_EX_WITH_SEND_WITH_INV | C.IBV_QP_EX_WITH_LOCAL_INV
		}
		if d.attr.MWTypes.Has(verbs.MWType2) {
			ops |= C.IBV_QP_EX_WITH_BIND_MW
		}
	case verbs.UC:
		ops |= writeOps
		if d.attr.MWTypes.Has(verbs.MWType2) {
			ops |= C.IBV_QP_EX_WITH_BIND_MW
		}
	case verbs.SRD:
		if d.attr.SRD.Read {
			ops |= C.IBV_QP_EX_WITH_RDMA_READ
		}
		if d.attr.SRD.Write {
			ops |= writeOps
		}
	}
	return ops
}

// createExtended makes a queue pair for extended posting, and sets c.cap to the limits that the
// device has granted.
func (q *queuePair) createExtended(c *C.struct_ibv_qp_init_attr) (*C.struct_ibv_qp, error) {
	d := q.pd.device
	attr := C.struct_ibv_qp_init_attr_ex{
		send_cq: c.send_cq, recv_cq: c.recv_cq, srq: c.srq, cap: c.cap, qp_type: c.qp_type, sq_sig_all: c.sq_sig_all,
		comp_mask: C.IBV_QP_INIT_ATTR_PD | C.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, pd: q.pd.c, send_ops_flags: d.sendOpsOf(q.init.Type),
	}
	var pair *C.struct_ibv_qp
	var err error
	if q.init.Type == verbs.SRD {
		pair, err = q.createSRD(&attr)
	} else {
		pair, err = C.vb_create_qp_ex(d.ctx, &attr)
	}
	if pair == nil {
		return nil, err
	}
	if C.vb_qp_to_qp_ex(pair) == nil {
		C.vb_destroy_qp(pair)
		return nil, syscall.EOPNOTSUPP
	}
	c.cap = attr.cap
	return pair, nil
}

func newExtendedSends(q *queuePair, inline int) *extendedSends {
	e := &extendedSends{poster: &callocSlice[C.struct_vb_poster](1)[0], inline: inline}
	e.poster.qp = C.vb_qp_to_qp_ex(q.c)
	e.poster.gathered = &callocSlice[C.uint8_t](max(inline, 1))[0]
	if q.addressed() {
		e.destinations = callocSlice[C.struct_vb_destination](len(q.sends.wrs))
		e.poster.destinations = &e.destinations[0]
	}
	return e
}

func (e *extendedSends) free() {
	if e.destinations != nil {
		C.free(unsafe.Pointer(&e.destinations[0]))
	}
	C.free(unsafe.Pointer(e.poster.gathered))
	C.free(unsafe.Pointer(e.poster))
	*e = extendedSends{}
}

// check checks the nth request of the batch for faults that the provider would not name, and
// records its destination.
func (e *extendedSends) check(q *queuePair, n int, wr *verbs.SendWR) error {
	if wr.Flags&verbs.FlagInline != 0 {
		var bytes uint64
		for i := range wr.SGL {
			bytes += uint64(wr.SGL[i].Length)
		}
		if bytes > uint64(e.inline) {
			return fmt.Errorf("%d bytes of inline data; at most %d are allowed: %w", bytes, e.inline, verbs.ErrInvalid)
		}
	}
	if q.init.Type == verbs.SRD {
		if err := q.pd.device.checkSRD(wr); err != nil {
			return err
		}
	}
	if e.destinations == nil {
		return nil
	}
	ah, err := q.handle(wr)
	if err != nil {
		return err
	}
	e.destinations[n] = C.struct_vb_destination{ah: ah, qpn: C.uint32_t(wr.RemoteQPN), qkey: C.uint32_t(wr.RemoteQKey)}
	return nil
}

// post posts the requests in one call.
func (e *extendedSends) post(wrs []C.struct_ibv_send_wr) (int, error) {
	n, err := postResult("ibv_wr_complete", C.vb_post_send_ex(cAddress(e.poster), cAddress(&wrs[0]), C.int(len(wrs))), len(wrs))
	if refused, ok := errors.AsType[*Error](err); ok && refused.Errno == syscall.ENOSPC {
		// rxe's provider returns ENOSPC for a full queue; check excludes its other causes.
		refused.Kind = verbs.ErrQueueFull
	}
	return n, err
}

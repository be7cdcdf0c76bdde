//go:build linux && cgo && verbs

package ibverbs

// #cgo noescape vb_poll_cq_ex
// #cgo nocallback vb_poll_cq_ex
// #include "verbena_extended.h"
// #include "verbena_ibverbs.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

var _ verbs.ExtendedCQ = (*completionQueue)(nil)

// extendedQueue is the additional state of a completion queue that is polled by ibv_start_poll.
type extendedQueue struct {
	poller *C.struct_vb_poller
	extras []C.struct_vb_wc_extra // parallel to the batch
	fields verbs.WCFields
}

// wcFlags returns the flags for the fields of an ordinary WC. Providers of devices without LIDs
// may refuse to report LIDs, as irdma's does; EFA's reports address handles in their place.
func (d *device) wcFlags() C.uint64_t {
	flags := C.uint64_t(C.IBV_WC_EX_WITH_BYTE_LEN | C.IBV_WC_EX_WITH_IMM | C.IBV_WC_EX_WITH_QP_NUM | C.IBV_WC_EX_WITH_SRC_QP)
	if d.lids || d.efa != nil {
		flags |= C.IBV_WC_EX_WITH_SLID | C.IBV_WC_EX_WITH_SL
	}
	return flags
}

// rxeVendorID is the vendor ID of the kernel's software device.
const rxeVendorID = 0xffffff

// fieldFlags returns the flags of ibv_create_cq_ex for the fields.
func fieldFlags(fields verbs.WCFields) (flags C.uint64_t) {
	if fields&verbs.WCTimestamp != 0 {
		flags |= C.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
	}
	if fields&verbs.WCWallClock != 0 {
		flags |= C.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
	}
	return flags
}

// readClock finds out whether completions have timestamps, and the frequency of their clock.
func (d *device) readClock() {
	var mask, khz C.uint64_t
	C.vb_query_clock(d.ctx, &mask, &khz)
	if mask != 0 {
		d.attr.CompletionFields |= verbs.WCTimestamp
	}
	d.attr.ClockFrequency = uint64(khz) * 1000
}

// completionFields returns the fields that a queue can have. No verb reports whether wall-clock
// times are among them: the first call tries to create a queue with them. The device's lock is
// held.
func (d *device) completionFields() verbs.WCFields {
	if d.fieldsRead {
		return d.fields
	}
	d.fields, d.fieldsRead = d.attr.CompletionFields, true
	if d.fields&verbs.WCTimestamp != 0 {
		attr := C.struct_ibv_cq_init_attr_ex{cqe: 1, wc_flags: d.wcFlags() | fieldFlags(verbs.WCWallClock)}
		if cq, _ := C.vb_create_cq_ex(d.ctx, &attr); cq != nil {
			C.vb_destroy_cq((*C.struct_ibv_cq)(unsafe.Pointer(cq)))
			d.fields |= verbs.WCWallClock
		}
	}
	return d.fields
}

// needsExtendedCQ reports whether a queue with the fields has to be an extended one.
func (d *device) needsExtendedCQ(fields verbs.WCFields) bool {
	return fields != 0 || d.extended || d.efa != nil && d.efa.Attr().ExtendedCQ
}

// createExtended makes a queue that is polled by ibv_start_poll.
func (q *completionQueue) createExtended(capacity int, fields verbs.WCFields) error {
	d := q.device
	attr := C.struct_ibv_cq_init_attr_ex{
		cqe: C.uint32_t(capacity), channel: q.channel, wc_flags: d.wcFlags() | fieldFlags(fields),
		comp_vector: C.uint32_t(d.nextVector()),
	}
	poller := &callocSlice[C.struct_vb_poller](1)[0]
	poller.wc_flags = attr.wc_flags
	if d.attr.VendorID == rxeVendorID {
		poller.singly = 1
	}
	create := q.createGeneric
	if d.efa != nil {
		create = q.createEFA
	}
	if err := create(&attr, poller, fields); err != nil {
		C.free(unsafe.Pointer(poller))
		return err
	}
	q.setUp((*C.struct_ibv_cq)(unsafe.Pointer(poller.cq)), capacity) // ibv_cq_ex_to_cq
	q.extended = &extendedQueue{poller: poller, fields: fields, extras: callocSlice[C.struct_vb_wc_extra](min(capacity, pollBatch))}
	return nil
}

// createGeneric makes the queue of a device other than an EFA.
func (q *completionQueue) createGeneric(attr *C.struct_ibv_cq_init_attr_ex, poller *C.struct_vb_poller, fields verbs.WCFields) error {
	d := q.device
	c, err := C.vb_create_cq_ex(d.ctx, attr)
	if c == nil {
		return verbError("ibv_create_cq_ex", fmt.Sprintf("%d entries with the fields %v on %s", attr.cqe, fields, d.info.Name), err)
	}
	poller.cq = c
	return nil
}

func (e *extendedQueue) free() {
	C.free(unsafe.Pointer(e.poller))
	C.free(unsafe.Pointer(&e.extras[0]))
	e.poller, e.extras = nil, nil
}

// take makes one call into C for the whole batch.
func (e *extendedQueue) take(batch []C.struct_ibv_wc) int {
	return int(C.vb_poll_cq_ex(cAddress(e.poller), C.int(len(batch)), cAddress(&batch[0]), cAddress(&e.extras[0])))
}

// read completes a WC that convert has filled, and fills extra, which may be nil.
func (e *extendedQueue) read(i int, wc *verbs.WC, extra *verbs.WCExtra) {
	from := &e.extras[i]
	if from.unsolicited != 0 {
		wc.Unsolicited, wc.ID = true, 0
	}
	if extra == nil {
		return
	}
	*extra = verbs.WCExtra{Timestamp: uint64(from.timestamp), WallClock: uint64(from.wall_clock)}
	if e.fields&verbs.WCSource != 0 {
		extra.SourceAH = uint16(from.source_ah)
		extra.SourceGID = *(*verbs.GID)(unsafe.Pointer(&from.source_gid))
	}
}

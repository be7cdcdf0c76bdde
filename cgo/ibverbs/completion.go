//go:build linux && cgo && verbs

package ibverbs

// #cgo nocallback vb_poll_cq
// #cgo nocallback vb_req_notify_cq
// #cgo noescape vb_cq_events
// #cgo nocallback vb_cq_events
// #include "verbena_ibverbs.h"
// #include <stdlib.h>
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/cgo/internal/poll"
	"github.com/verbena-rdma/verbena/verbs"
)

// pollBatch is the largest number of completions of one call into libibverbs.
const pollBatch = 128

type completionQueue struct {
	device   *device
	capacity int
	channel  *C.struct_ibv_comp_channel
	key      uint64 // its address in libibverbs
	refs     int    // guarded by the device's lock

	mu       sync.Mutex
	c        *C.struct_ibv_cq // nil when closed
	batch    []C.struct_ibv_wc
	extended *extendedQueue // nil: polled by ibv_poll_cq
	// Completions that Arm, or the closing of a queue pair, took off the queue. The
	// next Poll returns them.
	buffered []completion
	// Queue pairs whose receives have LIDs: UD queue pairs on InfiniBand ports. For other
	// queue pairs the device's LID fields are undefined, or, on SRD, mean something else.
	lids map[uint32]struct{}
	stop func() // ends the goroutine that waits for events; nil if there is none

	notify    func()
	armed     atomic.Bool
	overflown atomic.Bool
}

// completion is a completion with its extended fields.
type completion struct {
	wc    verbs.WC
	extra verbs.WCExtra
}

// CreateCQ implements [verbs.Device].
func (d *device) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	const op = "create completion queue"
	capacity := init.Capacity
	if capacity < 1 || capacity > d.attr.MaxCQE || capacity > math.MaxInt32 {
		return nil, fmt.Errorf("%s: %d entries; give 1 to %d: %w", op, capacity, d.attr.MaxCQE, verbs.ErrLimit)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		return nil, d.closedError(op)
	}
	if missing := init.Fields &^ d.completionFields(); missing != 0 {
		return nil, fmt.Errorf("%s: completions of device %s have no %v (DeviceAttr.CompletionFields): %w", op, d.info.Name, missing, verbs.ErrNotSupported)
	}
	channel, err := C.vb_create_comp_channel(d.ctx)
	if channel == nil {
		return nil, verbError("ibv_create_comp_channel", d.info.Name, err)
	}
	q := &completionQueue{device: d, channel: channel}
	if d.needsExtendedCQ(init.Fields) {
		err = q.createExtended(capacity, init.Fields)
	} else {
		err = q.create(capacity)
	}
	if err != nil {
		C.vb_destroy_comp_channel(channel)
		return nil, err
	}
	d.queues[q.key] = q
	return q, nil
}

func (q *completionQueue) create(capacity int) error {
	c, err := C.vb_create_cq(q.device.ctx, C.int(capacity), q.channel, C.int(q.device.nextVector()))
	if c == nil {
		return verbError("ibv_create_cq", fmt.Sprintf("%d entries on %s", capacity, q.device.info.Name), err)
	}
	q.setUp(c, capacity)
	return nil
}

// nextVector returns the completion vector for a new queue. Queues get the vectors round-robin,
// so that their interrupts are spread over the processors. The device's lock is held.
func (d *device) nextVector() int {
	v := d.vector
	d.vector = (v + 1) % max(d.vectors, 1)
	return v
}

// setUp sets up the queue after the device has created c.
func (q *completionQueue) setUp(c *C.struct_ibv_cq, capacity int) {
	q.c, q.capacity, q.key = c, int(c.cqe), addressOf(c)
	q.batch = callocSlice[C.struct_ibv_wc](min(capacity, pollBatch))
}

func addressOf[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// cAddress returns the address of an object in C memory.
func cAddress[T any](p *T) C.uintptr_t { return C.uintptr_t(addressOf(p)) }

func (q *completionQueue) Capacity() int { return q.capacity }

// String describes the queue for errors.
func (q *completionQueue) String() string {
	return fmt.Sprintf("the queue of %d entries on %s", q.capacity, q.device.info.Name)
}

func (q *completionQueue) closedError(op string) error {
	return fmt.Errorf("%s completion queue of device %s: %w", op, q.device.info.Name, verbs.ErrClosed)
}

// Poll implements [verbs.CQ].
func (q *completionQueue) Poll(wc []verbs.WC) (int, error) { return q.poll(wc, nil) }

// PollExtended implements [verbs.ExtendedCQ].
func (q *completionQueue) PollExtended(wcs []verbs.WC, extras []verbs.WCExtra) (int, error) {
	if len(wcs) != len(extras) {
		return 0, fmt.Errorf("poll completion queue of device %s: the slices have room for %d completions and %d extras: %w", q.device.info.Name, len(wcs), len(extras), verbs.ErrInvalid)
	}
	return q.poll(wcs, extras)
}

// poll fills both slices; extras may be nil.
func (q *completionQueue) poll(wcs []verbs.WC, extras []verbs.WCExtra) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.c == nil {
		return 0, q.closedError("poll")
	}
	if q.overflown.Load() {
		return 0, q.overrunError()
	}
	n := min(len(wcs), len(q.buffered))
	if n > 0 {
		for i := range q.buffered[:n] {
			wcs[i] = q.buffered[i].wc
			if extras != nil {
				extras[i] = q.buffered[i].extra
			}
		}
		q.buffered = slices.Delete(q.buffered, 0, n)
	}
	for n < len(wcs) {
		want := min(len(wcs)-n, len(q.batch))
		got := q.take(want)
		if got < 0 {
			return n, q.pollError(got)
		}
		for i := range got {
			var extra *verbs.WCExtra
			if extras != nil {
				extra = &extras[n]
			}
			q.read(i, &wcs[n], extra)
			n++
		}
		if got < want {
			break
		}
	}
	return n, nil
}

// take moves up to n completions from the queue into the batch. It returns their number, or a
// negative errno.
func (q *completionQueue) take(n int) int {
	if q.extended != nil {
		return q.extended.take(q.batch[:n])
	}
	return int(C.vb_poll_cq(cAddress(q.c), C.int(n), cAddress(&q.batch[0])))
}

// read converts a completion of the batch to package verbs' form. extra may be nil.
func (q *completionQueue) read(i int, wc *verbs.WC, extra *verbs.WCExtra) {
	from := &q.batch[i]
	convert(wc, from)
	if wc.Status == verbs.StatusSuccess && wc.Opcode == verbs.WCRecv {
		if _, found := q.lids[wc.QPN]; found {
			wc.SLID, wc.SL = uint16(from.slid), uint8(from.sl)
		}
	}
	switch {
	case q.extended != nil:
		q.extended.read(i, wc, extra)
	case extra != nil:
		*extra = verbs.WCExtra{}
	}
}

func (q *completionQueue) overrunError() error {
	return fmt.Errorf("poll completion queue of %d entries on device %s: the queue overflowed; make it larger: %w", q.capacity, q.device.info.Name, verbs.ErrOverrun)
}

func (q *completionQueue) pollError(result int) error {
	e := &Error{Verb: "ibv_poll_cq", Request: q.String()}
	if q.extended != nil {
		e.Verb = "ibv_start_poll"
	}
	if result < -1 {
		e.Errno = syscall.Errno(-result)
	}
	e.Detail = "the queue is broken"
	return e
}

// convert converts a completion to a verbs.WC.
func convert(to *verbs.WC, from *C.struct_ibv_wc) {
	*to = verbs.WC{
		ID: uint64(from.wr_id), Status: verbs.Status(from.status),
		VendorError: uint32(from.vendor_err), QPN: uint32(from.qp_num),
	}
	if from.status != C.IBV_WC_SUCCESS {
		return
	}
	if from.opcode&C.IBV_WC_RECV == 0 {
		switch from.opcode {
		case C.IBV_WC_BIND_MW:
			to.Opcode = verbs.WCBindMW
		case C.IBV_WC_LOCAL_INV:
			to.Opcode = verbs.WCLocalInvalidate
		default:
			to.Opcode = verbs.WCOpcode(from.opcode)
			to.Bytes = uint32(from.byte_len)
		}
		return
	}
	to.Opcode = verbs.WCRecv + verbs.WCOpcode(from.opcode-C.IBV_WC_RECV)
	to.Bytes = uint32(from.byte_len)
	to.SrcQPN = uint32(from.src_qp)
	to.HasGRH = from.wc_flags&C.IBV_WC_GRH != 0
	if from.wc_flags&C.IBV_WC_WITH_IMM != 0 {
		to.HasImm = true
		to.Imm = binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&from.anon0))[:])
	}
	if from.wc_flags&C.IBV_WC_WITH_INV != 0 {
		to.InvalidatedRKey = *(*uint32)(unsafe.Pointer(&from.anon0))
	}
}

// Arm implements [verbs.CQ].
func (q *completionQueue) Arm(solicitedOnly bool) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.c == nil {
		return false, q.closedError("arm")
	}
	if len(q.buffered) > 0 || q.overflown.Load() {
		return false, nil
	}
	if q.channel == nil {
		return false, fmt.Errorf("arm completion queue: device %s has no completion events; use Poll: %w", q.device.info.Name, verbs.ErrNotSupported)
	}
	if q.stop == nil {
		stop, err := poll.Watch(int(q.channel.fd), "completion events", q.device.info.Name, q.event)
		if err != nil {
			return false, fmt.Errorf("arm completion queue: %w", err)
		}
		q.stop = stop
	}
	solicited := C.int(0)
	if solicitedOnly {
		solicited = 1
	}
	// Set armed before the call: the event may arrive before the call returns.
	q.armed.Store(true)
	if errno := C.vb_req_notify_cq(q.c, solicited); errno != 0 {
		q.armed.Store(false)
		return false, checkErrno("ibv_req_notify_cq", q.String(), errno)
	}
	// Completions that arrived before the request cause an event on some adapters (mlx4, mlx5),
	// and none on others, so poll once more (ibv_get_cq_event(3)).
	switch got := q.take(len(q.batch)); {
	case got < 0:
		q.armed.Store(false)
		return false, q.pollError(got)
	case got > 0:
		q.armed.Store(false)
		q.bufferCompletions(got)
		return false, nil
	}
	return true, nil
}

// bufferCompletions keeps the first n completions of the batch for the next Poll.
func (q *completionQueue) bufferCompletions(n int) {
	for i := range n {
		q.buffered = append(q.buffered, completion{})
		last := &q.buffered[len(q.buffered)-1]
		q.read(i, &last.wc, &last.extra)
	}
}

// event runs when the channel is readable. If the queue is not armed, Arm has already found
// the completions that caused the event, and event notifies nobody.
func (q *completionQueue) event() {
	if C.vb_cq_events(q.c) > 0 {
		q.fire()
	}
}

func (q *completionQueue) fire() {
	if q.armed.Swap(false) && q.notify != nil {
		q.notify()
	}
}

// OnCompletion implements [verbs.CQ].
func (q *completionQueue) OnCompletion(notify func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.notify = notify
}

// overrun handles the overflow of a queue. It moves the queue pairs on it to the Error state, as
// IBTA 10.10.2.3 requires, because not every device does so.
func (d *device) overrun(object uint64) *completionQueue {
	d.mu.Lock()
	q := d.queues[object]
	var pairs []*queuePair
	for _, p := range d.pairs {
		if q != nil && (p.sendCQ == q || p.recvCQ == q) {
			pairs = append(pairs, p)
		}
	}
	d.mu.Unlock()
	if q == nil {
		return nil
	}
	q.overflown.Store(true)
	for _, p := range pairs {
		// This fails for a queue pair in Reset or already in Error, which needs no change.
		_ = p.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState)
	}
	q.fire()
	return q
}

// setLIDs sets whether receives of a queue pair have LIDs.
func (q *completionQueue) setLIDs(qpn uint32, have bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !have {
		delete(q.lids, qpn)
		return
	}
	if q.lids == nil {
		q.lids = make(map[uint32]struct{})
	}
	q.lids[qpn] = struct{}{}
}

// dropCompletions drops the completions of a destroyed queue pair, because not every device does so.
func (q *completionQueue) dropCompletions(qpn uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.c == nil {
		return
	}
	// Take at most capacity completions: this queue pair had no more, and other queue pairs
	// may keep adding new ones.
	for left := q.capacity; left > 0; {
		got := q.take(len(q.batch))
		if got <= 0 {
			break
		}
		q.bufferCompletions(got)
		left -= got
	}
	q.buffered = slices.DeleteFunc(q.buffered, func(c completion) bool { return c.wc.QPN == qpn })
	delete(q.lids, qpn)
}

// Close implements [verbs.CQ].
func (q *completionQueue) Close() error {
	d := q.device
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.c == nil {
		return nil
	}
	if err := remove(d, d.queues, q.key, &q.refs, "completion queue"); err != nil {
		return err
	}
	if q.stop != nil {
		q.stop()
		q.stop = nil
	}
	if err := d.checkDestroyed("ibv_destroy_cq", q.String(), C.vb_destroy_cq(q.c)); err != nil {
		add(d, d.queues, q.key, q) // the program can try again
		return err
	}
	var err error
	if q.channel != nil {
		err = q.destroyChannel()
	}
	C.free(unsafe.Pointer(&q.batch[0]))
	if q.extended != nil {
		q.extended.free()
	}
	q.c, q.channel, q.batch, q.buffered = nil, nil, nil, nil
	return err
}

// add adds a queue to those of the device.
func add[Q any](d *device, queues map[uint64]Q, key uint64, q Q) {
	d.mu.Lock()
	defer d.mu.Unlock()
	queues[key] = q
}

// remove removes a queue from the device, unless a queue pair uses it.
func remove[Q any](d *device, queues map[uint64]Q, key uint64, refs *int, what string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if *refs > 0 {
		return fmt.Errorf("close %s: %d queue pairs use it: %w", what, *refs, verbs.ErrInUse)
	}
	delete(queues, key)
	return nil
}

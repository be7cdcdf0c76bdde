//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/cgo/internal/poll"
	"github.com/verbena-rdma/verbena/verbs"
)

// events delivers asynchronous events to their subscribers.
type events struct {
	stop func()

	mu       sync.Mutex
	next     int
	handlers map[int]func(verbs.Event)
	fatal    bool // EventDeviceFatal has been delivered
}

func (e *events) start(d *device) error {
	e.handlers = make(map[int]func(verbs.Event))
	ctx := d.ctx
	stop, err := poll.Watch(int(ctx.async_fd), "events", d.info.Name, func() {
		for d.takeEvent(ctx) {
		}
	})
	if err != nil {
		return err
	}
	removal := watchRemoval(C.GoString(&ctx.device.dev_name[0]), d.info.Name, func() {
		e.deliver(verbs.Event{Type: verbs.EventDeviceFatal})
	})
	e.stop = func() {
		removal()
		stop()
	}
	return nil
}

// SubscribeEvents implements [verbs.Device]. If the device has already failed or been removed,
// handle gets EventDeviceFatal inside the call.
func (d *device) SubscribeEvents(handle func(verbs.Event)) (cancel func()) {
	e := &d.events
	e.mu.Lock()
	defer e.mu.Unlock()
	id := e.next
	e.next++
	e.handlers[id] = handle
	if e.fatal {
		handle(verbs.Event{Type: verbs.EventDeviceFatal})
	}
	return func() {
		// Events are delivered under the lock, so no delivery is under way here.
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.handlers, id)
	}
}

// rawEvent is an event of libibverbs. Fields that do not apply to its type are zero.
type rawEvent struct {
	kind   int32 // IBV_EVENT_...
	port   int
	qpn    uint32
	object uint64 // the address of a completion queue or shared receive queue
}

var eventTypes = map[int32]verbs.EventType{
	C.IBV_EVENT_CQ_ERR:              verbs.EventCQError,
	C.IBV_EVENT_QP_FATAL:            verbs.EventQPFatal,
	C.IBV_EVENT_QP_REQ_ERR:          verbs.EventQPRequestError,
	C.IBV_EVENT_QP_ACCESS_ERR:       verbs.EventQPAccessError,
	C.IBV_EVENT_COMM_EST:            verbs.EventCommEstablished,
	C.IBV_EVENT_SRQ_ERR:             verbs.EventSRQError,
	C.IBV_EVENT_SRQ_LIMIT_REACHED:   verbs.EventSRQLimitReached,
	C.IBV_EVENT_QP_LAST_WQE_REACHED: verbs.EventQPLastWQEReached,
	C.IBV_EVENT_PORT_ACTIVE:         verbs.EventPortActive,
	C.IBV_EVENT_PORT_ERR:            verbs.EventPortError,
	C.IBV_EVENT_GID_CHANGE:          verbs.EventGIDChange,
	C.IBV_EVENT_LID_CHANGE:          verbs.EventLIDChange,
	C.IBV_EVENT_PKEY_CHANGE:         verbs.EventPKeyChange,
	C.IBV_EVENT_DEVICE_FATAL:        verbs.EventDeviceFatal,
}

// takeEvent handles one event, if there is one. The object of the event is not
// destroyed before the event is acknowledged (ibv_get_async_event(3)).
func (d *device) takeEvent(ctx *C.struct_ibv_context) bool {
	var raw C.struct_ibv_async_event
	var event C.struct_vb_event
	if errno := C.vb_get_async_event(ctx, &raw, &event); errno != 0 {
		return syscall.Errno(errno) == syscall.EINTR
	}
	defer C.vb_ack_async_event(&raw)
	if e, ok := d.translate(rawEvent{int32(event._type), int(event.port), uint32(event.qpn), uint64(event.object)}); ok {
		d.events.deliver(e)
	}
	return true
}

// translate converts an event of libibverbs to one of package verbs. ok is false if package
// verbs does not have it.
func (d *device) translate(from rawEvent) (e verbs.Event, ok bool) {
	if e.Type, ok = eventTypes[from.kind]; !ok {
		return e, false
	}
	e.QPN, e.Port = from.qpn, from.port
	switch e.Type {
	case verbs.EventCQError:
		if cq := d.overrun(from.object); cq != nil {
			e.CQ = cq
		}
	case verbs.EventSRQError, verbs.EventSRQLimitReached:
		d.mu.Lock()
		defer d.mu.Unlock()
		if srq := d.shared[from.object]; srq != nil {
			e.SRQ = srq
		}
	}
	return e, true
}

// deliver calls all handlers. It delivers EventDeviceFatal once: the device's driver and the
// kernel's announcement of the removal may both report it.
func (e *events) deliver(event verbs.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if event.Type == verbs.EventDeviceFatal {
		if e.fatal {
			return
		}
		e.fatal = true
	}
	for _, handle := range e.handlers {
		handle(event)
	}
}

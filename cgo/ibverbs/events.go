//go:build linux && cgo && verbs

package ibverbs

// #include "library.h"
import "C"

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs"
)

// watch calls ready on a goroutine of its own whenever the file, which belongs to
// libibverbs, can be read. It returns what ends that: closed, the goroutine gone.
func watch(fd C.int, name string, ready func()) (stop func(), err error) {
	if err := unix.SetNonblock(int(fd), true); err != nil {
		return nil, fmt.Errorf("make the %s not block: %w", name, err)
	}
	// libibverbs closes the original.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the %s: %w", name, err)
	}
	file := os.NewFile(uintptr(own), name)
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("wait for the %s: %w", name, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = raw.Read(func(uintptr) bool {
			ready()
			return false
		})
	}()
	return func() {
		_ = file.Close()
		<-done
	}, nil
}

// events hands asynchronous events to those who asked for them.
type events struct {
	stop func()

	mu       sync.Mutex
	next     int
	handlers map[int]func(verbs.Event)
}

func (e *events) start(d *Device) (err error) {
	e.handlers = make(map[int]func(verbs.Event))
	ctx := d.ctx
	e.stop, err = watch(ctx.async_fd, "events of "+d.info.Name, func() {
		for d.takeEvent(ctx) {
		}
	})
	return err
}

// SubscribeEvents implements [verbs.Device].
func (d *Device) SubscribeEvents(handle func(verbs.Event)) (cancel func()) {
	e := &d.events
	e.mu.Lock()
	defer e.mu.Unlock()
	id := e.next
	e.next++
	e.handlers[id] = handle
	return func() {
		// Events are told under the lock: none is being told once it is held.
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.handlers, id)
	}
}

var eventTypes = map[C.int32_t]verbs.EventType{
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
	C.IBV_EVENT_DEVICE_FATAL:        verbs.EventDeviceFatal,
}

// takeEvent handles one event, if there is one. What it concerns is not
// destroyed before the event is acknowledged (ibv_get_async_event(3)).
func (d *Device) takeEvent(ctx *C.struct_ibv_context) bool {
	var raw C.struct_ibv_async_event
	var event C.struct_vb_event
	if errno := C.vb_get_async_event(ctx, &raw, &event); errno != 0 {
		return syscall.Errno(errno) == syscall.EINTR
	}
	defer C.vb_ack_async_event(&raw)
	known, ok := eventTypes[event._type]
	if !ok {
		return true
	}
	e := verbs.Event{Type: known, QPN: uint32(event.qpn), Port: int(event.port)}
	switch known {
	case verbs.EventCQError:
		if cq := d.overrun(uint64(event.object)); cq != nil {
			e.CQ = cq
		}
	case verbs.EventSRQError, verbs.EventSRQLimitReached:
		d.mu.Lock()
		if srq := d.shared[uint64(event.object)]; srq != nil {
			e.SRQ = srq
		}
		d.mu.Unlock()
	}
	d.events.tell(e)
	return true
}

func (e *events) tell(event verbs.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, handle := range e.handlers {
		handle(event)
	}
}

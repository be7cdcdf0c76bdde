//go:build linux && cgo && verbs

package main

// #include "device.h"
// #include "callbacks.h"
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

// membership is that of an identifier in a multicast group.
type membership struct {
	verbs.CMMulticast
	id     *cmID
	handle uint32
	c      unsafe.Pointer
	left   bool // the lock mu of the identifier guards it
}

var memberships table[membership]

//export vd_cm_join
func vd_cm_join(handle C.uint32_t, group *C.struct_sockaddr, sendOnly C.int, join unsafe.Pointer, to *C.uint32_t) C.int {
	return onID(handle, func(id *cmID) error {
		addr, err := addrPortOf(group)
		if err != nil {
			return err
		}
		if id.device == nil {
			return errCMState("join a multicast group")
		}
		m, err := id.device.manager()
		if err != nil {
			return err
		}
		cm, ok := m.CM.(verbs.MulticastCM)
		if !ok {
			return fmt.Errorf("device %s has no multicast groups: %w", id.device.Name(), verbs.ErrNotSupported)
		}
		p := verbs.CMJoin{Group: addr.Addr(), SendOnly: sendOnly != 0}
		if own := id.entry.GID.Addr(); own.Is4() == p.Group.Is4() {
			p.Local = own
		}
		j := &membership{id: id, c: join}
		if j.handle = memberships.add(j); j.handle == 0 {
			return fmt.Errorf("join %v: %w", p.Group, syscall.ENOMEM)
		}
		if j.CMMulticast, err = cm.JoinMulticast(p); err != nil {
			memberships.remove(j.handle)
			return err
		}
		id.joins[j], *to = struct{}{}, C.uint32_t(j.handle)
		m.own(j.CMMulticast, j)
		return nil
	})
}

// handleEvent implements eventHandler.
func (j *membership) handleEvent(e verbs.CMEvent) {
	to := C.struct_vd_cm_event{_type: C.RDMA_CM_EVENT_MULTICAST_JOIN, join: j.c}
	setParam(&to, &e)
	if e.Type != verbs.CMMulticastJoined {
		to._type, to.status = C.RDMA_CM_EVENT_MULTICAST_ERROR, -C.int(syscall.ENETUNREACH)
		if e.Err != nil {
			to.status = -cmErrno(e.Err)
		}
	}
	j.id.mu.Lock()
	defer j.id.mu.Unlock()
	if !j.left {
		j.id.deliverLocked(&to)
	}
}

// leave leaves the group. The lock call of the identifier is held.
func (j *membership) leave() {
	j.id.mu.Lock()
	j.left = true
	j.id.mu.Unlock()
	if err := j.Close(); err != nil {
		logError(err)
	}
	j.id.device.cm.forget(j.CMMulticast)
	memberships.remove(j.handle)
	delete(j.id.joins, j)
}

//export vd_cm_leave
func vd_cm_leave(handle C.uint32_t) C.int {
	j := memberships.get(uint32(handle))
	if j == nil {
		return noSuch
	}
	j.id.call.Lock()
	defer j.id.call.Unlock()
	j.leave()
	return 0
}

//go:build linux && cgo && verbs

package main

// #include "device.h"
// #include "callbacks.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
)

// manager is the connection manager of a device, for all identifiers of the process. It is opened
// when it is first needed.
type manager struct {
	open sync.Once
	verbs.CM
	err error

	// mu guards the maps. It is taken under locks of the device, so it is not held in calls of
	// the device.
	mu sync.Mutex
	// owners are the owners of connections, listeners and memberships. Events can come before
	// the call that makes one of these has returned: they wait in early.
	owners map[any]eventHandler
	byQPN  map[uint32]*cmID // connections
	early  map[any][]verbs.CMEvent
}

// eventHandler handles events, under locks of the device.
type eventHandler interface{ handleEvent(verbs.CMEvent) }

// manager returns the device's connection manager.
func (d *openDevice) manager() (*manager, error) {
	m := &d.cm
	m.open.Do(func() {
		m.owners, m.early = make(map[any]eventHandler), make(map[any][]verbs.CMEvent)
		m.byQPN = make(map[uint32]*cmID)
		device, ok := d.Device.(verbs.CMDevice)
		if !ok {
			m.err = fmt.Errorf("device %s has no connection manager: %w", d.Name(), verbs.ErrNotSupported)
			return
		}
		if m.CM, m.err = device.OpenCM(m.handle); m.err == nil {
			d.SubscribeEvents(m.deviceEvent) // until the process ends
		}
	})
	return m, m.err
}

// handle passes an event to its owner.
func (m *manager) handle(e verbs.CMEvent) {
	var key any = e.ID
	switch {
	case e.Type == verbs.CMConnectRequest:
		key = e.Listener
	case e.Multicast != nil:
		key = e.Multicast
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if owner := m.owners[key]; owner != nil {
		owner.handleEvent(e)
	} else {
		m.early[key] = append(m.early[key], e)
	}
}

// deviceEvent reports that a connection has ended whose peer is a process of this machine that was
// killed.
func (m *manager) deviceEvent(e verbs.Event) {
	if e.Type != verbs.EventPeerGone {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if id := m.byQPN[e.QPN]; id != nil {
		id.peerGone()
	}
}

// connects notes the queue pair of a connection.
func (m *manager) connects(id *cmID, qpn uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byQPN[qpn] = id
}

// disconnects forgets the queue pair of a connection.
func (m *manager) disconnects(id *cmID, qpn uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byQPN[qpn] == id {
		delete(m.byQPN, qpn)
	}
}

// own makes h the owner of a connection, a listener or a membership.
func (m *manager) own(key any, h eventHandler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owners[key] = h
	for _, e := range m.early[key] {
		h.handleEvent(e)
	}
	delete(m.early, key)
}

// forget ends the ownership of what has been closed.
func (m *manager) forget(key any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.owners, key)
	delete(m.early, key)
}

// cmErrnos are those of librdmacm that differ from those of libibverbs.
var cmErrnos = errnoTable{
	{verbs.ErrInUse, syscall.EADDRINUSE},
	{verbs.ErrNoRoute, syscall.EHOSTUNREACH},
	{verbs.ErrUnreachable, syscall.ETIMEDOUT},
	{verbs.ErrNotListening, syscall.ECONNREFUSED},
	{verbs.ErrRejected, syscall.ECONNREFUSED},
}

// cmErrno is errnoOf for the functions of librdmacm.
func cmErrno(err error) C.int {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		if errno = cmErrnos.find(err); errno != 0 {
			logError(err)
			return C.int(errno)
		}
	}
	return errnoOf(err)
}

// Statuses of a response to a service ID resolution (IBTA table 124).
const (
	sidrNotSupported = 1
	sidrRejected     = 2
)

// failure stores what an event says of a connection that was not made.
func failure(to *C.struct_vd_cm_event, err error, kind verbs.QPType) {
	to._type, to.status = C.RDMA_CM_EVENT_UNREACHABLE, -cmErrno(err)
	var failed *verbs.CMError
	if !errors.As(err, &failed) || failed.Reason == 0 {
		return
	}
	setPrivateData(to, failed.PrivateData)
	switch {
	case kind != verbs.UD:
		to._type, to.status = C.RDMA_CM_EVENT_REJECTED, C.int(failed.Reason)
	case failed.Reason == verbs.CMRejectInvalidServiceID:
		to.status = sidrNotSupported
	default:
		to.status = sidrRejected
	}
}

func setPrivateData(to *C.struct_vd_cm_event, data []byte) {
	n := min(len(data), len(to.private_data))
	for i, b := range data[:n] {
		to.private_data[i] = C.uint8_t(b)
	}
	to.private_data_len = C.uint8_t(n)
}

// setParam stores the peer's parameters.
func setParam(to *C.struct_vd_cm_event, e *verbs.CMEvent) {
	p := &e.Param
	setPrivateData(to, p.PrivateData)
	to.conn.responder_resources, to.conn.initiator_depth = C.uint8_t(min(p.ResponderResources, 255)), C.uint8_t(min(p.InitiatorDepth, 255))
	to.conn.retry_count, to.conn.rnr_retry_count = C.uint8_t(p.RetryCount), C.uint8_t(p.RNRRetryCount)
	to.conn.qp_num = C.uint32_t(p.QPN)
	if p.SRQ {
		to.conn.srq = 1
	}
	to.ud.qp_num, to.ud.qkey = C.uint32_t(p.QPN), C.uint32_t(p.QKey)
	copyAddress(&to.ud.ah_attr, &e.Address)
}

//export vd_cm_exit
func vd_cm_exit() {
	opened.Lock()
	defer opened.Unlock()
	for _, d := range opened.devices {
		if m := d.cm.CM; m != nil {
			_ = m.Close()
		}
	}
}

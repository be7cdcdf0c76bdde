//go:build linux && cgo && verbs

package rdmacm

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// next takes an event off a channel. It returns false if there is none, or if librdmacm fails;
// the next event on the channel leads to another call.
func next(ch channel, e *rawEvent) bool {
	for {
		ok, err := ch.next(e)
		if !errors.Is(err, syscall.EINTR) {
			return ok && err == nil
		}
	}
}

// report reports an event of the ID.
func (id *connectionID) report(e verbs.CMEvent) {
	e.ID = id
	id.manager.handle(e)
}

// fail reports that the connection could not be made.
func (id *connectionID) fail(step verbs.CMStep, err error) {
	w := id.endpoints.Load()
	id.failWith(&verbs.CMError{Step: step, Local: w.local, Remote: w.remote, Err: err})
}

func (id *connectionID) failWith(err *verbs.CMError) {
	id.phase = phaseEnded
	id.report(verbs.CMEvent{Type: verbs.CMFailed, Err: err})
}

// reportTimewaitExit reports, once, that the number of the queue pair can be reused.
func (id *connectionID) reportTimewaitExit() {
	if !id.timewaitExited && id.kind != verbs.UD {
		id.timewaitExited = true
		id.report(verbs.CMEvent{Type: verbs.CMTimewaitExit})
	}
}

// timeWait is at least as long as the kernel's time-wait on RoCE.
const timeWait = 2200 * time.Millisecond

// endTimewait reports CMTimewaitExit for a connection that was not established: after timeWait if
// waits is set, and otherwise at once. The kernel reports it only for established connections.
func (id *connectionID) endTimewait(waits bool) {
	if !waits {
		id.reportTimewaitExit()
		return
	}
	m := id.manager
	time.AfterFunc(timeWait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !m.closed && id.phase != phaseClosed {
			id.reportTimewaitExit()
		}
	})
}

// step returns the step that is under way.
func (id *connectionID) step() verbs.CMStep {
	if id.listener != nil {
		return verbs.CMStepAccept
	}
	return verbs.CMStepConnect
}

// event handles an event. It ignores events that do not fit the phase: an earlier call has made
// them obsolete.
func (id *connectionID) event(e *rawEvent) {
	switch e.kind {
	case eventAddrResolved:
		id.addressResolved()
	case eventRouteResolved:
		id.routeResolved()
	case eventAddrError:
		id.addressNotResolved(syscall.Errno(-e.status))
	case eventRouteError:
		id.fail(verbs.CMStepResolve, unresolved("rdma_resolve_route", syscall.Errno(-e.status), id.manager.dev.Name()))
	case eventConnectResponse:
		if id.phase == phaseConnecting {
			id.phase = phaseResponded
			id.report(verbs.CMEvent{Type: verbs.CMConnectResponse, Param: e.param})
		}
	case eventEstablished:
		id.established(e)
	case eventConnectError, eventUnreachable, eventRejected:
		id.notConnected(e)
	case eventDisconnected:
		id.disconnected()
	case eventAddrChange:
		id.report(verbs.CMEvent{Type: verbs.CMAddressChanged})
	case eventDeviceRemoval:
		id.report(verbs.CMEvent{Type: verbs.CMDeviceRemoved})
	case eventTimewaitExit:
		id.reportTimewaitExit()
	}
}

// addressNotResolved asks again, unless that has gone on for too long.
func (id *connectionID) addressNotResolved(errno syscall.Errno) {
	err := error(errno)
	if errno == syscall.ETIMEDOUT && id.phase == phaseResolving && time.Now().Before(id.resolvesUntil) {
		id.resolvesFor = min(2*id.resolvesFor, resolveMost)
		err = id.resolve(id.resolvesFor)
	}
	if err != nil {
		id.fail(verbs.CMStepResolve, id.manager.notResolved("rdma_resolve_addr", err))
	}
}

// addressResolved resolves the route, if it leads over the right device.
func (id *connectionID) addressResolved() {
	if id.phase != phaseResolving {
		return
	}
	own := id.manager.dev.Name()
	if r := id.raw.route(); r.device != own {
		id.fail(verbs.CMStepResolve, fmt.Errorf("%w: the route uses device %q with address %v, but the connection manager is that of device %q with addresses %v: use the other device, or give one of these addresses as the local address",
			verbs.ErrNoRoute, r.device, r.local.Addr(), own, id.manager.addresses()))
		return
	}
	if err := id.raw.resolveRoute(); err != nil {
		id.fail(verbs.CMStepResolve, id.manager.notResolved("rdma_resolve_route", err))
	}
}

func (id *connectionID) routeResolved() {
	if id.phase != phaseResolving {
		return
	}
	r := id.raw.route()
	id.setEndpoints(&r, id.RemoteAddr())
	id.phase = phaseResolved
	id.report(verbs.CMEvent{Type: verbs.CMResolved})
}

func (id *connectionID) established(e *rawEvent) {
	switch {
	case id.kind == verbs.UD && id.phase == phaseConnecting:
		id.phase = phaseEnded
		id.report(verbs.CMEvent{Type: verbs.CMEstablished, Param: e.param, Address: e.address})
	case id.phase == phaseAccepted:
		id.phase = phaseEstablished
		id.report(verbs.CMEvent{Type: verbs.CMEstablished, Param: e.param})
	}
}

// notConnected handles the failure of a handshake.
func (id *connectionID) notConnected(e *rawEvent) {
	was := id.phase
	switch was {
	case phaseConnecting, phaseResponded, phaseAccepted:
	case phaseEstablished, phaseDisconnecting:
		id.phase = phaseEnded
		id.report(verbs.CMEvent{Type: verbs.CMDisconnected})
		return
	default:
		return
	}
	w := id.endpoints.Load()
	err := &verbs.CMError{Step: id.step(), Local: w.local, Remote: w.remote, PrivateData: e.param.PrivateData}
	switch {
	case e.kind == eventRejected:
		err.Reason = verbs.CMRejectReason(e.status)
		err.Err = verbs.ErrRejected
	case e.status < 0:
		errno := syscall.Errno(-e.status)
		err.Err = fmt.Errorf("%w: %w (errno %d)", verbs.ErrUnreachable, errno, int(errno))
		if e.kind == eventConnectError {
			err.Err = callError("rdma_connect", errno)
		}
	default: // service ID resolution
		err.Err = verbs.ErrRejected
		switch e.status {
		case sidrNotSupported:
			err.Reason = verbs.CMRejectInvalidServiceID
		case sidrRejected:
			err.Reason = verbs.CMRejectConsumer
		default:
			err.Err = fmt.Errorf("%w: status %d of the service ID resolution", verbs.ErrRejected, e.status)
		}
	}
	if err.Reason == verbs.CMRejectInvalidServiceID {
		err.Err = verbs.ErrNotListening
	}
	id.failWith(err)
	id.endTimewait(was == phaseResponded || err.Reason == verbs.CMRejectStaleConnection)
}

// disconnected reports the end, and answers the peer. The kernel does not answer by itself, and
// without an answer the peer would retransmit its request for over a minute.
func (id *connectionID) disconnected() {
	switch id.phase {
	case phaseResponded, phaseAccepted, phaseEstablished, phaseDisconnecting:
		if id.phase != phaseDisconnecting {
			_ = id.raw.disconnect() // fails if the connection has already ended
		}
		id.phase = phaseEnded
		id.report(verbs.CMEvent{Type: verbs.CMDisconnected})
	}
}

package gsi

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// report reports an event of the ID.
func (id *connectionID) report(e verbs.CMEvent) {
	if id.state == idClosed || id.manager.closed {
		return
	}
	e.ID = id
	id.manager.handle(e)
}

// report passes an event to the manager that it is for.
func (g *Services) report(e *cm.Event) {
	switch {
	case e.Type == cm.EventConnectRequest || e.Type == cm.EventSIDRRequest:
		g.reportRequest(e)
	case e.Conn != nil:
		g.reportConnection(e.Conn.Value.(*connectionID), e)
	case e.Resolution != nil:
		g.reportResolution(e.Resolution.Value.(*connectionID), e)
	}
}

func (g *Services) reportRequest(e *cm.Event) {
	l := e.Listener.Value.(*listener)
	var id *connectionID
	event := verbs.CMEvent{Type: verbs.CMConnectRequest, Listener: l}
	if e.Request != nil {
		id = l.manager.newID(verbs.UD, e.Request.Path())
		id.request, id.remote = e.Request, e.Request.PeerAddr()
	} else {
		p := e.Conn.Params()
		id = l.manager.newID(p.Transport, e.Conn.Path())
		id.conn, id.remote = e.Conn, e.Conn.PeerAddr()
		e.Conn.Value = id
		event.Param = connectionParam(&p)
	}
	id.listener, id.state = l, idRequested
	id.local = netip.AddrPortFrom(id.path.Local.Addr(), l.addr.Port())
	event.Param.PrivateData = e.PrivateData
	id.report(event)
}

// connectionParam returns the peer's parameters, as this end sees them.
func connectionParam(p *cm.Params) verbs.CMParam {
	return verbs.CMParam{
		QPN: p.RemoteQPN, ResponderResources: int(p.ResponderResources), InitiatorDepth: int(p.InitiatorDepth),
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetry, SRQ: p.PeerSRQ,
	}
}

func (g *Services) reportConnection(id *connectionID, e *cm.Event) {
	p := e.Conn.Params()
	event := verbs.CMEvent{Param: connectionParam(&p)}
	event.Param.PrivateData = e.PrivateData
	step := verbs.CMStepConnect
	if e.Conn.Passive() {
		step = verbs.CMStepAccept
	}
	switch e.Type {
	case cm.EventConnectResponse:
		event.Type = verbs.CMConnectResponse
	case cm.EventEstablished:
		event.Type = verbs.CMEstablished
		g.cfg.MADs.Refund(id.path.Remote.Addr(), false) // returns the tokens of the request
	case cm.EventRejected:
		event.Type, event.Err = verbs.CMFailed, id.rejectedError(step, e)
	case cm.EventUnreachable:
		event.Type, event.Err = verbs.CMFailed, id.unreachableError(step, e.Cause)
	case cm.EventDisconnected:
		event.Type = verbs.CMDisconnected
		if e.Cause != cm.CauseDREQ {
			event.Param.PrivateData = nil // a DREP only answers
		}
	case cm.EventTimeWaitExit:
		event.Type = verbs.CMTimewaitExit
	}
	id.report(event)
}

func (g *Services) reportResolution(id *connectionID, e *cm.Event) {
	if e.Type == cm.EventUnreachable {
		id.report(verbs.CMEvent{Type: verbs.CMFailed, Err: id.unreachableError(verbs.CMStepConnect, e.Cause)})
		return
	}
	if e.Status != mad.SIDRValid {
		failed := &verbs.CMError{Step: verbs.CMStepConnect, Local: id.local, Remote: id.remote, PrivateData: e.PrivateData, Err: verbs.ErrRejected}
		switch e.Status {
		case mad.SIDRNotSupported:
			failed.Reason, failed.Err = verbs.CMRejectInvalidServiceID, id.errNotListening()
		case mad.SIDRRejected:
			failed.Reason = verbs.CMRejectConsumer
		}
		id.report(verbs.CMEvent{Type: verbs.CMFailed, Err: failed})
		return
	}
	address := verbs.AddressAttr{DGID: verbs.GIDFromAddr(id.remote.Addr()), SGIDIndex: id.path.GIDIndex, Port: 1}
	if port := id.path.Remote.Port(); port != wire.UDPPort {
		address.UDPPort = port
	}
	id.report(verbs.CMEvent{
		Type: verbs.CMEstablished, Address: address,
		Param: verbs.CMParam{QPN: e.QPN, QKey: e.QKey, PrivateData: e.PrivateData},
	})
}

// rejectedError returns the error of a rejection.
func (id *connectionID) rejectedError(step verbs.CMStep, e *cm.Event) error {
	err := &verbs.CMError{
		Step: step, Local: id.local, Remote: id.remote,
		Reason: e.Reason, PrivateData: e.PrivateData, Err: verbs.ErrRejected,
	}
	switch err.Reason {
	case verbs.CMRejectInvalidServiceID:
		err.Err = id.errNotListening()
	case verbs.CMRejectInvalidMTU:
		if len(e.Info) > 0 {
			err.MTU = mad.MTUOf(e.Info[0])
		}
	}
	if id.lookUpFailed != nil { // another device of this machine may have responded
		err.Err = fmt.Errorf("%w; %w", err.Err, id.lookUpFailed)
	}
	return err
}

// unreachable has, for the causes that the network reports, the errors with which TCP fails then.
var unreachable = map[cm.Cause]syscall.Errno{
	cm.CausePortUnreachable: syscall.ECONNREFUSED, cm.CauseHostUnreachable: syscall.EHOSTUNREACH,
	cm.CauseNetworkUnreachable: syscall.ENETUNREACH, cm.CauseProhibited: syscall.EACCES,
}

// unreachableError returns the error of a handshake that did not complete.
func (id *connectionID) unreachableError(step verbs.CMStep, cause cm.Cause) error {
	err := verbs.ErrUnreachable
	switch cause {
	case cm.CauseTimeout: // ErrUnreachable alone says it
	case cm.CauseNoRoute:
		return &verbs.CMError{Step: step, Local: id.local, Remote: id.remote, Err: verbs.ErrNoRoute}
	case cm.CausePortUnreachable:
		err = fmt.Errorf("%w: no process has the peer's UDP port, %d: %w", verbs.ErrNotListening, id.path.Remote.Port(), unreachable[cause])
	case cm.CauseHostUnreachable, cm.CauseNetworkUnreachable, cm.CauseProhibited:
		err = fmt.Errorf("%w: %w", err, unreachable[cause])
	default:
		err = fmt.Errorf("%w: %v", err, cause)
	}
	if cause := id.manager.services.cfg.Endpoints[id.path.GIDIndex].NotShared(); cause != nil && id.path.Remote.Port() == wire.UDPPort {
		err = fmt.Errorf("%w; this device has UDP port %d of %v, and only Verbena devices respond to other ports than %d: stop the process that has that one, or use another address: %w",
			err, id.path.Local.Port(), id.path.Local.Addr(), wire.UDPPort, cause)
	}
	if id.lookUpFailed != nil {
		err = fmt.Errorf("%w; %w", err, id.lookUpFailed)
	}
	return &verbs.CMError{Step: step, Local: id.local, Remote: id.remote, Err: err}
}

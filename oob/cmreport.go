package oob

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/verbena-rdma/verbena/oob/internal/greeting"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// reporter is what a requester needs to report how it has ended.
type reporter struct {
	once   sync.Once
	dev    verbs.CMDevice
	local  netip.Addr
	remote netip.AddrPort
	token  greeting.Token
	remove func() // of what the device calls when it is closed
}

// willReport has the requester report how it ends: by Close, or when the device is closed.
func (w *cm) willReport(r *rdma.Connections, conn *rdma.Connection, token greeting.Token) {
	p := &reporter{local: conn.LocalAddr().Addr(), remote: conn.PeerAddr(), token: token, remove: func() {}}
	p.dev, _ = r.Device().(verbs.CMDevice) // it has dialled
	cutShort := false
	var unwatch func()
	unwatch = r.Watch(func(_, next pe.State) {
		switch next {
		case pe.Stopping:
			cutShort = r.Engine().Draining()
		case pe.Idle:
			unwatch()
		}
	})
	if dev, ok := r.Device().(verbs.ClosingDevice); ok {
		p.remove = dev.OnClose(func() error {
			p.report(r.Err() == nil && !cutShort)
			return nil
		})
	}
	w.mu.Lock()
	w.reporter = p
	w.mu.Unlock()
}

// report reports, once, and waits for the acknowledgement for as long as outcomeTimeout. A
// responder that has gone does not need to know.
func (p *reporter) report(ok bool) {
	p.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), outcomeTimeout)
		defer cancel()
		_ = sendReport(ctx, p.dev, p.local, p.remote, &greeting.Report{Token: p.token, OK: ok})
	})
}

// sendReport asks a responder's service for a queue pair, with the report.
func sendReport(ctx context.Context, dev verbs.CMDevice, local netip.Addr, remote netip.AddrPort, report *greeting.Report) error {
	events := make(chan verbs.CMEvent, 8) // more than there are
	manager, err := dev.OpenCM(func(e verbs.CMEvent) {
		select {
		case events <- e:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer func() { _ = manager.Close() }()
	id, err := manager.Dial(verbs.CMDial{Addr: remote, Local: netip.AddrPortFrom(local, 0), Type: verbs.UD})
	if err != nil {
		return err
	}
	for {
		select {
		case e := <-events:
			switch e.Type {
			case verbs.CMResolved:
				if err := id.Connect(verbs.CMParam{PrivateData: report.Encode()}); err != nil {
					return err
				}
			case verbs.CMEstablished:
				return greeting.CheckAcknowledgement(e.Param.PrivateData)
			case verbs.CMFailed:
				return e.Err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reportTaker takes the requester's report, from when the exchange has succeeded until the
// context is Idle.
type reportTaker struct {
	way     *cm
	token   greeting.Token
	manager verbs.CM
	events  chan verbs.CMEvent
	done    chan struct{}
	answers sync.WaitGroup
}

// maxReports is how many reports wait to be looked at; those beyond it are repeated.
const maxReports = 16

// takeReports listens for the report of the requester with the token, on the address of a
// listener for connections.
func takeReports(w *cm, r *rdma.Connections, addr netip.AddrPort, token greeting.Token) (*reportTaker, error) {
	dev, ok := r.Device().(verbs.CMDevice)
	if !ok {
		return nil, fmt.Errorf("%w: %s has no connection manager", rdma.ErrNotSupported, r.Device().Name())
	}
	t := &reportTaker{way: w, token: token, events: make(chan verbs.CMEvent, 4*maxReports), done: make(chan struct{})}
	var err error
	if t.manager, err = dev.OpenCM(func(e verbs.CMEvent) {
		select {
		case t.events <- e:
		default: // it is repeated
		}
	}); err != nil {
		return nil, err
	}
	if _, err := t.manager.Listen(verbs.CMListen{Addr: addr, Type: verbs.UD, Backlog: maxReports}); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for reports on %v: %w", addr, err), t.manager.Close())
	}
	t.answers.Go(t.run)
	return t, nil
}

func (t *reportTaker) run() {
	for {
		select {
		case <-t.done:
			return
		case e := <-t.events:
			if e.Type == verbs.CMConnectRequest {
				t.take(e)
			}
			if e.ID != nil {
				_ = e.ID.Close()
			}
		}
	}
}

// anyQPN is the queue pair that an acknowledgement names, since it has to name one.
const anyQPN = 2

// take answers one report.
func (t *reportTaker) take(e verbs.CMEvent) {
	report, err := greeting.ReadReport(e.Param.PrivateData)
	if err != nil || subtle.ConstantTimeCompare(report.Token[:], t.token[:]) == 0 {
		_ = e.ID.Reject(nil)
		return
	}
	t.way.takeReport(report.OK)
	_ = e.ID.Accept(verbs.CMParam{QPN: anyQPN, PrivateData: greeting.Acknowledgement()})
}

// close takes no more reports.
func (t *reportTaker) close() {
	close(t.done)
	t.answers.Wait()
	_ = t.manager.Close()
}

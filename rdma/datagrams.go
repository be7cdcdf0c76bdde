package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

// Datagrams is a context of datagrams: an endpoint that exchanges messages with any number of
// peers, and with SRD also writes and reads their memory. An engine (package pe) drives it. The
// transport service is UD or SRD: DatagramsConfig.Transport.
//
// The endpoint exists from Starting on, so the context is Running at once. ExportEndpoint makes the
// endpoint's descriptor, and NewPeer makes a Peer from that of another endpoint; PeerAt and
// ResolvePeer make a Peer from an address. Tasks are allocated for a Peer, and each message names
// the Peer that sent it. A UD message fits into one packet; UD messages may be lost, duplicated or
// reordered, SRD messages only reordered.
type Datagrams struct {
	parts
	peers    map[EndpointAddr]*Peer // the peers that the context knows
	learned  fifo.List[*Peer]       // the peers known only by their messages, the oldest first
	endpoint *datagramEndpoint      // of one run
}

// NewDatagrams makes a context of datagrams on an open device. Everything else is as for New.
func NewDatagrams(dev verbs.Device, cfg DatagramsConfig) (*Datagrams, error) {
	set, err := resolve(dev, cfg.common(), &cfg)
	if err != nil {
		return nil, fmt.Errorf("rdma: make a context of datagrams: %w", err)
	}
	c := &Datagrams{peers: make(map[EndpointAddr]*Peer)}
	c.init(dev, set, c, nil, nil)
	if cfg.Engine != nil {
		if err := cfg.Engine.Connect(c); err != nil {
			return nil, fmt.Errorf("rdma: make a context of datagrams: %w", err)
		}
	}
	return c, nil
}

// Config returns the configuration with every default filled in, as Connections.Config does.
func (c *Datagrams) Config() DatagramsConfig {
	cfg := c.config()
	return DatagramsConfig{
		Transport: cfg.Transport, Name: cfg.Name, Engine: cfg.Engine, PD: cfg.PD, Path: cfg.Path,
		QKey: c.set.qkey, PKeyIndex: c.set.pKeyIndex, UnsolicitedWriteRecv: c.set.unsolicited, ConnectTimeout: cfg.ConnectTimeout,
		CloseTimeout: cfg.CloseTimeout, SendQueueSize: cfg.SendQueueSize, MaxSGE: cfg.MaxSGE, RNRRetry: cfg.RNRRetry,
	}
}

// close implements part.
func (c *Datagrams) close() error {
	d := c.endpoint
	if d == nil {
		return nil
	}
	d.leaveGroups()
	errs := d.release()
	c.endpoint = nil
	return errors.Join(errs...)
}

// work implements part.
func (c *Datagrams) work() int {
	c.endpoint.shutIfDone()
	return c.endpoint.resume() + c.lanes.end()
}

// busy implements part.
func (c *Datagrams) busy() bool { return false }

// event implements queuePairs.
func (c *Datagrams) event(ev *verbs.Event) int {
	d := c.endpoint
	switch {
	case ev.QPN == 0: // of the port
		if now := c.port.State().GID.Index; now != d.gidIndex {
			d.gidIndex = now
			d.handles.evictIdle()
		}
		return 0
	case d.lane.Num() != ev.QPN || ev.Type != verbs.EventQPFatal:
		return 0
	}
	c.failWith(fmt.Errorf("%w: the queue pair of context %q: %v", ErrDevice, c.set.Name, ev.Type))
	return 1
}

// stop implements queuePairs: the endpoint ends when the context does.
func (c *Datagrams) stop(reason error) {
	if reason == nil {
		c.endpoint.stop()
	}
	if c.lanes.Broken() {
		c.endpoint.shut()
		c.endpoint.lane.GiveUp()
	}
}

// gone implements queuePairs.
func (c *Datagrams) gone() bool { return c.endpoint == nil || c.endpoint.closed }

// request implements queuePairs: the peer gets the address of the endpoint.
func (c *Datagrams) request(q *ConnectRequest) {
	if err := q.Answer(q.listener.cfg.PrivateData); err != nil {
		c.control.Log().Warn().Err(err).Msg("failed to answer a request for the endpoint")
	}
}

// received implements queuePairs.
func (c *Datagrams) received(wc *verbs.WC) {
	if wc.Status == verbs.StatusSuccess {
		c.endpoint.lane.NoteReceived(wc)
	}
	if wc.Unsolicited { // a write with immediate, which took no receive
		if m := c.receives.messages; m != nil && wc.Status == verbs.StatusSuccess {
			m.deliver(c.arrivalFrom(nil, wc), nil)
		}
		return
	}
	t, ok := c.receives.Take(wc)
	switch {
	case !ok:
	case wc.Status == verbs.StatusSuccess:
		receiverOf(t).arrived(t, c.arrivalFrom(t.Receive, wc))
	default:
		c.receiveFailed(t, wc)
	}
}

// arrivalFrom is the arrival of a message that a receive has taken, or none.
func (c *Datagrams) arrivalFrom(r *receiving.Receive, wc *verbs.WC) *arrival {
	a := c.receives.arrivalOf(wc)
	c.endpoint.setSender(a, r, wc)
	c.startIfReady()
	return a
}

// receiveFailed handles the completion of a receive that failed.
func (c *Datagrams) receiveFailed(t receiving.Taken, wc *verbs.WC) {
	err := failedReceive(t, nil, wc)
	if c.phase == phaseUp {
		// Some devices end a queue pair for datagrams with a failed receive (rxe does for a
		// message that is too long).
		if attr, e := c.endpoint.lane.QP().Query(); e != nil || attr.State == verbs.QPError {
			c.control.Fail(err)
		}
	}
	if wc.Status == verbs.StatusFlushed {
		err.Cause = c.causeOf(nil)
	}
	receiverOf(t).failed(t, nil, err)
}

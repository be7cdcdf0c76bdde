package rdma

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/verbs"
)

// Datagrams is a context of datagrams: an endpoint that exchanges messages with any number of
// peers, and with SRD also writes and reads their memory. An engine (package pe) drives it. The
// transport service is UD or SRD: DatagramsConfig.Transport.
type Datagrams struct {
	base
	shared   DatagramPool
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
	c.init(dev, set, c)
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
		Transport: cfg.Transport, Name: cfg.Name, Engine: cfg.Engine, PD: cfg.PD, Path: cfg.Path, Queues: cfg.Queues,
		QKey: c.set.qkey, UnsolicitedWriteRecv: c.set.unsolicited, ConnectTimeout: cfg.ConnectTimeout,
		CloseTimeout: cfg.CloseTimeout, DrainTimeout: cfg.DrainTimeout, RNRRetry: cfg.RNRRetry, Log: cfg.Log,
	}
}

// release implements service.
func (c *Datagrams) release() []error {
	d := c.endpoint
	if d == nil {
		return nil
	}
	d.leaveGroups()
	errs := d.release()
	c.endpoint = nil
	return errs
}

// beforePoll implements service.
func (c *Datagrams) beforePoll() int { return 0 }

// afterPoll implements service.
func (c *Datagrams) afterPoll() int {
	c.endpoint.shutIfDone()
	return c.endpoint.resume()
}

// afterDrain implements service.
func (c *Datagrams) afterDrain() int { return 0 }

// notify implements service: only requests are reported.
func (c *Datagrams) notify(report) {}

// changeState implements service: the context stops only when it is told to.
func (c *Datagrams) changeState() {}

// busy implements service.
func (c *Datagrams) busy() bool { return false }

// eventQueued implements service.
func (c *Datagrams) eventQueued(*verbs.Event) {}

// event implements service.
func (c *Datagrams) event(ev *verbs.Event) int {
	if c.endpoint.lane.Num() != ev.QPN || ev.Type != verbs.EventQPFatal {
		return 0
	}
	c.failWith(fmt.Errorf("%w: the queue pair of context %q: %v", ErrDevice, c.set.Name, ev.Type))
	return 1
}

// eventsLost implements service: a queue pair in error flushes what is posted.
func (c *Datagrams) eventsLost() int { return 0 }

// portChanged implements service.
func (c *Datagrams) portChanged() {
	if c.endpoint != nil {
		c.endpoint.handles.evictIdle()
	}
}

// stop implements service.
func (c *Datagrams) stop() { c.endpoint.stop() }

// drained implements service.
func (c *Datagrams) drained() bool { return c.endpoint == nil || c.endpoint.closed }

// fail implements service: the endpoint ends with the context.
func (c *Datagrams) fail(error) {}

// giveUp implements service.
func (c *Datagrams) giveUp() {
	c.endpoint.shut()
	c.endpoint.lane.GiveUp()
}

// request implements service: the peer gets the address of the endpoint.
func (c *Datagrams) request(q *ConnectRequest) {
	if err := q.Answer(q.listener.cfg.PrivateData); err != nil {
		c.set.Log.Warn().Err(err).Str("context", c.set.Name).Msg("failed to answer a request for the endpoint")
	}
}

// received implements service.
func (c *Datagrams) received(r *receive, _ *Connection, wc *verbs.WC) {
	a := c.arrivalOf(wc)
	c.endpoint.setSender(a, r, wc)
	if c.startable() {
		c.control.Started()
	}
	r.owner.arrived(a)
}

// receivedUnsolicited implements service: a write with immediate is passed to the function of
// Receive.
func (c *Datagrams) receivedUnsolicited(wc *verbs.WC) {
	if c.messageBuffers == nil || wc.Status != verbs.StatusSuccess {
		return
	}
	a := c.arrivalOf(wc)
	c.endpoint.setSender(a, nil, wc)
	if c.startable() {
		c.control.Started()
	}
	c.messageBuffers.deliver(a, nil)
}

// receiveFailed implements service.
func (c *Datagrams) receiveFailed(r *receive, _ *Connection, wc *verbs.WC) {
	err := failedReceive(r, nil, wc)
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
	r.owner.failed(nil, err)
}

// appendHeader implements service.
func (c *Datagrams) appendHeader(sgl []verbs.SGE, r *receive) []verbs.SGE {
	d := c.endpoint
	if d == nil || d.headers == nil {
		return sgl
	}
	e := d.header
	e.Addr += uint64(headerStride * r.index)
	return append(sgl, e)
}

// needsReceives implements service.
func (c *Datagrams) needsReceives() bool { return false }

// refill implements service.
func (c *Datagrams) refill() {}

// receivedOwn implements service: there are no connections.
func (c *Datagrams) receivedOwn(*verbs.WC) {}

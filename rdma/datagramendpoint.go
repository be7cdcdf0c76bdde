package rdma

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/lane"
	"github.com/verbena-rdma/verbena/rdma/internal/deadline"
	"github.com/verbena-rdma/verbena/rdma/internal/receiving"
	"github.com/verbena-rdma/verbena/verbs"
)

// DefaultQKey is the Q_Key of contexts of datagrams whose DatagramsConfig has none: the public
// one of RDMA_PS_UDP (rdma_cm(7)).
const DefaultQKey = 0x01234567

// datagramEndpoint is the endpoint of a context of datagrams, in one run: a lane to any number
// of peers.
type datagramEndpoint struct {
	ctx         *Datagrams
	lane        *lane.Lane
	handles     addressHandles
	ended       atomic.Bool // helpers make no more address handles
	closed      bool        // the queue pair is destroyed
	resolutions fifo.List[*resolution]
	groups      map[netip.Addr]*MulticastGroup
	// flushCause is why the device has stopped the send queue; nil: it has not.
	flushCause error
	deadline   deadline.Deadline // until when tasks may complete after the context began to stop
	gidIndex   int               // of the local address, when a port was last looked at
}

// efaUnknownPeer is EFA's vendor code for a request that the peer's device refused because it has
// no address handle for this end.
const efaUnknownPeer = 14

// open implements part: it makes the endpoint. Tasks and receives can be posted at once.
func (c *Datagrams) open() (err error) {
	s := c.set
	d := &datagramEndpoint{ctx: c, groups: make(map[netip.Addr]*MulticastGroup), gidIndex: c.port.State().GID.Index}
	d.deadline.Init(&c.deadlines.Deadlines, d.due)
	c.endpoint = d
	d.handles = newAddressHandles(c, min(cmp.Or(s.maxAH, handleLimit), handleLimit))
	init := verbs.QPInit{
		Type: s.Transport, MaxRecvWR: max(c.receives.depth(), 1), MaxSendSGE: s.sendSGE, MaxRecvSGE: max(s.recvSGE+s.headerEntries(), 1),
		MaxInline: s.inline, UnsolicitedWriteRecv: s.unsolicited,
	}
	if d.lane, err = c.lanes.Open(s.PD, init, c.lanes.depth(), (*datagramOwner)(d)); err != nil {
		return err
	}
	attr, mask := verbs.QPAttr{Port: s.Path.Port, PKeyIndex: s.pKeyIndex, QKey: s.qkey, RNRRetry: s.rnrRetry}, verbs.QPAttrMask(0)
	if s.rnrRetrySettable {
		mask = verbs.QPAttrRNRRetry
	}
	if err := d.lane.OpenDatagrams(attr, mask); err != nil {
		return err
	}
	c.receives.PostTo(d.lane.QP())
	for _, p := range slices.SortedFunc(maps.Values(c.peers), (*Peer).compare) {
		if !p.learned.Queued() {
			if err := c.pin(p); err != nil {
				c.control.Log().Warn().Err(err).Msg("cannot reach a peer yet")
			}
		}
	}
	return nil
}

func (d *datagramEndpoint) addr() EndpointAddr {
	gid := &d.ctx.port.State().GID
	a := EndpointAddr{GID: gid.GID, QPN: d.lane.Num()}
	if gid.Type == verbs.GIDRoCEv2 {
		a.UDPPort = cmp.Or(gid.UDPPort, roceUDPPort)
	}
	return a
}

func (d *datagramEndpoint) push(r *Task) {
	d.handles.acquire(r.handle)
	if r.handle.creating {
		r.send.ChangeID() // the outcome of an earlier use does not count
		r.handle.waiting.Push(r)
		return
	}
	d.lane.Push(&r.send)
}

// completed handles the end of a task.
func (d *datagramEndpoint) completed(r *Task, p *Peer, status verbs.Status, vendor uint32) {
	c := d.ctx
	d.handles.release(r.handle)
	r.handle, r.send.WR.AH = nil, nil
	if status == verbs.StatusSuccess {
		r.succeed()
		return
	}
	err := &TaskError{Op: r.op, Status: status, Peer: p, VendorError: vendor}
	if c.set.Transport == verbs.SRD && status == verbs.StatusRemoteOperationError && vendor == efaUnknownPeer {
		err.advice = "the peer's program must call NewPeer for this endpoint before its memory can be accessed"
	}
	switch {
	case status == verbs.StatusFlushed:
		if d.flushCause == nil && !d.lane.IsShut() {
			c.failWith(fmt.Errorf("%w: the queue pair of context %q is in the error state", ErrDevice, c.set.Name))
		}
		if err.Cause = d.flushCause; err.Cause == nil {
			err.Cause = c.Err()
		}
		r.keepMemory(err)
	case c.set.Transport == verbs.UD && d.flushCause == nil:
		// The send queue is in the state SQE, and flushes the requests behind (IBTA 10.3.1.5).
		d.flushCause = err
		d.lane.Hold()
	}
	if d.flushCause != nil {
		c.wake() // for resume
	}
	c.control.End(&r.Task)
	r.pool.completed(r, err)
}

// resume restarts the send queue after the device has flushed it, and returns how much it did.
func (d *datagramEndpoint) resume() int {
	if d.flushCause == nil || d.lane.Posted() > 0 || d.lane.IsShut() {
		return 0
	}
	err := d.lane.Resume()
	if err != nil { // devices without the state SQE end the queue pair
		d.ctx.control.Fail(fmt.Errorf("rdma: context %q: its queue pair has ended with a task: %w", d.ctx.set.Name, d.flushCause))
	}
	d.flushCause = nil
	return 1
}

// stop ends the endpoint when the tasks at the device are done, or when Config.CloseTimeout is
// over.
func (d *datagramEndpoint) stop() {
	for e := d.resolutions.Front(); e != nil; e = e.Next() {
		d.ctx.manager.runOnEngine(func() { e.Value.end(nil, nil, fmt.Errorf("%w: the context is stopping", ErrFlushed)) })
	}
	d.ended.Store(true)
	d.leaveGroups()
	d.lane.StopPosting(nil)
	wait := d.ctx.set.CloseTimeout
	if d.lane.Posted() == 0 || wait < 0 {
		d.shut()
		return
	}
	d.deadline.Set(d.ctx.host.Now().Add(wait))
}

// due ends the endpoint: CloseTimeout is over.
func (d *datagramEndpoint) due(time.Time) { d.shut() }

// shutIfDone ends an endpoint whose last task is done.
func (d *datagramEndpoint) shutIfDone() {
	if d.ctx.phase == phaseDraining && d.lane.Posted() == 0 && !d.lane.IsShut() {
		d.shut()
	}
}

// shut puts the queue pair in error, so that what is posted comes back flushed.
func (d *datagramEndpoint) shut() {
	d.ended.Store(true)
	d.deadline.Set(time.Time{})
	if err := d.lane.Shut(); err != nil {
		d.ctx.control.Log().Warn().Err(err).Msg("failed to move the queue pair to the error state")
	}
	d.ctx.wake()
}

// release gives back what open took, even if open failed midway.
func (d *datagramEndpoint) release() (errs []error) {
	if d.lane != nil && !d.closed {
		errs = append(errs, d.lane.Close())
	}
	for _, p := range d.ctx.peers {
		p.pinned = nil
	}
	return append(errs, d.handles.close())
}

// datagramOwner is the endpoint as the owner of its lane.
type datagramOwner datagramEndpoint

// PostFailed implements lane.Owner.
func (o *datagramOwner) PostFailed(err error) {
	d := (*datagramEndpoint)(o)
	d.ctx.control.Fail(fmt.Errorf("rdma: %w: post tasks of context %q on %s: %w", ErrDevice, d.ctx.set.Name, d.ctx.dev.Name(), err))
	d.shut()
}

// setSender sets the sender and the length of a message to the endpoint.
func (d *datagramEndpoint) setSender(a *arrival, r *receiving.Receive, wc *verbs.WC) {
	s := d.ctx.set
	a.endpoint = d.ctx
	a.addr, a.lid = EndpointAddr{QPN: wc.SrcQPN}, wc.SLID
	if s.Transport == verbs.SRD {
		d.srdSender(a, wc)
		return
	}
	a.length -= verbs.GRHLen
	if !wc.HasGRH {
		return
	}
	var err error
	if a.grh, err = verbs.ParseGRH(d.ctx.receives.Header(r)); err == nil {
		a.hasGRH = true
		a.addr.GID = a.grh.SGID
		d.setUDPPort(a, wc)
	}
}

// srdSender sets the sender of a message to an SRD endpoint.
func (d *datagramEndpoint) srdSender(a *arrival, wc *verbs.WC) {
	extra := d.ctx.lanes.Extra()
	if h := d.handles.byNumber[extra.SourceAH]; h != nil && extra.SourceAH != verbs.NoAH {
		a.addr.GID, a.addr.UDPPort = h.to.gid, h.to.udpPort
		return
	}
	a.addr.GID = extra.SourceGID
	d.setUDPPort(a, wc)
}

func (d *datagramEndpoint) setUDPPort(a *arrival, wc *verbs.WC) {
	if d.ctx.port.State().GID.Type == verbs.GIDRoCEv2 {
		a.addr.UDPPort = cmp.Or(wc.SrcUDPPort, roceUDPPort)
	}
}

// stopping reports whether the endpoint takes no more tasks.
func (d *datagramEndpoint) stopping() bool { return !d.deadline.At().IsZero() || d.lane.IsShut() }

// laneDrained implements laneDrainer.
func (o *datagramOwner) laneDrained() int {
	d := (*datagramEndpoint)(o)
	c := d.ctx
	if c.phase == phaseUp {
		c.control.Fail(fmt.Errorf("rdma: %w: %s did not return the flushed tasks of context %q in time", ErrDevice, c.dev.Name(), c.set.Name))
	}
	c.settle(d.lane)
	n := d.handles.flush()
	n += d.lane.Flush()
	if !d.closed { // a lane that was shut is not opened again
		d.closed = true
		if err := d.lane.Close(); err != nil {
			c.control.Log().Warn().Err(err).Msg("failed to close the queue pair")
		}
		c.settle(d.lane)
	}
	return n + 1
}

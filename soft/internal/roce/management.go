package roce

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/gsi"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// OpenCM implements verbs.CMDevice.
func (d *Device) OpenCM(handle func(verbs.CMEvent)) (verbs.CM, error) {
	const op = "open connection manager"
	if handle == nil {
		return nil, fmt.Errorf("%s: handle is nil: %w", op, verbs.ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(op); err != nil {
		return nil, err
	}
	if d.mu.services == nil {
		d.openServices()
	}
	return d.mu.services.Open(handle), nil
}

// openServices starts to serve queue pair 1, until the device is closed.
func (d *Device) openServices() {
	cfg := gsi.Config{
		Device: d.cfg.Name, Log: d.log, GUID: d.guid, Slot: d.main.slot, MTU: pathMTU(d.cfg.InterfaceMTU), Lock: &d.mu, Now: d.now,
		Deadline: d.main.noteDeadline, CheckPeer: d.checkPeer, Requests: d.requests, MADs: &d.admission.MADs, Groups: d,
		Network: d.net,
	}
	for _, e := range d.endpoints {
		cfg.Endpoints = append(cfg.Endpoints, e)
	}
	d.mu.services = gsi.New(cfg)
}

// requests is gsi.Config.Requests. The lock of the first shard is held.
func (d *Device) requests(qpn uint32) (complete func() bool) {
	q := d.mu.queuePairs[qpn]
	if q == nil || q.init.Type != verbs.RC {
		return nil
	}
	var end uint32
	locked := func(f func() bool) bool {
		if q.shard != d.main.shard { // the locks of all shards are always taken in this order
			q.shard.mu.Lock()
			defer q.shard.mu.Unlock()
		}
		return f()
	}
	if !locked(func() bool { end = q.transport.NextPSN(); return q.transport.Requests() }) {
		return nil
	}
	return func() bool { return locked(func() bool { return q.transport.Complete(end) }) }
}

// handleManagement handles a packet to queue pair 1.
func (d *Device) handleManagement(e *endpoint, dg *link.Datagram, now time.Duration) {
	p := &e.packet
	if p.Opcode == wire.CNP {
		d.main.mu.counters.NotificationsIgnored++
		return
	}
	if p.Opcode != wire.UDSendOnly || p.DETH.SrcQP != wire.ManagementQPN || len(p.Payload) != mad.Len || !admission.DefaultPartition(p.PKey) {
		d.main.mu.drops.malformed++
		return
	}
	known := d.mu.services.NamesConnection(p.Payload, e.index, dg.Src)
	if !d.admission.MADs.Admit(e.entry, dg.Src.Addr(), known, now) {
		d.main.mu.drops.policed++
		return
	}
	if e.unconnectedFlow = wire.NewFlow(dg.Src, e.destination(dg)); !e.unconnectedFlow.CheckICRC(dg.Data, uint16(dg.Segment)) {
		d.main.mu.drops.badICRC++
		return
	}
	d.main.mu.counters.ReceivedPackets++
	if p.DETH.QKey != cm.QKey {
		d.main.mu.counters.QKeyViolations++
		return
	}
	if d.mu.services.Receive(p.Payload, e.index, dg.Src, now) && known {
		d.admission.MADs.Refund(dg.Src.Addr(), known)
	}
}

// Source implements gsi.Endpoint.
func (e *endpoint) Source() netip.AddrPort { return e.socket.Source() }

// SendMessage implements gsi.Endpoint.
func (e *endpoint) SendMessage(to netip.AddrPort, p *wire.Packet, payload []byte) error {
	_ = e.flush() // what is collected leaves first, so that a later error is that of the message
	out := udpOutput{endpoint: e, peer: to, flow: wire.NewFlow(e.socket.Source(), to)}
	out.Send(p, [][]byte{payload}, len(payload))
	return e.flush()
}

// addresses returns the addresses of the device.
func (d *Device) addresses() (list []netip.Addr) {
	for _, e := range d.endpoints {
		list = append(list, e.Addr().Addr())
	}
	return list
}

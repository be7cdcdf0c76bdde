package roce

import (
	"fmt"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/srd"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// destination is where the packets of an address handle go.
type destination struct {
	udpOutput
	srdAH srd.AH // for SRD requests
}

func newDestination(out udpOutput) destination {
	return destination{out, srd.NewAH(srd.Address{Local: out.endpoint.index, Peer: out.peer})}
}

// addressHandle is the transport.Output of datagrams to one peer.
type addressHandle struct {
	destination
	// own leads to the device's own queue pairs; nil: they are reached like all others. A GID of
	// the device without a port names them, but port 4791 there may be another process's.
	own    *destination
	number uint16
	// sender names the queue pair at the other end, and sourcePort is the UDP port that its
	// datagrams come from. 0: the program did not name it.
	sender     admission.Sender
	sourcePort uint16
	pd         *protectionDomain
	closed     bool
}

// CreateAH implements verbs.PD.
func (p *protectionDomain) CreateAH(attr verbs.AddressAttr) (verbs.AH, error) {
	const op = "create address handle"
	d := p.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.checkOpen(op); err != nil {
		return nil, err
	}
	if err := d.checkRoom(op, d.mu.addressHandles, d.limits.addressHandles, "address handles"); err != nil {
		return nil, err
	}
	find := d.outputTo
	if attr.DGID.Addr().IsMulticast() {
		find = d.outputToGroup
	}
	out, err := find(attr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	a := &addressHandle{destination: newDestination(out), pd: p}
	if port := d.ownPort(attr); port != 0 && port != out.peer.Port() {
		attr.UDPPort = port
		out, err := d.outputTo(attr)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		own := newDestination(out)
		a.own = &own
	}
	p.refs++
	d.mu.addressHandles++
	a.number = d.main.numbers.Add(out.peer)
	d.main.srd.SetNumber(len(d.endpoints), out.peer, a.number)
	if !out.multicast {
		a.sender, a.sourcePort = admission.Sender{Device: out.peer, QPN: attr.SourceQPN}, attr.SourceUDPPort
		d.admission.Senders.Add(a.sender, a.sourcePort)
	}
	return a, nil
}

// Send implements transport.Output.
func (a *addressHandle) Send(p *wire.Packet, pieces [][]byte, n int) bool {
	if a.own != nil {
		if q := a.pd.device.mu.queuePairs[p.DestQP]; q != nil && q.init.Type == verbs.UD {
			return a.own.Send(p, pieces, n)
		}
	}
	return a.udpOutput.Send(p, pieces, n)
}

// Number implements verbs.NumberedAH. It is verbs.NoAH once 65,535 peers have numbers.
func (a *addressHandle) Number() uint16 { return a.number }

// checkAH returns an error if a request in the domain cannot use the address
// handle (IBTA 11.4.1.1).
func (p *protectionDomain) checkAH(ah verbs.AH, remoteQPN uint32) error {
	a, ok := ah.(*addressHandle)
	switch {
	case !ok || a.pd.device != p.device:
		return fmt.Errorf("the address handle does not belong to device %s: %w", p.device.cfg.Name, verbs.ErrInvalid)
	case a.pd != p:
		return fmt.Errorf("the address handle belongs to protection domain %d, but the queue pair to %d: %w", a.pd.id, p.id, verbs.ErrInvalid)
	case a.closed:
		return fmt.Errorf("the address handle: %w", verbs.ErrClosed)
	case a.multicast != (remoteQPN == verbs.MulticastQPN):
		return fmt.Errorf("RemoteQPN is %#x for a datagram to %v; it must be %#x for multicast groups, and only for them: %w", remoteQPN, a.peer.Addr(), verbs.MulticastQPN, verbs.ErrInvalid)
	}
	return nil
}

// Close implements verbs.AH. Datagrams posted before Close still leave; SRD requests fail.
func (a *addressHandle) Close() error {
	d := a.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	a.pd.refs--
	d.mu.addressHandles--
	d.admission.Senders.Remove(a.sender, a.sourcePort)
	d.main.srd.CloseAH(&a.srdAH)
	if a.own != nil {
		d.main.srd.CloseAH(&a.own.srdAH)
	}
	if d.main.numbers.Remove(a.peer) {
		d.main.srd.SetNumber(len(d.endpoints), a.peer, verbs.NoAH)
	}
	d.main.failOverrun()
	return nil
}

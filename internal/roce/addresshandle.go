package roce

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// addressHandle leads datagrams to a peer. It is their transport.Output.
type addressHandle struct {
	udpOutput
	pd     *protectionDomain
	closed bool
}

// CreateAH implements verbs.PD.
func (p *protectionDomain) CreateAH(attr verbs.AddressAttr) (verbs.AH, error) {
	const op = "create address handle"
	d := p.device
	if attr.Port != 0 {
		if err := d.checkPort(attr.Port); err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.checkOpen(op); err != nil {
		return nil, err
	}
	out, err := d.outputTo(attr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	p.refs++
	return &addressHandle{udpOutput: out, pd: p}, nil
}

// checkAH returns an error if a request in the domain cannot use the address
// handle (IBTA 11.4.1.1).
func (p *protectionDomain) checkAH(ah verbs.AH) error {
	a, ok := ah.(*addressHandle)
	switch {
	case !ok || a.pd.device != p.device:
		return fmt.Errorf("a datagram needs an address handle of device %s: %w", p.device.cfg.Name, verbs.ErrInvalid)
	case a.pd != p:
		return fmt.Errorf("its address handle is of protection domain %d, the queue pair of %d: %w", a.pd.id, p.id, verbs.ErrInvalid)
	case a.closed:
		return fmt.Errorf("its address handle: %w", verbs.ErrClosed)
	}
	return nil
}

// Close implements verbs.AH. Datagrams posted before still leave.
func (a *addressHandle) Close() error {
	d := a.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if !a.closed {
		a.closed = true
		a.pd.refs--
	}
	return nil
}

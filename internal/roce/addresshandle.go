package roce

import (
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// addressHandle is the way of datagrams to a peer.
type addressHandle struct {
	pd     *protectionDomain
	path   path
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
	if err := p.use(op); err != nil {
		return nil, err
	}
	way, err := d.path(attr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	p.refs++
	return &addressHandle{pd: p, path: way}, nil
}

// checkAH says what is wrong with the address handle of a request in the domain
// (IBTA 11.4.1.1).
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

package roce

import (
	"fmt"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/rules"
)

type memoryWindow struct {
	pd     *protectionDomain
	window *transport.Window
	closed bool
}

// AllocMW implements verbs.WindowPD.
func (p *protectionDomain) AllocMW(t verbs.MWType) (verbs.MW, error) {
	const op = "allocate memory window"
	d := p.device
	if t != verbs.MWType1 && t != verbs.MWType2 {
		return nil, fmt.Errorf("%s: device %s has no type %d: %w", op, d.cfg.Name, t, verbs.ErrNotSupported)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.checkOpen(op); err != nil {
		return nil, err
	}
	if d.memory.Windows() >= maxMW {
		return nil, fmt.Errorf("%s: device %s has its limit of %d: %w", op, d.cfg.Name, maxMW, verbs.ErrLimit)
	}
	w := &memoryWindow{pd: p, window: transport.NewWindow(t, p.id, admission.Random())}
	for !d.memory.AddWindow(w.window) {
		w.window = transport.NewWindow(t, p.id, admission.Random())
	}
	p.refs++
	return w, nil
}

// findBind checks the window and the region of a bind. The lock is held.
func (p *protectionDomain) findBind(b *verbs.MWBind) (*transport.Window, *transport.Region, error) {
	if err := rules.CheckBind(b); err != nil {
		return nil, nil, err
	}
	w, ok := b.MW.(*memoryWindow)
	if !ok || w.pd.device != p.device {
		return nil, nil, fmt.Errorf("the memory window must be of device %s: %w", p.device.cfg.Name, verbs.ErrInvalid)
	}
	if err := rules.CheckWindowKey(b, w.window.RKey()); err != nil {
		return nil, nil, err
	}
	m, ok := b.MR.(*memoryRegion)
	if !ok || m.pd.device != p.device {
		return nil, nil, fmt.Errorf("the memory region must be of device %s: %w", p.device.cfg.Name, verbs.ErrInvalid)
	}
	return w.window, m.region, nil
}

func (w *memoryWindow) Type() verbs.MWType { return w.window.Type }

func (w *memoryWindow) RKey() uint32 {
	d := w.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	return w.window.RKey()
}

// Close implements verbs.MW. Packets are handled, and given to the socket, under the
// lock.
func (w *memoryWindow) Close() error {
	d := w.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.pd.refs--
	d.memory.RemoveWindow(w.window)
	return nil
}

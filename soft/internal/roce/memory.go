package roce

import (
	"errors"
	"fmt"
	"math"

	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/rules"
)

type protectionDomain struct {
	device *Device
	id     uint32
	refs   int
	closed bool
}

func (d *Device) newDomain() *protectionDomain {
	d.nextDomain++
	p := &protectionDomain{device: d, id: d.nextDomain}
	d.domains[p.id] = p
	return p
}

// AllocPD implements verbs.Device.
func (d *Device) AllocPD() (verbs.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen("allocate protection domain"); err != nil {
		return nil, err
	}
	return d.newDomain(), nil
}

func (p *protectionDomain) Device() verbs.Device { return p.device.cfg.Owner }

// checkOpen returns an error if the domain is closed. The lock is held.
func (p *protectionDomain) checkOpen(op string) error {
	if p.closed && !p.device.closed {
		return fmt.Errorf("%s: protection domain %d of device %s: %w", op, p.id, p.device.cfg.Name, verbs.ErrClosed)
	}
	return p.device.checkOpen(op)
}

func (p *protectionDomain) Close() error {
	d := p.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p == d.defaultPD:
		return fmt.Errorf("close protection domain: it is the default domain of device %s, and closes with the device: %w", d.cfg.Name, verbs.ErrInvalid)
	case p.refs > 0:
		return fmt.Errorf("close protection domain %d of device %s: %d objects in it are still open: %w", p.id, d.cfg.Name, p.refs, verbs.ErrInUse)
	}
	p.closed = true
	delete(d.domains, p.id)
	return nil
}

type memoryRegion struct {
	pd     *protectionDomain
	region *transport.Region
	unmap  func() error // nil: the memory belongs to the caller
	named  bool         // the network has given it its address
	closed bool
}

// checkMemory says why memory cannot be registered.
func (p *protectionDomain) checkMemory(mem []byte, access verbs.Access) error {
	if err := rules.CheckRegistration(uint64(len(mem)), access); err != nil {
		return err
	}
	if err := rules.CheckMapped(mem, access); err != nil {
		return fmt.Errorf("device %s: %w", p.device.cfg.Name, err)
	}
	return nil
}

// RegMRAt implements verbs.IOVAPD.
func (p *protectionDomain) RegMRAt(mem []byte, iova uint64, access verbs.Access) (verbs.MR, error) {
	if err := p.checkMemory(mem, access); err != nil {
		return nil, err
	}
	if iova > math.MaxUint64-uint64(len(mem)) {
		return nil, fmt.Errorf("register %d bytes at address %#x on device %s: they run past the end of the address space: %w", len(mem), iova, p.device.cfg.Name, verbs.ErrInvalid)
	}
	return p.register(&memoryRegion{pd: p, region: &transport.Region{Domain: p.id, Access: access, Mem: mem, Base: iova}})
}

// RegMR implements verbs.PD.
func (p *protectionDomain) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if err := p.checkMemory(mem, access); err != nil {
		return nil, err
	}
	net := p.device.net
	m, err := p.register(&memoryRegion{pd: p, named: true, region: &transport.Region{Domain: p.id, Access: access, Mem: mem, Base: net.Address(mem)}})
	if err != nil {
		net.Release(mem)
		return nil, err
	}
	return m, nil
}

// RegDMABufMR implements verbs.DMABufPD: it maps the dma-buf, if its exporter allows that. The
// exporter must keep it coherent with the processor without the ioctl DMA_BUF_IOCTL_SYNC,
// since peers access it at any time.
func (p *protectionDomain) RegDMABufMR(buf verbs.DMABuf, access verbs.Access) (verbs.MR, error) {
	if err := rules.CheckDMABuf(buf, access); err != nil {
		return nil, err
	}
	mem, unmap, err := dma.MapDMABuf(buf.FD, buf.Offset, buf.Length, access&verbs.AccessLocalWrite != 0)
	if err != nil {
		return nil, fmt.Errorf("register %d bytes from offset %d of the dma-buf of file descriptor %d on device %s: %w", buf.Length, buf.Offset, buf.FD, p.device.cfg.Name, err)
	}
	m, err := p.register(&memoryRegion{
		pd: p, unmap: unmap, region: &transport.Region{Domain: p.id, Access: access, Mem: mem, Base: buf.IOVA},
	})
	if err != nil {
		return nil, errors.Join(err, unmap())
	}
	return m, nil
}

// register gives a region its key.
func (p *protectionDomain) register(m *memoryRegion) (verbs.MR, error) {
	d, r := p.device, m.region
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.checkOpen("register memory"); err != nil {
		return nil, err
	}
	for r.Key = d.random(); !d.memory.Add(r); {
		r.Key = d.random()
	}
	p.refs++
	return m, nil
}

func (m *memoryRegion) Addr() uint64         { return m.region.Base }
func (m *memoryRegion) Len() uint64          { return uint64(len(m.region.Mem)) }
func (m *memoryRegion) Access() verbs.Access { return m.region.Access }
func (m *memoryRegion) LKey() uint32         { return m.region.Key }
func (m *memoryRegion) RKey() uint32         { return m.region.Key }

// Watch implements verbs.WatchableMR.
func (m *memoryRegion) Watch(off, n uint64, f func()) (cancel func(), err error) {
	d := m.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch size := m.Len(); {
	case m.closed:
		return nil, fmt.Errorf("watch memory region of device %s: %w", d.cfg.Name, verbs.ErrClosed)
	case f == nil:
		return nil, fmt.Errorf("watch memory region of device %s: the function is nil: %w", d.cfg.Name, verbs.ErrInvalid)
	case n == 0 || off > size || n > size-off:
		return nil, fmt.Errorf("watch memory region of device %s: %d bytes at offset %d; at least one byte is needed, and all must be in the region of %d bytes: %w", d.cfg.Name, n, off, size, verbs.ErrInvalid)
	}
	remove := m.region.Watch(off, n, f)
	return func() {
		// Packets are handled under the lock, so f is not running once it is held.
		d.mu.Lock()
		defer d.mu.Unlock()
		remove()
	}, nil
}

func (m *memoryRegion) Close() error {
	d := m.pd.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.closed {
		return nil
	}
	if n := m.region.Bound(); n > 0 {
		return fmt.Errorf("close memory region of device %s: %d memory windows are bound to it; invalidate or close them first: %w", d.cfg.Name, n, verbs.ErrInUse)
	}
	m.closed = true
	m.pd.refs--
	d.memory.Remove(m.region)
	if m.named {
		d.net.Release(m.region.Mem)
	}
	d.revoke(m.region.Mem)
	if m.unmap != nil {
		return m.unmap()
	}
	return nil
}

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
		return nil, fmt.Errorf("%s: device %s does not have type %d: %w", op, d.cfg.Name, t, verbs.ErrNotSupported)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.checkOpen(op); err != nil {
		return nil, err
	}
	if d.memory.Windows() >= maxMW {
		return nil, fmt.Errorf("%s: device %s already has %d memory windows, its limit: %w", op, d.cfg.Name, maxMW, verbs.ErrLimit)
	}
	w := &memoryWindow{pd: p, window: transport.NewWindow(t, p.id, d.random())}
	for !d.memory.AddWindow(w.window) {
		w.window = transport.NewWindow(t, p.id, d.random())
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
		return nil, nil, fmt.Errorf("the memory window does not belong to device %s: %w", p.device.cfg.Name, verbs.ErrInvalid)
	}
	if err := rules.CheckWindowKey(b, w.window.RKey()); err != nil {
		return nil, nil, err
	}
	m, ok := b.MR.(*memoryRegion)
	if !ok || m.pd.device != p.device {
		return nil, nil, fmt.Errorf("the memory region does not belong to device %s: %w", p.device.cfg.Name, verbs.ErrInvalid)
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

// Close implements verbs.MW. Packets are handled, and given to the socket, under the lock, so
// none uses the window after Close.
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

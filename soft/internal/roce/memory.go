package roce

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
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
	if d.closed {
		return nil, d.closedError("allocate protection domain")
	}
	return d.newDomain(), nil
}

func (p *protectionDomain) Device() verbs.Device { return p.device.cfg.Owner }

// checkOpen checks that the domain can have something new in it. The lock is held.
func (p *protectionDomain) checkOpen(op string) error {
	switch {
	case p.device.closed:
		return p.device.closedError(op)
	case p.closed:
		return fmt.Errorf("%s: protection domain %d of device %s: %w", op, p.id, p.device.cfg.Name, verbs.ErrClosed)
	}
	return nil
}

func (p *protectionDomain) Close() error {
	d := p.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p == d.defaultPD:
		return fmt.Errorf("close protection domain: it is the default one of device %s, which closes with the device: %w", d.cfg.Name, verbs.ErrInvalid)
	case p.refs > 0:
		return fmt.Errorf("close protection domain %d of device %s: %d objects in it are not closed: %w", p.id, d.cfg.Name, p.refs, verbs.ErrInUse)
	}
	p.closed = true
	delete(d.domains, p.id)
	return nil
}

type memoryRegion struct {
	pd     *protectionDomain
	region *transport.Region
	unmap  func() error // nil: the memory is the caller's
	closed bool
}

// RegMR implements verbs.PD.
func (p *protectionDomain) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if err := rules.CheckRegistration(uint64(len(mem)), access); err != nil {
		return nil, err
	}
	if err := rules.CheckMapped(mem, access); err != nil {
		return nil, fmt.Errorf("device %s: %w", p.device.cfg.Name, err)
	}
	base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	return p.register(&memoryRegion{pd: p, region: &transport.Region{Domain: p.id, Access: access, Mem: mem, Base: base}})
}

// RegDMABufMR implements verbs.DMABufPD: it maps the dma-buf, as far as whoever
// exports it allows. The exporter must keep it coherent with the processor without
// the ioctl DMA_BUF_IOCTL_SYNC, since peers access it at any time.
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
	for r.Key = admission.Random(); !d.memory.Add(r); {
		r.Key = admission.Random()
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
		return nil, fmt.Errorf("watch memory region of device %s: no function is given: %w", d.cfg.Name, verbs.ErrInvalid)
	case n == 0 || off > size || n > size-off:
		return nil, fmt.Errorf("watch memory region of device %s: %d bytes from offset %d, in a region of %d: %w", d.cfg.Name, n, off, size, verbs.ErrInvalid)
	}
	remove := m.region.Watch(off, n, f)
	return func() {
		// Packets are handled under the lock: f is not running once it is held.
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
		return fmt.Errorf("close memory region of device %s: %d memory windows are bound to it: invalidate or close them first: %w", d.cfg.Name, n, verbs.ErrInUse)
	}
	m.closed = true
	m.pd.refs--
	d.memory.Remove(m.region)
	d.revoke(m.region.Mem)
	if m.unmap != nil {
		return m.unmap()
	}
	return nil
}

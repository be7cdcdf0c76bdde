package roce

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/cverbs"
	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/soft/internal/roce/dma"
	"github.com/verbena-rdma/verbena/soft/internal/roce/transport"
	"github.com/verbena-rdma/verbena/verbs"
)

type protectionDomain struct {
	device *Device
	id     uint32
	refs   int
	closed bool
}

func (d *Device) newDomain() *protectionDomain {
	d.mu.nextDomain++
	p := &protectionDomain{device: d, id: d.mu.nextDomain}
	d.mu.domains[p.id] = p
	return p
}

// AllocPD implements verbs.Device.
func (d *Device) AllocPD() (verbs.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const op = "allocate protection domain"
	if err := d.checkOpen(op); err != nil {
		return nil, err
	}
	if err := d.checkRoom(op, len(d.mu.domains)-1, d.limits.domains, "protection domains"); err != nil { // without the default domain
		return nil, err
	}
	return d.newDomain(), nil
}

func (p *protectionDomain) Device() verbs.Device { return p.device.cfg.Owner }

// checkOpen returns an error if the domain is closed.
func (p *protectionDomain) checkOpen(op string) error {
	if p.closed && !p.device.mu.closed {
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
	delete(d.mu.domains, p.id)
	return nil
}

type memoryRegion struct {
	device *Device
	region atomic.Pointer[transport.Region] // Reregister replaces it
	unmap  func() error                     // nil: the memory belongs to the caller

	// The lock of the device guards these.
	pd     *protectionDomain
	named  bool // the network has given it its address
	closed bool
}

// checkMemory says why memory cannot be registered. On demand, it need not be accessible. A simulation
// does not ask the system: a call of it lets other goroutines go on meanwhile.
func (p *protectionDomain) checkMemory(mem []byte, access verbs.Access, onDemand bool) error {
	if err := rules.CheckRegistration(uint64(len(mem)), access); err != nil || onDemand || p.device.net.Simulated() {
		return err
	}
	if err := rules.CheckMapped(mem, access); err != nil {
		return fmt.Errorf("device %s: %w", p.device.cfg.Name, err)
	}
	return nil
}

// RegMRAt implements cverbs.PD.
func (p *protectionDomain) RegMRAt(mem []byte, iova uint64, access verbs.Access, onDemand bool) (verbs.MR, error) {
	if err := p.checkMemory(mem, access, onDemand); err != nil {
		return nil, err
	}
	if iova > math.MaxUint64-uint64(len(mem)) {
		return nil, fmt.Errorf("register %d bytes at address %#x on device %s: they run past the end of the address space: %w", len(mem), iova, p.device.cfg.Name, verbs.ErrInvalid)
	}
	r := &transport.Region{Access: access, Base: iova}
	r.SetMemory(mem, onDemand)
	return p.register(&memoryRegion{}, r)
}

// Prefetch implements cverbs.PD. The memory may be another's by the time that its pages come in, since the
// lock is free then; this changes nothing in them.
func (p *protectionDomain) Prefetch(e verbs.SGE, write, wait bool) error {
	d := p.device
	d.mu.Lock()
	far, err := p.findOnDemand(e, write)
	d.mu.Unlock()
	if err == nil && wait && !far.Populate(write) {
		err = fmt.Errorf("the memory cannot be accessed: map it for what it is to be used: %w", syscall.EFAULT)
	}
	if err != nil {
		return fmt.Errorf("prefetch %d bytes at address %#x with lkey %#x on device %s: %w", e.Length, e.Addr, e.LKey, d.cfg.Name, err)
	}
	return nil
}

// findOnDemand returns the memory of an entry of ibv_advise_mr(3), or an error with one of its errnos.
func (p *protectionDomain) findOnDemand(e verbs.SGE, write bool) (far dma.Far, err error) {
	r := p.device.mu.memory.Region(e.LKey)
	switch {
	case r == nil:
		return far, fmt.Errorf("no memory region has the key: %w", syscall.EFAULT)
	case r.Domain != p.id:
		return far, fmt.Errorf("the memory region is in another protection domain: %w", syscall.EPERM)
	case write && r.Access&verbs.AccessLocalWrite == 0:
		return far, fmt.Errorf("the memory region does not allow local writes: %w", syscall.EPERM)
	case !r.OnDemand():
		return far, fmt.Errorf("the memory region is not on demand: %w", syscall.EINVAL)
	}
	far, ok := r.Place(e.Addr, e.Length)
	if !ok {
		return far, fmt.Errorf("the memory region does not have all of the bytes: %w", syscall.EFAULT)
	}
	return far, nil
}

// RegMR implements verbs.PD.
func (p *protectionDomain) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if err := p.checkMemory(mem, access, false); err != nil {
		return nil, err
	}
	net := p.device.net
	m, err := p.register(&memoryRegion{named: true}, &transport.Region{Access: access, Mem: mem, Base: net.Address(mem)})
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
	m, err := p.register(&memoryRegion{unmap: unmap}, &transport.Region{Access: access, Mem: mem, Base: buf.IOVA})
	if err != nil {
		return nil, errors.Join(err, unmap())
	}
	return m, nil
}

// register gives a region its key.
func (p *protectionDomain) register(m *memoryRegion, r *transport.Region) (verbs.MR, error) {
	d := p.device
	d.mu.Lock()
	defer d.mu.Unlock()
	const op = "register memory"
	if err := p.checkOpen(op); err != nil {
		return nil, err
	}
	if err := d.checkRoom(op, d.mu.memory.Len(), d.limits.regions, "memory regions"); err != nil {
		return nil, err
	}
	r.Domain = p.id
	for r.Key = d.random(); !d.mu.memory.Add(r); {
		r.Key = d.random()
	}
	m.device, m.pd = d, p
	m.region.Store(r)
	p.refs++
	return m, nil
}

func (m *memoryRegion) Addr() uint64         { return m.region.Load().Base }
func (m *memoryRegion) Len() uint64          { return m.region.Load().Size() }
func (m *memoryRegion) Access() verbs.Access { return m.region.Load().Access }
func (m *memoryRegion) LKey() uint32         { return m.region.Load().Key }
func (m *memoryRegion) RKey() uint32         { return m.region.Load().Key }

// Reregister implements cverbs.MR. The region gets another transport.Region, so work requests that hold
// the old one fail, as after Close.
func (m *memoryRegion) Reregister(change cverbs.MRChange) error {
	d := m.device
	d.mu.Lock()
	defer d.mu.Unlock()
	op := fmt.Sprintf("change memory region of device %s", d.cfg.Name)
	pd := m.pd
	if change.PD != nil {
		var ok bool
		if pd, ok = change.PD.(*protectionDomain); !ok || pd.device != d {
			return fmt.Errorf("%s: the protection domain belongs to another device: %w", op, verbs.ErrInvalid)
		}
	}
	if m.closed {
		return fmt.Errorf("%s: %w", op, verbs.ErrClosed)
	}
	if err := pd.checkOpen(op); err != nil {
		return err
	}
	old := m.region.Load()
	if n := old.Bound(); n > 0 {
		return fmt.Errorf("%s: %d memory windows are bound to it; invalidate or close them first: %w", op, n, verbs.ErrInUse)
	}
	next := &transport.Region{Key: old.Key, Domain: pd.id, Access: old.Access, Mem: old.Mem, Far: old.Far, Base: old.Base}
	onDemand := old.OnDemand()
	if change.ChangeAccess {
		next.Access, onDemand = change.Access, change.OnDemand
	}
	if change.Mem != nil {
		if m.unmap != nil {
			return fmt.Errorf("%s: a dma-buf is registered, and only a new region can have other memory: %w", op, verbs.ErrNotSupported)
		}
		next.Mem = change.Mem
	}
	if change.Mem != nil || change.ChangeAccess {
		mem := next.Mem
		if mem == nil {
			mem = old.Far.Bytes()
		}
		if err := pd.checkMemory(mem, next.Access, onDemand); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		next.SetMemory(mem, onDemand)
	}
	d.mu.memory.Remove(old)
	d.revoke(old.Mem)
	if change.Mem != nil {
		if m.named {
			d.net.Release(old.Mem)
		}
		m.named, next.Base = true, d.net.Address(change.Mem)
	}
	for change.NewKey && next.Key == old.Key || !d.mu.memory.Add(next) { // the old key is free
		next.Key = d.random()
	}
	m.region.Store(next)
	m.pd.refs--
	pd.refs++
	m.pd = pd
	return nil
}

// Watch implements optional.WatchableMR.
func (m *memoryRegion) Watch(off, n uint64, f func()) (cancel func(), err error) {
	d := m.device
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
	remove := m.region.Load().Watch(off, n, f)
	return func() {
		// Packets are handled under the lock, so f is not running once it is held.
		d.mu.Lock()
		defer d.mu.Unlock()
		remove()
	}, nil
}

func (m *memoryRegion) Close() error {
	d := m.device
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.closed {
		return nil
	}
	region := m.region.Load()
	if n := region.Bound(); n > 0 {
		return fmt.Errorf("close memory region of device %s: %d memory windows are bound to it; invalidate or close them first: %w", d.cfg.Name, n, verbs.ErrInUse)
	}
	m.closed = true
	m.pd.refs--
	d.mu.memory.Remove(region)
	if m.named {
		d.net.Release(region.Mem)
	}
	d.revoke(region.Mem)
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
	if err := d.checkRoom(op, d.mu.memory.Windows(), d.limits.windows, "memory windows"); err != nil {
		return nil, err
	}
	w := &memoryWindow{pd: p, window: transport.NewWindow(t, p.id, d.random())}
	for !d.mu.memory.AddWindow(w.window) {
		w.window = transport.NewWindow(t, p.id, d.random())
	}
	p.refs++
	return w, nil
}

// findBind checks the window and the region of a bind.
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
	if !ok || m.device != p.device {
		return nil, nil, fmt.Errorf("the memory region does not belong to device %s: %w", p.device.cfg.Name, verbs.ErrInvalid)
	}
	return w.window, m.region.Load(), nil
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
	d.mu.memory.RemoveWindow(w.window)
	return nil
}

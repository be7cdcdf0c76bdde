//go:build linux && cgo && verbs

package ibverbs

// #include "verbena_ibverbs.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cgo/internal/abi"
	"github.com/verbena-rdma/verbena/internal/rules"
	"github.com/verbena-rdma/verbena/verbs"
)

type protectionDomain struct {
	device *device
	c      *C.struct_ibv_pd
	refs   int  // guarded by the device's lock
	closed bool // likewise
}

// AllocPD implements [verbs.Device].
func (d *device) AllocPD() (verbs.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		return nil, d.closedError("allocate protection domain")
	}
	c, err := C.vb_alloc_pd(d.ctx)
	if c == nil {
		return nil, verbError("ibv_alloc_pd", "a protection domain of "+d.info.Name, err)
	}
	d.domains++
	return &protectionDomain{device: d, c: c}, nil
}

func (p *protectionDomain) Device() verbs.Device { return p.device }

// use adds a reference to the domain, for an object in it; release removes the reference.
func (p *protectionDomain) use(op string) error {
	d := p.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ctx == nil:
		return d.closedError(op)
	case p.closed:
		return fmt.Errorf("%s: the protection domain of device %s: %w", op, d.info.Name, verbs.ErrClosed)
	}
	p.refs++
	return nil
}

func (p *protectionDomain) release() {
	p.device.mu.Lock()
	defer p.device.mu.Unlock()
	p.refs--
}

func (p *protectionDomain) Close() error {
	d := p.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p == d.defaultPD:
		return fmt.Errorf("close protection domain: the default protection domain of device %s closes with the device: %w", d.info.Name, verbs.ErrInvalid)
	case p.closed:
		return nil
	case p.refs > 0:
		return fmt.Errorf("close protection domain of device %s: %d objects in it are not closed: %w", d.info.Name, p.refs, verbs.ErrInUse)
	}
	if err := d.checkDestroyed("ibv_dealloc_pd", "a protection domain of "+d.info.Name, C.vb_dealloc_pd(p.c)); err != nil {
		return err
	}
	p.closed = true
	d.domains--
	return nil
}

type memoryRegion struct {
	pd     *protectionDomain
	addr   uint64
	length uint64
	access verbs.Access
	lkey   uint32
	rkey   uint32

	// Not the device's lock, because deregistering much memory takes long.
	mu sync.Mutex
	c  *C.struct_ibv_mr // nil when closed
}

// RegMR implements [verbs.PD].
func (p *protectionDomain) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if err := rules.CheckRegistration(uint64(len(mem)), access); err != nil {
		return nil, err
	}
	if err := p.use("register memory"); err != nil {
		return nil, err
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	c, err := C.vb_reg_mr(p.c, C.uintptr_t(start), C.size_t(len(mem)), C.uint(abi.AccessFlags(access)))
	runtime.KeepAlive(mem)
	if c == nil {
		p.release()
		return nil, p.notRegistered(start, len(mem), err)
	}
	return &memoryRegion{
		pd: p, c: c, addr: uint64(start), length: uint64(len(mem)), access: access,
		lkey: uint32(c.lkey), rkey: uint32(c.rkey),
	}, nil
}

func (p *protectionDomain) notRegistered(start uintptr, n int, err error) error {
	e := &Error{Verb: "ibv_reg_mr", Request: fmt.Sprintf("%d bytes at %#x on %s", n, start, p.device.info.Name)}
	e.Errno, _ = errors.AsType[syscall.Errno](err)
	e.Kind, e.Detail = kindOf(e.Errno), adviceFor(e.Errno)
	switch e.Errno {
	case syscall.ENOMEM, syscall.EAGAIN, syscall.EPERM:
		var limit unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur < 1<<62 {
			e.Detail = fmt.Sprintf("this process may lock %d bytes of memory: raise the limit (ulimit -l, LimitMEMLOCK in systemd, memlock in limits.conf)", limit.Cur)
		}
	case syscall.EFAULT:
		e.Detail = "the memory is not mapped, or it is read-only and write access was requested"
	}
	return e
}

func (m *memoryRegion) Addr() uint64         { return m.addr }
func (m *memoryRegion) Len() uint64          { return m.length }
func (m *memoryRegion) Access() verbs.Access { return m.access }
func (m *memoryRegion) LKey() uint32         { return m.lkey }
func (m *memoryRegion) RKey() uint32         { return m.rkey }

func (m *memoryRegion) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.c == nil {
		return nil
	}
	d := m.pd.device
	if m.access&verbs.AccessMWBind != 0 { // a post of a bind may name it
		d.handles.Lock()
		defer d.handles.Unlock()
	}
	asked := fmt.Sprintf("the region of %d bytes at %#x on %s", m.length, m.addr, d.info.Name)
	if err := d.checkDestroyed("ibv_dereg_mr", asked, C.vb_dereg_mr(m.c)); err != nil {
		if e, ok := errors.AsType[*Error](err); ok && m.access&verbs.AccessMWBind != 0 && (e.Errno == syscall.EINVAL || e.Errno == syscall.EBUSY) {
			e.Kind, e.Detail = verbs.ErrInUse, "memory windows are bound to it: invalidate or close them first"
		}
		return err
	}
	m.c = nil
	m.pd.release()
	return nil
}

// Package faultydevice is a device for tests: a software device that fails, blocks or lacks
// features as adapters do. It only changes calls through the interface of package verbs.
//
// Each call on the device or its objects calls the hook of that name, if one is set
// (Device.Set), and otherwise the software device. A hook that replaces a call gets the
// software device's object, and may call it. Each function of this package that returns or
// sets hooks reproduces a behaviour that adapters have shown.
package faultydevice

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// ErrBroken is an error without any cause.
var ErrBroken = errors.New("the device is broken")

// ErrGone is the error of the driver for adapters when the kernel reports that the device is
// gone.
var ErrGone error = &ibverbs.Error{Verb: "ibv_destroy_qp", Errno: syscall.EIO, Kind: verbs.ErrNoDevice}

// ErrDown is the error of the driver for adapters when the kernel cannot resolve the address
// of a peer, because its host is down.
var ErrDown error = &ibverbs.Error{Verb: "ibv_modify_qp", Errno: syscall.ETIMEDOUT, Kind: verbs.ErrUnreachable}

// Receives is an object to which receives are posted: a queue pair, or a shared receive queue.
type Receives interface {
	PostRecv(wrs []verbs.RecvWR) (int, error)
}

// Hooks are functions that replace or precede calls of the software device. They run on the
// caller's goroutine. They may block.
type Hooks struct {
	// These change what a query returns, or fail it.
	Query     func(*verbs.DeviceAttr) error
	QueryPort func(*verbs.PortAttr) error
	GIDs      func([]verbs.GIDEntry) ([]verbs.GIDEntry, error)

	// These are called before an object is created. They may change its attributes, or fail.
	CreateCQ  func(*verbs.CQInit) error
	CreateQP  func(*verbs.QPInit) error
	CreateSRQ func(*verbs.SRQInit) error
	CreateAH  func(*verbs.AddressAttr) error
	RegMR     func(mem []byte) error
	// Registered is called with each region that was registered.
	Registered func(verbs.MR)

	// These replace the call on an object of the software device.
	Modify     func(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error
	PostSend   func(qp verbs.QP, wrs []verbs.SendWR) (int, error)
	PostRecv   func(queue Receives, wrs []verbs.RecvWR) (int, error)
	Poll       func(cq verbs.CQ, wcs []verbs.WC) (int, error)
	Arm        func(cq verbs.CQ, solicitedOnly bool) (bool, error)
	DestroyQP  func(verbs.QP) error
	DestroySRQ func(verbs.SRQ) error
	// QPN replaces QP.Num.
	QPN func(verbs.QP) uint32
	// These are called before the connection manager dials or listens. They may change its
	// parameters.
	Dial   func(*verbs.CMDial)
	Listen func(*verbs.CMListen)
	// CMAttr replaces CMID.Attr.
	CMAttr func(id verbs.CMID, to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error)
	// CloseCM replaces CM.Close. In the driver for adapters, CM.Close waits until all
	// identifiers are destroyed (rdma_destroy_id(3)).
	CloseCM func(verbs.CM) error
}

// Software is what a software device can do, simulated or not.
type Software interface {
	verbs.Device
	verbs.CMDevice
	verbs.ClosingDevice
	optional.MemoryDevice
}

// Device is a software device with hooks.
type Device struct {
	Software
	pd    pd
	hooks atomic.Pointer[Hooks]

	mu          sync.Mutex
	queues      map[any]any // the device's own object by the software device's, for completion and shared receive queues
	refused     []func() error
	subscribers map[*func(verbs.Event)]struct{}
}

// Open opens a software device, like soft.Open. The configuration decides about its path
// through shared memory.
func Open(cfg soft.Config) (*Device, error) {
	inner, err := soft.Open(cfg)
	if err != nil {
		return nil, err
	}
	return on(inner), nil
}

// Simulated returns a device whose software device is that of a simulated host.
func Simulated(h *sim.Host) *Device { return on(h.Device().(Software)) }

func on(inner Software) *Device {
	d := &Device{Software: inner, queues: make(map[any]any), subscribers: make(map[*func(verbs.Event)]struct{})}
	d.pd = pd{PD: inner.DefaultPD(), dev: d}
	d.hooks.Store(&Hooks{})
	return d
}

// Host is the host of the software device.
func (d *Device) Host() host.Host { return host.Of(d.Software) }

// Set changes the hooks. The change holds for calls that begin after Set has returned. Set may
// be called on any goroutine, also in hooks.
func (d *Device) Set(change func(*Hooks)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := *d.hooks.Load()
	change(&h)
	d.hooks.Store(&h)
}

// Heal removes all hooks.
func (d *Device) Heal() { d.Set(func(h *Hooks) { *h = Hooks{} }) }

// Report reports an event to all subscribers, on the caller's goroutine.
func (d *Device) Report(e verbs.Event) {
	d.mu.Lock()
	var list []func(verbs.Event)
	for f := range d.subscribers {
		list = append(list, *f)
	}
	d.mu.Unlock()
	for _, f := range list {
		f(e)
	}
}

// Close removes the hooks, destroys the objects that it refused to destroy, and closes the
// device.
func (d *Device) Close() error {
	d.Heal()
	d.mu.Lock()
	refused := d.refused
	d.refused = nil
	d.mu.Unlock()
	var errs []error
	for _, destroy := range refused {
		errs = append(errs, destroy())
	}
	return errors.Join(append(errs, d.Software.Close())...)
}

// destroyed records an object whose destruction was refused, for Close.
func (d *Device) destroyed(err error, destroy func() error) error {
	if err != nil {
		d.mu.Lock()
		d.refused = append(d.refused, destroy)
		d.mu.Unlock()
	}
	return err
}

// add records the device's own object for one of the software device.
func (d *Device) add(inner, own any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues[inner] = own
}

// Query implements verbs.Device.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	attr, err := d.Software.Query()
	if f := d.hooks.Load().Query; f != nil && err == nil {
		err = f(&attr)
	}
	return attr, err
}

// QueryPort implements verbs.Device.
func (d *Device) QueryPort(port int) (verbs.PortAttr, error) {
	attr, err := d.Software.QueryPort(port)
	if f := d.hooks.Load().QueryPort; f != nil && err == nil {
		err = f(&attr)
	}
	return attr, err
}

// GIDs implements verbs.Device.
func (d *Device) GIDs(port int) ([]verbs.GIDEntry, error) {
	list, err := d.Software.GIDs(port)
	if f := d.hooks.Load().GIDs; f != nil && err == nil {
		return f(list)
	}
	return list, err
}

// DefaultPD implements verbs.Device.
func (d *Device) DefaultPD() verbs.PD { return &d.pd }

// AllocPD implements verbs.Device.
func (d *Device) AllocPD() (verbs.PD, error) {
	inner, err := d.Software.AllocPD()
	if err != nil {
		return nil, err
	}
	return &pd{PD: inner, dev: d}, nil
}

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	if f := d.hooks.Load().CreateCQ; f != nil {
		if err := f(&init); err != nil {
			return nil, err
		}
	}
	inner, err := d.Software.CreateCQ(init)
	if err != nil {
		return nil, err
	}
	q := &cq{CQ: inner, dev: d}
	d.add(inner, q)
	return q, nil
}

// SubscribeEvents implements verbs.Device.
func (d *Device) SubscribeEvents(handle func(verbs.Event)) (cancel func()) {
	d.mu.Lock()
	d.subscribers[&handle] = struct{}{}
	d.mu.Unlock()
	end := d.Software.SubscribeEvents(func(e verbs.Event) {
		d.mu.Lock()
		if e.CQ != nil {
			e.CQ, _ = d.queues[e.CQ].(verbs.CQ)
		}
		if e.SRQ != nil {
			e.SRQ, _ = d.queues[e.SRQ].(verbs.SRQ)
		}
		d.mu.Unlock()
		handle(e)
	})
	return func() {
		d.mu.Lock()
		delete(d.subscribers, &handle)
		d.mu.Unlock()
		end()
	}
}

// OpenCM implements verbs.CMDevice.
func (d *Device) OpenCM(handle func(verbs.CMEvent)) (verbs.CM, error) {
	m := &cm{dev: d, ids: make(map[verbs.CMID]*cmID)}
	inner, err := d.Software.OpenCM(func(e verbs.CMEvent) {
		if e.ID != nil {
			e.ID = m.own(e.ID)
		}
		handle(e)
	})
	if err != nil {
		return nil, err
	}
	m.CM = inner
	return m, nil
}

package mmap

import (
	"errors"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDriver = errors.New("the driver refuses")

// fakeDevice has no memory translation, but keeps count of what is registered.
type fakeDevice struct {
	verbs.Device
	name string
	pd   *fakePD
	node int // NUMA
}

type fakePD struct {
	verbs.PD
	dev         *fakeDevice
	live        []*fakeMR
	refuse      bool // RegMR fails
	refuseClose bool // MR.Close fails
	registered  int
	moved       uint64 // from an address of the program to the device's
	watchable   bool   // its regions are watchedMRs
	refuseWatch bool
	watched     []*watchedMR
}

type fakeMR struct {
	verbs.MR
	pd     *fakePD
	mem    []byte
	addr   uint64
	access verbs.Access
	key    uint32
}

// watchedMR is a fakeMR of a device that notices changes.
type watchedMR struct {
	*fakeMR
	watches map[int]watched
	refuse  bool
}

type watched struct {
	off, n uint64
	f      func()
}

func (r *watchedMR) Watch(off, n uint64, f func()) (func(), error) {
	if r.refuse {
		return nil, errDriver
	}
	id := len(r.watches)
	r.watches[id] = watched{off, n, f}
	return func() { delete(r.watches, id) }, nil
}

func newDevice(name string) *fakeDevice {
	d := &fakeDevice{name: name}
	d.pd = &fakePD{dev: d}
	return d
}

func (d *fakeDevice) Name() string { return d.name }
func (d *fakeDevice) Query() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{NUMANode: d.node}, nil
}
func (d *fakeDevice) DefaultPD() verbs.PD        { return d.pd }
func (d *fakeDevice) AllocPD() (verbs.PD, error) { return &fakePD{dev: d, registered: 1000}, nil }
func (p *fakePD) Device() verbs.Device           { return p.dev }
func (r *fakeMR) Addr() uint64                   { return r.addr }
func (r *fakeMR) LKey() uint32                   { return r.key }
func (r *fakeMR) RKey() uint32                   { return r.key | 1<<31 }
func (p *fakePD) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if p.refuse {
		return nil, errDriver
	}
	p.registered++
	r := &fakeMR{pd: p, mem: mem, addr: addressOf(mem) + p.moved, access: access, key: uint32(p.registered)}
	p.live = append(p.live, r)
	if p.watchable {
		w := &watchedMR{fakeMR: r, watches: map[int]watched{}, refuse: p.refuseWatch}
		p.watched = append(p.watched, w)
		return w, nil
	}
	return r, nil
}

func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

func (r *fakeMR) Close() error {
	if r.pd.refuseClose {
		return errDriver
	}
	for i, l := range r.pd.live {
		if l == r {
			r.pd.live = append(r.pd.live[:i:i], r.pd.live[i+1:]...)
			return nil
		}
	}
	return errors.New("closed twice")
}

package perf

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/internal/counters"
	"github.com/verbena-rdma/verbena/verbs"
)

// openDevice is an open device, with the port and the GID to use.
type openDevice struct {
	dev   verbs.Device
	more  []verbs.Device // for batches
	port  int
	gid   *int // nil: no GID has a route to the other end; package rdma chooses
	local netip.Addr
}

// open opens the devices that the flags name, or else the device through which the system
// reaches an address.
func open(o *options, target netip.Addr) (d *openDevice, err error) {
	names := strings.Split(o.device, ",")
	r, err := route.Find(names[0], target)
	if err != nil {
		return nil, err
	}
	d = &openDevice{port: o.ibPort}
	if d.dev, err = device.Open(r.Device); err != nil {
		return nil, err
	}
	for _, name := range names[1:] {
		dev, err := device.Open(name)
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.more = append(d.more, dev)
	}
	if o.gid >= 0 {
		d.gid = &o.gid
		return d, nil
	}
	if err = r.Rank(d.dev); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	for _, c := range r.Candidates {
		if c.Used && (o.ibPort == 0 || o.ibPort == c.Port) {
			d.port, d.gid, d.local = c.Port, &c.Entry.Index, c.Entry.GID.Addr()
		}
	}
	return d, nil
}

func (d *openDevice) all() []verbs.Device { return append([]verbs.Device{d.dev}, d.more...) }

func (d *openDevice) Close() (err error) {
	for _, dev := range d.all() {
		err = errors.Join(err, dev.Close())
	}
	return err
}

// host describes this end. gid is the GID in use.
func (d *openDevice) host(gid verbs.GIDEntry) (h control.Host, err error) {
	attr, err := d.dev.Query()
	if err != nil {
		return h, err
	}
	port, err := d.dev.QueryPort(max(d.port, 1))
	if err != nil {
		return h, err
	}
	var names []string
	for _, dev := range d.all() {
		names = append(names, dev.Name())
	}
	return control.Host{
		Machine: machine.Describe(), Device: strings.Join(names, ","), Driver: d.dev.Driver(), Firmware: attr.FirmwareVersion,
		GID: gid.GID.Addr().String(), GIDIndex: gid.Index, GIDType: fmt.Sprint(gid.Type),
		Link: fmt.Sprint(port.LinkLayer), Rate: port.ActiveRate,
	}, nil
}

// counterSnapshot records the counters of the devices, those of one name together, and the number of swapped pages, to find
// what changes.
type counterSnapshot struct {
	devices []verbs.Device
	before  map[string]uint64
	swapped uint64
}

func newCounterSnapshot(d *openDevice) *counterSnapshot {
	g := &counterSnapshot{devices: d.all(), before: map[string]uint64{}, swapped: machine.Swapped()}
	for _, c := range g.read() {
		g.before[label(c)] = c.Value
	}
	return g
}

func (g *counterSnapshot) read() (sum []verbs.Counter) {
	for _, dev := range g.devices {
		list, _ := dev.Counters() // without those that cannot be read
		sum = counters.AddLists(sum, list)
	}
	return sum
}

// label is the name of a counter, which several ports may have.
func label(c verbs.Counter) string {
	if c.Port > 1 {
		return fmt.Sprintf("%s of port %d", c.Name, c.Port)
	}
	return c.Name
}

// changes returns the counters that have changed, and the number of pages swapped since.
func (g *counterSnapshot) changes() (changed []control.Counter, swapped uint64) {
	for _, c := range g.read() {
		if delta := int64(c.Value - g.before[label(c)]); delta != 0 {
			changed = append(changed, control.Counter{Name: label(c), Delta: delta})
		}
	}
	return changed, machine.Swapped() - g.swapped
}

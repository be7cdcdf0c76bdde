package perf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/control"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/machine"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/verbs"
)

// openDevice is an open device, with the port and the GID to use.
type openDevice struct {
	dev   verbs.Device
	port  int
	gid   *int // nil: no GID has a route to the other end; package rdma chooses
	local netip.Addr
}

// open opens the device that the flags name, or else the device through which the system
// reaches an address.
func open(o *options, target netip.Addr) (d *openDevice, err error) {
	r, err := route.Find(o.device, target)
	if err != nil {
		return nil, err
	}
	d = &openDevice{port: o.ibPort}
	if d.dev, err = device.Open(r.Device); err != nil {
		return nil, err
	}
	if o.gid >= 0 {
		d.gid = &o.gid
		return d, nil
	}
	if err = r.Rank(d.dev); err != nil {
		return nil, errors.Join(err, d.dev.Close())
	}
	for _, c := range r.Candidates {
		if c.Used && (o.ibPort == 0 || o.ibPort == c.Port) {
			d.port, d.gid, d.local = c.Port, &c.Entry.Index, c.Entry.GID.Addr()
		}
	}
	return d, nil
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
	return control.Host{
		Machine: machine.Describe(), Device: d.dev.Name(), Driver: d.dev.Driver(), Firmware: attr.FirmwareVersion,
		GID: gid.GID.Addr().String(), GIDIndex: gid.Index, GIDType: fmt.Sprint(gid.Type),
		Link: fmt.Sprint(port.LinkLayer), Rate: port.ActiveRate,
	}, nil
}

// counterSnapshot records the counters of the device and the number of swapped pages, to find
// what changes.
type counterSnapshot struct {
	dev     verbs.Device
	before  map[string]uint64
	swapped uint64
}

func newCounterSnapshot(dev verbs.Device) *counterSnapshot {
	g := &counterSnapshot{dev: dev, before: map[string]uint64{}, swapped: machine.Swapped()}
	list, _ := dev.Counters() // without those that cannot be read
	for _, c := range list {
		g.before[label(c)] = c.Value
	}
	return g
}

// label is the name of a counter, which several ports may have.
func label(c verbs.Counter) string {
	if c.Port > 1 {
		return fmt.Sprintf("%s of port %d", c.Name, c.Port)
	}
	return c.Name
}

// changes returns the counters that have changed, and the number of pages swapped since.
func (g *counterSnapshot) changes() (counters []control.Counter, swapped uint64) {
	list, _ := g.dev.Counters()
	for _, c := range list {
		if delta := int64(c.Value - g.before[label(c)]); delta != 0 {
			counters = append(counters, control.Counter{Name: label(c), Delta: delta})
		}
	}
	return counters, machine.Swapped() - g.swapped
}

package rdma_test

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

func setPort(d *faultydevice.Device, change func(*verbs.PortAttr)) {
	d.Set(func(h *faultydevice.Hooks) {
		h.QueryPort = func(p *verbs.PortAttr) error {
			change(p)
			return nil
		}
	})
}

// A port that no packets pass is refused, by New and by Start.
func TestUnusablePort(t *testing.T) {
	for name, change := range map[string]func(*verbs.PortAttr){
		"down": func(p *verbs.PortAttr) { p.State, p.ActiveMTU = verbs.PortDown, 0 },
		"init": func(p *verbs.PortAttr) { p.State = verbs.PortInit },
		"MTU":  func(p *verbs.PortAttr) { p.ActiveMTU = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			dev := closed(t, must(faultydevice.Open(soft.Config{})))
			engine := pe.New(pe.Config{})
			c, err := rdma.New(dev, rdma.Config{Engine: engine})
			require.NoError(t, err)
			setPort(dev, change)
			_, err = rdma.New(dev, rdma.Config{})
			require.ErrorIs(t, err, rdma.ErrDevice)
			require.ErrorContains(t, err, "port 1 of "+dev.Name())
			require.ErrorIs(t, c.Start(), rdma.ErrDevice)
			dev.Heal()
			require.NoError(t, c.Start())
			require.NoError(t, engine.Close())
			require.NoError(t, c.Close())
		})
	}
}

// movingDevice has its address at an index that changes, and reports that.
type movingDevice struct {
	*faultydevice.Device
	index, used atomic.Int64
}

func openMoving(t *testing.T) *movingDevice {
	d := &movingDevice{Device: closed(t, must(faultydevice.Open(soft.Config{})))}
	d.Set(func(h *faultydevice.Hooks) {
		h.GIDs = func(list []verbs.GIDEntry) ([]verbs.GIDEntry, error) {
			if d.index.Load() < 0 {
				return nil, nil
			}
			list = slices.Clone(list[:1])
			list[0].Index = int(d.index.Load())
			return list, nil
		}
		h.Modify = func(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
			if mask&verbs.QPAttrAddress != 0 {
				d.used.Store(int64(attr.Address.SGIDIndex))
				attr.Address.SGIDIndex = 0
			}
			return qp.Modify(attr, mask)
		}
	})
	return d
}

// Where the kernel has the address at another index, or the port another path MTU, connections
// that are made from then on have that; those that exist go on. A connection that fails while
// the port is down, or its address gone, says so.
func TestPortChanges(t *testing.T) {
	dev := openMoving(t)
	cs := newDialRig(t, dev.Device)
	a := cs.add(rdma.Config{MaxConnections: 4, ConnectTimeout: time.Hour})
	b := cs.add(rdma.Config{MaxConnections: 4})
	cs.start(a, b)
	connect := func() (*rdma.Connection, *rdma.Connection) {
		own, ours, err := a.Export()
		require.NoError(t, err)
		peer, theirs, err := b.Export()
		require.NoError(t, err)
		require.NoError(t, own.Connect(theirs))
		require.NoError(t, peer.Connect(ours))
		cs.until("Ready", func() bool { return own.State() == rdma.Ready && peer.State() == rdma.Ready })
		return own, peer
	}
	first, _ := connect()
	assert.Zero(t, dev.used.Load())
	assert.EqualValues(t, 4096, first.MTU())

	dev.index.Store(7)
	setPort(dev.Device, func(p *verbs.PortAttr) { p.ActiveMTU = 1024 })
	dev.Report(verbs.Event{Type: verbs.EventGIDChange, Port: 2})
	dev.Report(verbs.Event{Type: verbs.EventGIDChange, Port: 1})
	cs.until("the new index", func() bool { return a.GID().Index == 7 })
	second, _ := connect()
	assert.EqualValues(t, 7, dev.used.Load())
	assert.EqualValues(t, 1024, second.MTU())
	assert.Equal(t, rdma.Ready, first.State())
	cs.send(a, first, "still there")
	cs.until("a message", func() bool { return len(b.messages) == 1 })

	for want, change := range map[string]func(){
		"no longer in the GID table": func() { dev.index.Store(-1) },
		"is down": func() {
			dev.index.Store(7)
			setPort(dev.Device, func(p *verbs.PortAttr) { p.State = verbs.PortDown })
		},
	} {
		setPort(dev.Device, func(*verbs.PortAttr) {})
		change()
		dev.Report(verbs.Event{Type: verbs.EventPortError, Port: 1})
		assert.Contains(t, rdma.NoResponseAdvice(first), want)
		assert.ErrorContains(t, rdma.TimeoutError(first), want)
	}
	setPort(dev.Device, func(*verbs.PortAttr) {})
	dev.index.Store(3)
	dev.Report(verbs.Event{Type: verbs.EventPortActive, Port: 1})
	cs.until("the port", func() bool { return a.GID().Index == 3 })
	third, _ := connect()
	assert.EqualValues(t, 4096, third.MTU())
	cs.close()
}

// tableDevice has a GID table that tests replace. Indexes that the software device does not
// have are its index 0, and noted.
type tableDevice struct {
	*faultydevice.Device
	table atomic.Pointer[[]verbs.GIDEntry]
	used  atomic.Int64
}

func openTable(t *testing.T, table ...verbs.GIDEntry) *tableDevice {
	d := &tableDevice{Device: openFaulty(t)}
	d.table.Store(&table)
	d.used.Store(-1)
	d.Set(func(h *faultydevice.Hooks) {
		h.GIDs = func([]verbs.GIDEntry) ([]verbs.GIDEntry, error) { return *d.table.Load(), nil }
		h.Modify = func(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
			if mask&verbs.QPAttrAddress != 0 {
				d.used.Store(int64(attr.Address.SGIDIndex))
				return faultydevice.ErrBroken
			}
			return qp.Modify(attr, mask)
		}
		h.CreateAH = func(a *verbs.AddressAttr) error {
			d.used.Store(int64(a.SGIDIndex))
			a.SGIDIndex = 0
			return nil
		}
	})
	return d
}

// change replaces the table.
func (d *tableDevice) change(table ...verbs.GIDEntry) {
	d.table.Store(&table)
	d.Report(verbs.Event{Type: verbs.EventGIDChange, Port: 1})
}

var (
	gidOfFour = verbs.GIDFromAddr(netip.MustParseAddr("10.1.2.3"))
	gidOfSix  = verbs.GIDFromAddr(netip.MustParseAddr("2001:db8::3"))
)

func entryAt(index int, gid verbs.GID) verbs.GIDEntry {
	return verbs.GIDEntry{Index: index, Type: verbs.GIDRoCEv2, GID: gid, UDPPort: 4791}
}

// A context whose address goes and comes back has it again, also one that was told its index.
func TestAddressComesBack(t *testing.T) {
	dev := openTable(t, entryAt(0, gidOfFour), entryAt(1, gidOfSix))
	cs := newDialRig(t)
	chosen, given := cs.addOn(dev.Device, rdma.Config{}), cs.addOn(dev.Device, rdma.Config{Path: rdma.PathConfig{GIDIndex: new(0)}})
	cs.start(chosen, given)
	at := func(first, second verbs.GIDEntry) {
		t.Helper()
		cs.until("the addresses", func() bool {
			return chosen.GID().GID == first.GID && chosen.GID().Index == first.Index && given.GID().GID == second.GID && given.GID().Index == second.Index
		})
	}
	at(entryAt(0, gidOfFour), entryAt(0, gidOfFour))
	dev.change(entryAt(0, gidOfSix), entryAt(1, gidOfSix))
	at(entryAt(0, gidOfSix), entryAt(0, gidOfSix))
	dev.change(entryAt(0, gidOfSix), entryAt(5, gidOfFour))
	at(entryAt(5, gidOfFour), entryAt(5, gidOfFour))
	assert.Equal(t, 5, *chosen.Config().Path.GIDIndex)
}

// A connection goes from the address that its descriptor names, whichever the context has now.
func TestConnectFromTheExportedAddress(t *testing.T) {
	dev := openTable(t, entryAt(0, gidOfFour), entryAt(1, gidOfSix))
	cs := newDialRig(t)
	a, b := cs.addOn(dev.Device, rdma.Config{MaxConnections: 2}), cs.addOn(dev.Device, rdma.Config{})
	cs.start(a, b)
	dev.change(entryAt(1, gidOfSix))
	cs.until("the other address", func() bool { return a.GID().GID == gidOfSix && b.GID().GID == gidOfSix })
	conn, _, err := a.Export()
	require.NoError(t, err)
	_, theirs, err := b.Export()
	require.NoError(t, err)
	dev.change(entryAt(7, gidOfFour))
	cs.until("the first one", func() bool { return a.GID().GID == gidOfFour })
	err = conn.Connect(theirs)
	require.ErrorIs(t, err, rdma.ErrGID)
	require.ErrorContains(t, err, gidOfSix.Addr().String())
	dev.change(entryAt(7, gidOfFour), entryAt(3, gidOfSix))
	require.NoError(t, conn.Connect(theirs))
	cs.until("the queue pair", func() bool { return dev.used.Load() >= 0 })
	assert.EqualValues(t, 3, dev.used.Load())
	cs.until("the device's refusal", func() bool { return conn.State() == rdma.Failed })
}

// What a context tells of its port can be read by any goroutine while the port changes. Messages
// go by what the port is then.
func TestPortChangesOfAnEndpoint(t *testing.T) {
	dev := openTable(t)
	first := must(dev.Device.Software.GIDs(1))[0]
	dev.change(first)
	p := newDatagramProgram(t, newEngine(t), dev.Device, rdma.DatagramsConfig{})
	self := p.peerOf(p)
	p.send(self, "one")
	p.until("a message", func() bool { return len(p.got) == 1 })
	assert.Zero(t, dev.used.Load())

	var done atomic.Bool
	var readers sync.WaitGroup
	readers.Go(func() {
		for !done.Load() {
			cfg := p.ctx.Config()
			assert.Contains(t, []int{0, 7}, *cfg.Path.GIDIndex)
			assert.Contains(t, []verbs.MTU{1024, 4096}, cfg.Path.MTU)
			assert.Contains(t, []uint32{1024, 4096}, p.ctx.Capabilities().MaxSend)
			assert.Equal(t, first.GID, p.ctx.GID().GID)
		}
	})
	setPort(dev.Device, func(a *verbs.PortAttr) { a.ActiveMTU = 1024 })
	first.Index = 7
	dev.change(first)
	p.until("the new index", func() bool { return p.ctx.GID().Index == 7 })
	done.Store(true)
	readers.Wait()
	assert.EqualValues(t, 1024, p.ctx.Capabilities().MaxSend)
	assert.EqualValues(t, 1024, p.ctx.Config().Path.MTU)
	_, err := p.alloc(self, string(make([]byte, 1025)))
	require.ErrorIs(t, err, rdma.ErrRange)
	p.send(self, "two")
	p.until("another message", func() bool { return len(p.got) == 2 })
	assert.EqualValues(t, 7, dev.used.Load(), "the address handle is of the new index")
}

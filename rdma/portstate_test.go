package rdma_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/faultydevice"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
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
	cs := newCallers(t, dev.Device)
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
		assert.Contains(t, rdma.OnSilence(first), want)
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

package rdma

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// twoPorts is a software device that pretends to have a second port. Its connection
// manager resolves every other dial to that one.
type twoPorts struct {
	verbs.Device
	dials int
	used  []int // ports of the queue pair, as requests were sent
	named []int // and those that the connection manager has named
	port  int   // of the queue pair
	// empty: the port has no addresses. down: no packets pass it.
	empty, down [3]bool
}

func (d *twoPorts) QueryPort(port int) (verbs.PortAttr, error) {
	attr, err := d.Device.QueryPort(1)
	if d.down[port] {
		attr.State = verbs.PortDown
	}
	return attr, err
}

func (d *twoPorts) GIDs(port int) ([]verbs.GIDEntry, error) {
	if d.empty[port] {
		return nil, nil
	}
	return d.Device.GIDs(1)
}

func (d *twoPorts) Query() (verbs.DeviceAttr, error) {
	attr, err := d.Device.Query()
	attr.Ports = 2
	return attr, err
}

func (d *twoPorts) DefaultPD() verbs.PD { return twoPortsPD{d.Device.DefaultPD(), d} }

func (d *twoPorts) OpenCM(handle func(verbs.CMEvent)) (verbs.CM, error) {
	m := &twoPortsCM{dev: d, ids: make(map[verbs.CMID]verbs.CMID)}
	var err error
	m.CM, err = d.Device.(verbs.CMDevice).OpenCM(func(e verbs.CMEvent) {
		e.ID = m.wrap(e.ID)
		handle(e)
	})
	return m, err
}

type twoPortsPD struct {
	verbs.PD
	dev *twoPorts
}

func (p twoPortsPD) Device() verbs.Device { return p.dev }

func (p twoPortsPD) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(init)
	return twoPortsQP{qp, p.dev}, err
}

type twoPortsQP struct {
	verbs.QP
	dev *twoPorts
}

func (q twoPortsQP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if attr.State == verbs.QPInitialized {
		q.dev.port, attr.Port = attr.Port, 1
	}
	return q.QP.Modify(attr, mask)
}

type twoPortsCM struct {
	verbs.CM
	dev *twoPorts
	mu  sync.Mutex
	ids map[verbs.CMID]verbs.CMID
}

func (m *twoPortsCM) Dial(p verbs.CMDial) (verbs.CMID, error) {
	id, err := m.CM.Dial(p)
	if err != nil {
		return nil, err
	}
	return m.wrap(id), nil
}

// wrap returns the program's ID, also for an event that comes before Dial returns.
func (m *twoPortsCM) wrap(id verbs.CMID) verbs.CMID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids[id] == nil {
		m.ids[id] = &twoPortsID{id, m.dev, 2 - m.dev.dials%2}
		m.dev.dials++
	}
	return m.ids[id]
}

type twoPortsID struct {
	verbs.CMID
	dev  *twoPorts
	port int
}

func (id *twoPortsID) PortGID() (port, sgidIndex int) { return id.port, 0 }

func (id *twoPortsID) Connect(p verbs.CMParam) error {
	id.dev.used, id.dev.named = append(id.dev.used, id.dev.port), append(id.dev.named, id.port)
	return id.CMID.Connect(p)
}

// The queue pair of each attempt to dial uses the port that the connection manager names
// for it.
func TestDialByAnotherPort(t *testing.T) {
	dev := &twoPorts{Device: must(soft.Open(soft.Config{}))}
	engine := pe.New(pe.Config{})
	c := must(New(dev, Config{Engine: engine}))
	require.NoError(t, c.Start())
	peer := must(soft.Open(soft.Config{}))
	rejects := must(peer.OpenCM(func(verbs.CMEvent) {}))
	at := must(peer.GIDs(1))[0]
	// The UDP port has it skip the look-up of a listener, so that the peer is asked.
	conn, err := c.Dial(at.GID.Addr().String()+":7", DialConfig{UDPPort: at.UDPPort})
	require.NoError(t, err)
	for limit := time.Now().Add(5 * time.Minute); len(dev.used) < 4; {
		require.NoError(t, conn.Err())
		require.Less(t, time.Now(), limit)
		engine.Progress()
	}
	assert.Equal(t, dev.named, dev.used)
	assert.Equal(t, []int{2, 1, 2, 1}, dev.used[:4])
	require.NoError(t, conn.Close())
	require.NoError(t, c.Close())
	require.NoError(t, rejects.Close())
	require.NoError(t, peer.Close())
	require.NoError(t, dev.Device.Close())
	require.NoError(t, engine.Close())
}

// What fails names the port that it has gone by, and not that of the configuration. A dial that
// has not come as far may go by any.
func TestFailuresNameTheirPort(t *testing.T) {
	dev := &twoPorts{Device: must(soft.Open(soft.Config{}))}
	engine := pe.New(pe.Config{})
	c := must(New(dev, Config{Engine: engine}))
	require.NoError(t, c.Start())
	own := c.GID().GID.Addr()
	conn, err := c.Dial(own.String()+":7", DialConfig{LocalAddr: own})
	require.NoError(t, err)
	d := conn.establishment.(*dial)
	conn.addrs[0] = netip.AddrPortFrom(own, 7)
	conn.publish()
	// by is what the failures of the connection and of the dial say, where it goes by a port.
	by := func(port int) [2]string {
		conn.path.port, d.portKnown = port, true
		return [2]string{conn.noResponseAdvice(), d.pathProblem()}
	}
	dev.down[1], dev.empty[1] = true, true
	for _, why := range by(2) {
		assert.NotContains(t, why, "port 1")
	}
	for _, why := range by(1) {
		assert.Contains(t, why, "port 1 of")
	}
	d.portKnown = false
	assert.Empty(t, d.pathProblem(), "the other port has the address")
	dev.down[2] = true
	assert.Contains(t, d.pathProblem(), "port 2 of", "which is down")
	dev.down, dev.empty = [3]bool{}, [3]bool{1: true, 2: true}
	assert.Contains(t, d.pathProblem(), "any port of")
	for _, why := range by(2) {
		assert.Contains(t, why, "no longer in the GID table of port 2")
	}
	require.NoError(t, conn.Close())
	require.NoError(t, c.Close())
	require.NoError(t, dev.Device.Close())
	require.NoError(t, engine.Close())
}

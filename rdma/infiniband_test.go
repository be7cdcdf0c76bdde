package rdma_test

import (
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// On InfiniBand the addresses of listeners are those of IPoIB: neither end asks for its GID in
// their place, and both take the P_Key of the connection manager.
func TestInfiniBandByAddress(t *testing.T) {
	const pKeyIndex = 3
	var mu sync.Mutex
	var keys []int
	open := func() *faultydevice.Device {
		d := closed(t, must(faultydevice.Open(soft.Config{})))
		d.InfiniBand(5)
		d.Set(func(h *faultydevice.Hooks) {
			h.Dial = func(p *verbs.CMDial) { assert.False(t, p.Local.Addr().IsValid(), "dials from %v", p.Local) }
			h.Listen = func(p *verbs.CMListen) { assert.True(t, p.Addr.Addr().IsUnspecified(), "listens on %v", p.Addr) }
			h.CMAttr = func(id verbs.CMID, to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
				attr, mask, err := id.Attr(to)
				if to == verbs.QPInitialized {
					attr.PKeyIndex = pKeyIndex
				}
				return attr, mask, err
			}
			h.Modify = func(qp verbs.QP, attr verbs.QPAttr, mask verbs.QPAttrMask) error {
				if attr.State == verbs.QPInitialized {
					mu.Lock()
					keys = append(keys, attr.PKeyIndex)
					mu.Unlock()
					attr.PKeyIndex = 0
				}
				return qp.Modify(attr, mask)
			}
		})
		return d
	}
	cs := newDialRig(t, open(), open())
	server, client := cs.add(rdma.Config{Path: rdma.PathConfig{GIDIndex: new(0)}}), cs.add(rdma.Config{Path: rdma.PathConfig{GIDIndex: new(0)}})
	cs.start(server, client)
	l, err := server.Listen(":0", rdma.ListenConfig{})
	require.NoError(t, err)
	gids, err := server.dev.(*faultydevice.Device).Software.GIDs(1)
	require.NoError(t, err)
	conn, err := client.Dial(netip.AddrPortFrom(gids[0].GID.Addr(), l.Addr().Port()).String(), rdma.DialConfig{Once: true})
	require.NoError(t, err)
	cs.until("an end", func() bool { return conn.State() == rdma.Ready || conn.State() == rdma.Failed })
	require.NoError(t, conn.Err())
	cs.until("the server", func() bool { return len(server.ready) == 1 })
	assert.ElementsMatch(t, []int{0, pKeyIndex, pKeyIndex}, keys)

	keys = nil
	datagrams := must(rdma.NewDatagrams(client.dev, rdma.DatagramsConfig{Engine: cs.engine, PKeyIndex: 2}))
	require.NoError(t, datagrams.Start())
	assert.Equal(t, []int{2}, keys)
	require.NoError(t, datagrams.Close())
	cs.close()
}

// On InfiniBand a datagram goes to a LID, which an address of an endpoint does not have.
func TestInfiniBandPeerAt(t *testing.T) {
	d := closed(t, must(faultydevice.Open(soft.Config{})))
	d.InfiniBand(5)
	boom := errors.New("boom")
	lids := make(chan uint16, 2)
	d.Set(func(h *faultydevice.Hooks) {
		h.CreateAH = func(a *verbs.AddressAttr) error {
			lids <- a.DLID // on the goroutine of a helper
			return boom
		}
	})
	engine := newEngine(t)
	c := must(rdma.NewDatagrams(d, rdma.DatagramsConfig{Engine: engine}))
	sends := must(c.Pool(1, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	require.NoError(t, c.Start())
	(&rig{t: t, engine: engine}).until("it runs", func() bool { return c.State() == pe.Running })
	peer := must(c.PeerAt(rdma.EndpointAddr{GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 9}, QPN: 17}))
	task := must(sends.Send(peer, nil))
	err := task.Submit()
	require.ErrorIs(t, err, rdma.ErrInvalid)
	require.ErrorContains(t, err, "Peer.SetLID")
	require.Empty(t, lids)
	peer.SetLID(9)
	require.NotErrorIs(t, task.Submit(), rdma.ErrInvalid)
	assert.Equal(t, uint16(9), <-lids)
	_ = task.Free()
	require.NoError(t, c.Close())

	// The addresses of EFAs look like those of InfiniBand, but they deliver by GID.
	c = must(rdma.NewDatagrams(d, rdma.DatagramsConfig{Engine: engine, Transport: verbs.SRD}))
	require.NoError(t, c.Start())
	_, err = c.PeerAt(rdma.EndpointAddr{GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 9}, QPN: 17})
	require.ErrorIs(t, err, boom)
	require.Zero(t, c.PeersKnown())
	require.NoError(t, c.Close())
}

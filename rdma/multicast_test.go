package rdma_test

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

func requireMulticast(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("multicast of the software device needs Linux")
	}
}

// joined is how a JoinMulticast has ended.
type joined struct {
	group *rdma.MulticastGroup
	err   error
	calls int
}

func (j *joined) done(g *rdma.MulticastGroup, err error) {
	j.group, j.err = g, err
	j.calls++
}

func (p *datagramProgram) join(group string, cfg rdma.MulticastConfig) *joined {
	p.t.Helper()
	j := &joined{}
	require.NoError(p.t, p.ctx.JoinMulticast(group, cfg, j.done))
	p.until("the group is joined, or cannot be", func() bool { return j.calls > 0 })
	return j
}

// exchangeMulticast has all of them join a group; the first sends, with a hop limit (0: the default),
// and the others answer.
func exchangeMulticast(t *testing.T, group string, hopLimit uint8, posts ...*datagramProgram) {
	t.Helper()
	gid := verbs.GIDFromAddr(netip.MustParseAddr(group))
	sender := posts[0]
	var groups []*rdma.MulticastGroup
	for _, p := range posts {
		cfg := rdma.MulticastConfig{}
		if p == sender {
			cfg.HopLimit = hopLimit
		}
		j := p.join(group, cfg)
		require.NoError(t, j.err)
		assert.Equal(t, group, j.group.Addr().String())
		assert.Equal(t, rdma.EndpointAddr{GID: gid, QPN: verbs.MulticastQPN, UDPPort: 4791}, j.group.Peer().Addr())
		groups = append(groups, j.group)
	}
	own := must(sender.ctx.EndpointAddr())
	for _, p := range posts {
		p.onGot = func(m *rdma.Message) {
			grh, ok := m.GRH()
			assert.True(t, ok)
			if string(m.Bytes()) == "answer" {
				return
			}
			assert.Equal(t, gid, grh.DGID)
			assert.Equal(t, max(hopLimit, 1), grh.HopLimit)
			assert.Equal(t, own, m.Peer().Addr())
			if p != sender {
				p.send(m.Peer(), "answer")
			}
		}
	}
	sender.send(groups[0].Peer(), "to all")
	sender.until("everybody has it, and has answered", func() bool {
		for _, p := range posts[1:] {
			if len(p.got) == 0 {
				return false
			}
		}
		return len(sender.got) == len(posts)
	})
	for _, p := range posts {
		assert.Contains(t, p.got, "to all", "the sender is a member too")
		p.onGot = nil
	}
	for i, g := range groups {
		p := posts[i]
		p.until("its sends are done", func() bool { return p.sent.count() >= 1 })
		require.Empty(t, p.sent.errs)
		require.NoError(t, g.Leave())
		require.NoError(t, g.Leave())
	}
}

func TestMulticast(t *testing.T) {
	requireMulticast(t)
	engine := newEngine(t)
	for group, hopLimit := range map[string]uint8{"239.255.73.1": 0, "239.255.73.3": 9} {
		var posts []*datagramProgram
		for range 3 {
			posts = append(posts, newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{}))
		}
		exchangeMulticast(t, group, hopLimit, posts...)
	}
}

// A send-only member receives nothing, and a context that has not joined can send to the group.
func TestMulticastSendOnly(t *testing.T) {
	requireMulticast(t)
	const group = "239.255.73.2"
	engine := newEngine(t)
	dev := openSoft(t)
	a, b, c := newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{QKey: 5}), newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{}), newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{})
	all := b.join(group, rdma.MulticastConfig{})
	require.NoError(t, all.err)
	only := a.join(group, rdma.MulticastConfig{SendOnly: true})
	require.NoError(t, only.err)
	a.send(only.group.Peer(), "send only")
	b.until("it comes", func() bool { return len(b.got) == 1 })
	c.send(must(c.ctx.PeerAt(all.group.Peer().Addr())), "not joined")
	b.until("it comes", func() bool { return len(b.got) == 2 })
	a.until("all sends are done", func() bool { return a.sent.count() == 1 && c.sent.count() == 1 })
	assert.Equal(t, []string{"send only", "not joined"}, b.got)
	assert.Empty(t, a.got)
	assert.Empty(t, c.got)

	// The Q_Key of a group is that of RDMA_PS_UDP.
	require.ErrorIs(t, a.join("239.255.73.3", rdma.MulticastConfig{}).err, rdma.ErrMismatch)
	// The context leaves what it is in when it stops, as b does.
}

func TestMulticastEndsWithTheContext(t *testing.T) {
	requireMulticast(t)
	engine := newEngine(t)
	client := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{})
	j := &joined{}
	require.NoError(t, client.ctx.JoinMulticast("239.255.73.4", rdma.MulticastConfig{}, j.done))
	require.NoError(t, client.ctx.Stop())
	client.until("it is Idle", func() bool { return client.ctx.State() == pe.Idle })
	require.Equal(t, 1, j.calls)
	require.ErrorIs(t, j.err, rdma.ErrFlushed)
}

func TestMulticastMisuse(t *testing.T) {
	requireMulticast(t)
	engine := newEngine(t)
	dev := openSoft(t)
	client := newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{})
	never := func(*rdma.MulticastGroup, error) { assert.Fail(t, "called") }
	for _, group := range []string{"", "127.0.0.1", "ff15::1", "239.1.1.1:7"} {
		require.ErrorIs(t, client.ctx.JoinMulticast(group, rdma.MulticastConfig{}, never), rdma.ErrInvalid, group)
	}
	require.ErrorIs(t, client.ctx.JoinMulticast("239.255.73.5", rdma.MulticastConfig{}, nil), rdma.ErrInvalid)
	require.NoError(t, client.join("239.255.73.5", rdma.MulticastConfig{}).err)
	require.ErrorIs(t, client.ctx.JoinMulticast("239.255.73.5", rdma.MulticastConfig{}, never), rdma.ErrInvalid)

	gid := verbs.GIDFromAddr(netip.MustParseAddr("239.255.73.5"))
	for _, addr := range []rdma.EndpointAddr{{GID: gid, QPN: 7}, {GID: client.ctx.GID().GID, QPN: verbs.MulticastQPN}} {
		_, err := client.ctx.PeerAt(addr)
		require.ErrorIs(t, err, rdma.ErrInvalid)
	}
	scalable := must(rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine, Transport: verbs.SRD}))
	require.NoError(t, scalable.Start())
	require.ErrorIs(t, scalable.JoinMulticast("239.255.73.5", rdma.MulticastConfig{}, never), rdma.ErrNotSupported)
	require.NoError(t, scalable.Stop())
	client.until("it is Idle", func() bool { return scalable.State() == pe.Idle })
	require.NoError(t, scalable.Close())
	require.Error(t, scalable.JoinMulticast("239.255.73.5", rdma.MulticastConfig{}, never))
}

// losingDevice can report that a multicast group is lost.
type losingDevice struct {
	verbs.Device
	handle func(verbs.CMEvent)
	joined []verbs.CMMulticast
}

type losingCM struct {
	verbs.CM
	device *losingDevice
}

func (d *losingDevice) OpenCM(handle func(verbs.CMEvent)) (verbs.CM, error) {
	d.handle = handle
	cm, err := d.Device.(verbs.CMDevice).OpenCM(handle)
	return losingCM{cm, d}, err
}

func (c losingCM) JoinMulticast(join verbs.CMJoin) (verbs.CMMulticast, error) {
	m, err := c.CM.(verbs.MulticastCM).JoinMulticast(join)
	c.device.joined = append(c.device.joined, m)
	return m, err
}

func (d *losingDevice) lose(i int) {
	d.handle(verbs.CMEvent{Type: verbs.CMMulticastFailed, Multicast: d.joined[i], Err: verbs.ErrNoRoute})
}

// When the network takes a group away, the context leaves it, and OnLost runs or the context fails.
func TestMulticastLost(t *testing.T) {
	requireMulticast(t)
	engine := newEngine(t)
	dev := &losingDevice{Device: openSoft(t)}
	p := newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{})
	var lost error
	cfg := rdma.MulticastConfig{OnLost: func(err error) { lost = err }}
	require.NoError(t, p.join("239.255.73.6", cfg).err)
	dev.lose(0)
	p.until("it is lost", func() bool { return lost != nil })
	require.ErrorIs(t, lost, rdma.ErrNoRoute)
	assert.ErrorContains(t, lost, "239.255.73.6")
	require.NoError(t, p.join("239.255.73.6", cfg).err)
	dev.lose(0) // an old membership
	require.NoError(t, p.join("239.255.73.7", rdma.MulticastConfig{}).err)
	assert.Equal(t, pe.Running, p.ctx.State())
	dev.lose(2)
	p.until("the context has failed", func() bool { return p.ctx.State() == pe.Idle })
	require.ErrorIs(t, p.ctx.Err(), rdma.ErrNoRoute)
}

//go:build linux && cgo && verbs

package rdma_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
	guest "github.com/verbena-rdma/verbena/test/rig"
	"github.com/verbena-rdma/verbena/verbs"
)

// guestGroup is a multicast group, and what its tests need of the two devices.
type guestGroup struct {
	is4   bool
	group string
}

var guestGroups = []guestGroup{{true, "239.255.74.1"}, {false, "ff15::7401"}}

// open makes a program with an endpoint of the group's family.
func (g guestGroup) open(t *testing.T, open func(*testing.T) verbs.Device) *datagramProgram {
	t.Helper()
	dev := open(t)
	return newDatagramProgram(t, newEngine(t), dev, rdma.DatagramsConfig{Path: rdma.PathConfig{MTU: 1024, GIDIndex: gidOf(t, dev, g.is4)}})
}

// join joins the group where the device is.
func (g guestGroup) join(p *datagramProgram, cfg rdma.MulticastConfig) *rdma.MulticastGroup {
	p.t.Helper()
	j := &joined{}
	call := func() error { return p.ctx.JoinMulticast(g.group, cfg, j.done) }
	if p.dev.Driver() == "soft" {
		require.NoError(p.t, guest.InNamespace("s", call))
	} else {
		require.NoError(p.t, call())
	}
	p.until("the group is joined", func() bool { return j.calls > 0 })
	require.NoError(p.t, j.err)
	return j.group
}

// Messages to a group, between contexts on rxe and on the software device.
func TestGuestMulticast(t *testing.T) {
	requireGuest(t)
	for _, pair := range []struct {
		name string
		a, b func(*testing.T) verbs.Device
	}{
		{"soft to soft", openFarSoft, openFarSoft},
		{"soft to rxe", openFarSoft, openAdapter},
		{"rxe to soft", openAdapter, openFarSoft},
		{"rxe to rxe", openAdapter, openAdapter},
	} {
		for _, g := range guestGroups {
			t.Run(fmt.Sprintf("%s, %s", pair.name, g.group), func(t *testing.T) {
				a, b := g.open(t, pair.a), g.open(t, pair.b)
				var grh verbs.GRH
				b.onGot = func(m *rdma.Message) { grh, _ = m.GRH() }
				toB := g.join(b, rdma.MulticastConfig{})
				to := g.join(a, rdma.MulticastConfig{SendOnly: true})
				assert.Equal(t, toB.Peer().Addr().GID, to.Peer().Addr().GID)
				sends := 0
				for deadline := time.Now().Add(time.Minute); len(b.got) == 0; {
					a.send(to.Peer(), "to all")
					sends++
					for end := time.Now().Add(time.Second); len(b.got) == 0 && time.Now().Before(end); {
						must(a.engine.Progress())
						must(b.engine.Progress())
					}
					require.Less(t, time.Now(), deadline, "nothing comes")
				}
				assert.Equal(t, "to all", b.got[0])
				assert.Equal(t, to.Peer().Addr().GID, grh.DGID)
				assert.Equal(t, uint8(1), grh.HopLimit)
				require.Equal(t, must(a.ctx.EndpointAddr()), b.from[0].Addr())
				a.until("all sends are done", func() bool { return a.sent.count() == sends })
				require.Empty(t, a.sent.errs)
				require.NoError(t, toB.Leave())
				require.NoError(t, to.Leave())
			})
		}
	}
}

// mckey(1) of rdmacm-utils, on rxe, in both roles; for IPv4, since the kernel's connection
// manager joins no IPv6 groups on RoCEv2.
func TestGuestMckey(t *testing.T) {
	requireGuest(t)
	const count, size = 10, 100
	g := guestGroups[0]
	mckey := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command("mckey", append(args, "-m", g.group, "-b", "10.0.0.1", "-C", strconv.Itoa(count), "-S", strconv.Itoa(size))...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		return cmd, &out
	}
	for _, d := range []struct {
		name string
		open func(*testing.T) verbs.Device
	}{{"soft", openFarSoft}, {"rxe", openAdapter}} {
		t.Run(d.name+", it sends", func(t *testing.T) {
			p := g.open(t, d.open)
			g.join(p, rdma.MulticastConfig{})
			cmd, out := mckey("-s")
			require.NoError(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			p.until("all messages come, or mckey ends", func() bool { return len(p.got) == count || len(ended) > 0 })
			require.NoError(t, <-ended, "%s", out)
			p.until("all messages come", func() bool { return len(p.got) == count })
			assert.Len(t, p.got[0], size)
		})
		t.Run(d.name+", it receives", func(t *testing.T) {
			p := g.open(t, d.open)
			to := g.join(p, rdma.MulticastConfig{SendOnly: true})
			cmd, out := mckey()
			require.NoError(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			var err error
			for done := false; !done; {
				sent := p.sent.count()
				p.send(to.Peer(), "to all")
				p.until("it is sent", func() bool { return p.sent.count() > sent })
				require.NoError(t, p.sent.done[0].Free())
				p.sent.done = nil
				select {
				case err = <-ended:
					done = true
				case <-time.After(100 * time.Millisecond):
				}
			}
			assert.NoError(t, err, "%s", out)
		})
	}
}

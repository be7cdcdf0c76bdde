//go:build linux && cgo && verbs

package rdma_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// gidOf is the index of a device's GID for RoCEv2 of a kind, link-local ones left out.
func gidOf(t *testing.T, dev verbs.Device, is4 bool) *int {
	t.Helper()
	for _, e := range must(dev.GIDs(1)) {
		a := e.GID.Addr()
		if e.Type == verbs.GIDRoCEv2 && a.Is4() == is4 && !a.IsLinkLocalUnicast() {
			return new(e.Index)
		}
	}
	require.Fail(t, "no such GID")
	return nil
}

// Endpoints of UD, on the kernel's device and on the software device.
func TestGuestDatagrams(t *testing.T) {
	requireGuest(t)
	for _, pair := range devicePairs {
		for _, is4 := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, IPv4 %v", pair.name, is4), func(t *testing.T) {
				engine := newEngine(t)
				onA, onB := pair.a(t), pair.b(t)
				a := newDatagramProgram(t, engine, onA, rdma.DatagramsConfig{Name: "a", Path: rdma.PathConfig{MTU: 1024, GIDIndex: gidOf(t, onA, is4)}})
				b := newDatagramProgram(t, engine, onB, rdma.DatagramsConfig{Name: "b", Path: rdma.PathConfig{MTU: 1024, GIDIndex: gidOf(t, onB, is4)}})
				exchangeDatagrams(t, a, b)
				if pair.name != "soft to soft" { // both have one address of another namespace, and only one has UDP port 4791
					resolveAndSend(t, a, b)
				}
			})
		}
	}
}

// The receiver of a message sees the sender's traffic class.
func TestGuestTrafficClass(t *testing.T) {
	requireGuest(t)
	for _, pair := range devicePairs {
		for _, is4 := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, IPv4 %v", pair.name, is4), func(t *testing.T) {
				engine := newEngine(t)
				onA, onB := pair.a(t), pair.b(t)
				cfg := rdma.DatagramsConfig{Name: "a", Path: rdma.PathConfig{MTU: 1024, GIDIndex: gidOf(t, onA, is4), TrafficClass: 0xba}}
				a := newDatagramProgram(t, engine, onA, cfg)
				b := newDatagramProgram(t, engine, onB, rdma.DatagramsConfig{Name: "b", Path: rdma.PathConfig{MTU: 1024, GIDIndex: gidOf(t, onB, is4)}})
				var grh verbs.GRH
				b.onGot = func(m *rdma.Message) { grh, _ = m.GRH() }
				a.send(a.peerOf(b), "hello")
				b.until("it comes", func() bool { return len(b.got) == 1 })
				assert.Equal(t, uint8(0xba), grh.TrafficClass)
			})
		}
	}
}

// exchangeDatagrams sends messages of several lengths there and back. None is lost on the
// way here: one at a time is under way.
func exchangeDatagrams(t *testing.T, a, b *datagramProgram) {
	b.onGot = func(m *rdma.Message) {
		grh, ok := m.GRH()
		assert.True(t, ok)
		assert.Equal(t, a.ctx.GID().GID, grh.SGID)
		assert.Equal(t, b.ctx.GID().GID, grh.DGID)
		b.send(m.Peer(), "you said "+string(m.Bytes()))
	}
	toB := a.peerOf(b)
	for i, n := range []int{0, 1, 3, 1000, 1015} {
		text := strings.Repeat("x", n)
		a.send(toB, text)
		a.until("the answer comes", func() bool { return len(a.got) == i+1 })
		require.Equal(t, text, b.got[i])
		require.Equal(t, "you said "+text, a.got[i])
		require.Same(t, toB, a.from[i])
		require.Equal(t, must(a.ctx.EndpointAddr()), b.from[i].Addr())
	}
	require.Empty(t, a.sent.errs)
	require.Empty(t, b.sent.errs)
	b.onGot = nil
}

// resolveAndSend asks for b's endpoint by its address.
func resolveAndSend(t *testing.T, a, b *datagramProgram) {
	listener := must(b.ctx.Listen(netip.AddrPortFrom(b.ctx.GID().GID.Addr(), 0).String(), rdma.ListenConfig{PrivateData: []byte("welcome")}))
	r := a.resolve(listener.Addr().String(), rdma.DialConfig{})
	require.NoError(t, r.err)
	assert.Equal(t, "welcome", string(r.data[:7]))
	require.Same(t, a.peerOf(b), r.peer)
	had := len(b.got)
	a.send(r.peer, "by address")
	b.until("the message comes", func() bool { return len(b.got) > had })
	require.Equal(t, "by address", b.got[had])
	require.NoError(t, listener.Close())
	require.Equal(t, pe.Running, a.ctx.State())
}

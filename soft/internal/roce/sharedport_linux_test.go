package roce

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// byNumber connects two sides by what other implementations know: GID and queue pair number.
func byNumber(x, y *side) {
	for _, ends := range [][2]*side{{x, y}, {y, x}} {
		gid := must(ends[1].dev.GIDs(1))[0]
		gid.UDPPort, gid.SourceUDPPort = 0, 0
		ends[0].connectTo(gid, ends[1].qp.Num())
	}
}

// sendByNumber sends datagrams both ways.
func sendByNumber(x, y *side) {
	init := verbs.QPInit{Type: verbs.UD, MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}
	var ends [2]*side
	for i, s := range []*side{x, y} {
		ud := *s
		init.SendCQ, init.RecvCQ = s.cq, s.cq
		ud.qp = must(s.dev.DefaultPD().CreateQP(init))
		ud.readyUD()
		ud.recvDatagram()
		ends[i] = &ud
	}
	for i, from := range ends {
		to := ends[1-i]
		ah := from.handle(from.dev.DefaultPD(), verbs.AddressAttr{DGID: must(to.dev.GIDs(1))[0].GID, Port: 1})
		from.sendTo(ah, to.qp.Num(), fmt.Sprint("datagram ", i))
		_, _, text := to.nextDatagram()
		assert.Equal(x.t, fmt.Sprint("datagram ", i), text)
		require.NoError(x.t, ah.Close())
	}
	for _, s := range ends {
		require.NoError(s.t, s.qp.Close())
	}
}

// Devices at one address reach each other, and are reached from other addresses, by GID and queue pair
// number alone, also after the first of them has gone.
func TestSharedPort(t *testing.T) {
	for _, own := range []string{"127.0.7.9", "::1"} {
		for _, noMemory := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, by UDP %v", own, noMemory), func(t *testing.T) {
				addr := netip.MustParseAddr(own)
				open := func(t *testing.T) *side {
					return openSide(t, Config{Addresses: []netip.AddrPort{netip.AddrPortFrom(addr, 0)}, DisableLocal: noMemory}, 4096)
				}
				reach := func(x, y *side) {
					byNumber(x, y)
					if !noMemory && x.dev.endpoints[0].socket.Addr().Addr() == y.dev.endpoints[0].socket.Addr().Addr() {
						awaitSharedMemory(x, y)
					}
					exchange(x.t, x, y, 10)
					reset(x, y)
					sendByNumber(x, y)
				}
				var second, third *side
				outer := t
				t.Run("with the first", func(t *testing.T) {
					first := open(t)
					second, third = open(outer), open(outer)
					assert.EqualValues(t, wire.UDPPort, first.dev.endpoints[0].socket.Addr().Port())
					reach(first, second)
					reach(third, second)
					if addr.Is4() {
						host := openSide(t, Config{Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.7.10:4791")}}, 4096)
						for _, x := range []*side{first, second, third} {
							reach(host, x)
							reach(x, host)
						}
					}
				})
				reach(second, third)
				fourth := open(t)
				assert.EqualValues(t, wire.UDPPort, fourth.dev.endpoints[0].socket.Addr().Port(), "it takes the place of the first")
				reach(fourth, third)
				reach(second, fourth)
			})
		}
	}
}

// A device can be the first at one of its addresses only. There, port 4791 is its own.
func TestSharedPortOfTwoAddresses(t *testing.T) {
	occupied, free := netip.MustParseAddrPort("127.0.7.30:0"), netip.MustParseAddrPort("127.0.7.31:0")
	first := openSide(t, Config{Addresses: []netip.AddrPort{occupied}}, 4096)
	second := openSide(t, Config{Addresses: []netip.AddrPort{free, occupied}, DisableLocal: true}, 4096)
	host := openSide(t, Config{Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.7.10:4791")}, DisableLocal: true}, 4096)
	assert.EqualValues(t, wire.UDPPort, first.dev.endpoints[0].socket.Addr().Port())
	assert.EqualValues(t, wire.UDPPort, second.dev.endpoints[0].socket.Addr().Port())
	assert.NotEqualValues(t, wire.UDPPort, second.dev.endpoints[1].socket.Addr().Port())
	byNumber(host, second)
	exchange(t, host, second, 10)
	sendByNumber(host, second)
	third := openSide(t, Config{Addresses: []netip.AddrPort{free}, DisableLocal: true}, 4096)
	assert.NotEqualValues(t, wire.UDPPort, third.dev.endpoints[0].socket.Addr().Port())
	reset(host)
	byNumber(host, third)
	exchange(t, host, third, 10)
}

// The shards of one process leave slots to others. A device that finds none says so.
func TestSlotsExhausted(t *testing.T) {
	open := func() *Device {
		d := must(Open(Config{Name: "soft-test", Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.7.32:0")}, MaxShards: maxShards}))
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		return d
	}
	first := open()
	for range maxShards + 1 {
		cq := must(first.CreateCQ(verbs.CQInit{Capacity: 1, Poller: new(int)}))
		defer cq.Close()
	}
	require.Len(t, first.mu.list, maxShards/2)
	for range maxShards / 2 {
		require.NoError(t, open().NotShared(0))
	}
	late := open()
	require.ErrorContains(t, late.NotShared(0), "all 16 slots")
	require.NotEqualValues(t, wire.UDPPort, late.endpoints[0].socket.Addr().Port())
}

func reset(sides ...*side) {
	for _, s := range sides {
		require.NoError(s.t, s.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
	}
}

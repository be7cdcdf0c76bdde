package roce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/process"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/test/netns"
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

// byAddress connects and resolves by the connection manager, as a peer that knows port 4791 only, or on this
// machine.
func byAddress(t *testing.T, active, passive *cmSide, port uint16) {
	t.Helper()
	listener, dial := passive.listen(verbs.RC)
	end := func() {
		require.NoError(t, listener.Close())
		passive.mu.Lock()
		defer passive.mu.Unlock()
		passive.events = nil // a slow machine may have repeated the request
	}
	dial.UDPPort = port
	a, b := establishBy(t, active, passive, listener, dial)
	for i, from := range []*side{active.side, passive.side} {
		to := []*side{passive.side, active.side}[i]
		must(to.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{to.sge(0, 64)}}}))
		from.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{from.sge(64, 64)}})
		for _, wc := range append(from.wait(1), to.wait(1)...) {
			require.Equal(t, verbs.StatusSuccess, wc.Status)
		}
	}
	require.NoError(t, a.Disconnect())
	passive.next(verbs.CMDisconnected)
	active.next(verbs.CMDisconnected)
	for _, id := range []verbs.CMID{a, b} {
		require.NoError(t, id.Close())
	}
	end()
	reset(active.side, passive.side)

	listener, dial = passive.listen(verbs.UD)
	dial.UDPPort = port
	a = must(active.cm.Dial(dial))
	active.next(verbs.CMResolved)
	require.NoError(t, a.Connect(verbs.CMParam{PrivateData: []byte("who")}))
	b = passive.next(verbs.CMConnectRequest).ID
	require.NoError(t, b.Accept(verbs.CMParam{QPN: 77, QKey: 78}))
	require.EqualValues(t, 77, active.next(verbs.CMEstablished).Param.QPN)
	for _, id := range []verbs.CMID{a, b} {
		require.NoError(t, id.Close())
	}
	end()
}

// hostVariable is set in the process of TestSharedPort, which runs in a network namespace of its own, since
// other tests have devices at the same addresses: the namespace of another host.
const hostVariable = "VERBENA_TEST_HOST"

// Devices at one address reach each other, and are reached from another host, by GID and queue pair number
// alone and by the connection manager, also after the first of them has gone.
func TestSharedPort(t *testing.T) {
	host := os.Getenv(hostVariable)
	if host == "" {
		hosts := netns.Hosts(t, 2, 1500)
		out, err := process.Run(t.Context(), process.Program{
			Args: append(hosts[0].Run(), os.Args[0], "-test.run=^TestSharedPort$", "-test.v"),
			Env:  []string{fmt.Sprintf("%s=/proc/%v/ns/net", hostVariable, hosts[1])},
		})
		require.NoError(t, err, "%s", out)
		require.Contains(t, out, "PASS: TestSharedPort/10.11.0.1")
		return
	}
	for _, at := range [][2]string{{"10.11.0.1", "10.11.0.2"}, {"fd11::1", "fd11::2"}, {"::1"}} {
		for _, noMemory := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, by UDP %v", at[0], noMemory), func(t *testing.T) {
				testSharedPort(t, netip.MustParseAddr(at[0]), at[1], host, noMemory)
			})
		}
	}
}

func testSharedPort(t *testing.T, addr netip.Addr, hostAddr, hostNamespace string, noMemory bool) {
	open := func(t *testing.T) *cmSide {
		return openCMSide(t, Config{Addresses: []netip.AddrPort{netip.AddrPortFrom(addr, 0)}, InterfaceMTU: 1500, DisableLocal: noMemory})
	}
	ownPort := func(s *cmSide) uint16 { return s.dev.endpoints[0].socket.Addr().Port() }
	reach := func(x, y *cmSide) {
		byNumber(x.side, y.side)
		if !noMemory && x.dev.addresses()[0] == y.dev.addresses()[0] {
			awaitSharedMemory(x.side, y.side)
		}
		exchange(x.t, x.side, y.side, 10)
		reset(x.side, y.side)
		sendByNumber(x.side, y.side)
		if x.dev.addresses()[0] == y.dev.addresses()[0] {
			byAddress(t, x, y, 0)
		} else {
			byAddress(t, x, y, wire.UDPPort)
		}
	}
	var host *cmSide
	if hostAddr != "" {
		var dev *Device
		require.NoError(t, netns.In(hostNamespace, func() (err error) {
			dev, err = Open(Config{Name: "soft-host", Addresses: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(hostAddr), wire.UDPPort)}, InterfaceMTU: 1500, DisableLocal: true})
			return err
		}))
		host = withManager(sideOf(t, dev, 4096, verbs.QPInit{}))
	}
	fromHost := func(members ...*cmSide) {
		if host == nil {
			return
		}
		for _, m := range members {
			reach(host, m)
			reach(m, host)
		}
	}
	var second, third *cmSide
	outer := t
	t.Run("with the first", func(t *testing.T) {
		first := open(t)
		fromHost(first)
		second, third = open(outer), open(outer)
		assert.EqualValues(t, wire.UDPPort, ownPort(first))
		reach(first, second)
		reach(third, second)
		fromHost(first, second, third)
	})
	reach(second, third)
	fromHost(third, second)
	fourth := open(t)
	assert.EqualValues(t, wire.UDPPort, ownPort(fourth), "it takes the place of the first")
	reach(fourth, third)
	reach(second, fourth)
	fromHost(second, third, fourth)
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

// The sender of a message of connection management chooses the slot that it comes to. The system drops what is
// to be ignored at all of them.
func TestIgnoredAtAllSlots(t *testing.T) {
	at := []netip.AddrPort{netip.MustParseAddrPort("127.0.7.33:0")}
	a, as := openPollers(t, Config{Addresses: at, DisableLocal: true}, 2, 4096)
	openSide(t, Config{Addresses: at}, 64) // now the system steers management, too
	a.dev.mu.Lock()                        // the device's own goroutines keep away
	t.Cleanup(a.dev.mu.Unlock)
	stranger := newForger(t, netip.MustParseAddr("127.9.9.7"))
	for a.dev.admission.MADs.Admit(a.dev.endpoints[0].entry, stranger.own.Addr(), false, time.Hour) {
	}
	for _, s := range as {
		payload := make([]byte, mad.Len)
		binary.BigEndian.PutUint16(payload[16:], uint16(mad.AttrDREP))
		binary.BigEndian.PutUint32(payload[28:], uint32(s.shard().slot|0x100)) // the receiver's ID
		socket := s.shard().endpoints[0].socket
		before := socket.Dropped()
		stranger.send(a.dev.endpoints[0].socket.Addr(), wire.Packet{Opcode: wire.UDSendOnly, DestQP: wire.ManagementQPN}, string(payload))
		assert.Greater(t, socket.Dropped(), before, "slot %d", s.shard().slot)
	}
}

func reset(sides ...*side) {
	for _, s := range sides {
		require.NoError(s.t, s.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
	}
}

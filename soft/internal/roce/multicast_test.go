package roce

import (
	"bytes"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// requireMulticast skips a test where sockets cannot join groups as the device needs it.
func requireMulticast(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("multicast needs Linux")
	}
}

func gidOfGroup(s string) verbs.GID { return verbs.GIDFromAddr(netip.MustParseAddr(s)) }

func (s *side) attach(group verbs.GID) {
	s.t.Helper()
	m := s.qp.(verbs.MulticastQP)
	require.NoError(s.t, m.AttachMulticast(group, 0))
	require.NoError(s.t, m.AttachMulticast(group, 0), "twice is once")
	s.t.Cleanup(func() {
		s.dev.mu.Lock()
		attached := s.qp.(*queuePair).groups > 0
		s.dev.mu.Unlock()
		if attached {
			require.NoError(s.t, m.DetachMulticast(group, 0))
		}
	})
}

func (s *side) recvDatagram() {
	s.t.Helper()
	s.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{s.sge(0, 200)}})
}

func (s *side) sendTo(ah verbs.AH, qpn uint32, text string) {
	s.t.Helper()
	n := copy(s.mem[1000:], text)
	s.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{s.sge(1000, n)}, AH: ah, RemoteQPN: qpn, RemoteQKey: testKey})
}

// nextDatagram waits for one datagram and returns its header and text.
func (s *side) nextDatagram() (verbs.WC, verbs.GRH, string) {
	s.t.Helper()
	wc := s.wait(1)[0]
	require.Equal(s.t, verbs.WCRecv, wc.Opcode)
	h, err := verbs.ParseGRH(s.mem)
	require.NoError(s.t, err)
	return wc, h, string(s.mem[verbs.GRHLen:wc.Bytes])
}

func openUD(t *testing.T, cfg Config) *side {
	t.Helper()
	s := openSide(t, cfg, 4096)
	s.use(verbs.UD)
	s.readyUD()
	return s
}

// Every attached queue pair gets a copy, in one process or several: on devices at other
// addresses and UDP ports, and the sender.
func TestMulticast(t *testing.T) {
	requireMulticast(t)
	multicast(t, "239.255.72.1", []string{"127.0.0.1", "127.0.0.1", "127.0.0.2"}, Config{})
}

func multicast(t *testing.T, address string, at []string, cfg Config) {
	group := gidOfGroup(address)
	var sides []*side
	for _, a := range at {
		cfg.Addresses = addresses(a)
		s := openUD(t, cfg)
		s.attach(group)
		sides = append(sides, s)
	}
	cfg.Addresses = addresses(at[0])
	other := openUD(t, cfg)
	other.recvDatagram()
	sender := sides[0]
	attr := verbs.AddressAttr{DGID: group, TrafficClass: 0x10, FlowLabel: 9}
	ah := sender.handle(sender.dev.DefaultPD(), attr)
	want := expectedFields(attr, group.Addr().Is4())
	want.HopLimit = 1
	source := must(sender.dev.GIDs(1))[0]
	for range 3 {
		for _, s := range sides {
			s.recvDatagram()
		}
		sender.sendTo(ah, verbs.MulticastQPN, "to all")
		for i, s := range sides {
			wc, h, text := s.nextDatagram()
			assert.Equal(t, "to all", text)
			assert.Equal(t, sender.qp.Num(), wc.SrcQPN)
			assert.Equal(t, source.GID, h.SGID)
			assert.Equal(t, group, h.DGID)
			assert.Equal(t, want, fieldsOf(h))
			if i == 0 {
				continue
			}
			// It can be answered.
			sender.recvDatagram()
			back, err := verbs.ReplyAddress(&wc, s.mem, must(s.dev.GIDs(1)))
			require.NoError(t, err)
			s.sendTo(s.handle(s.dev.DefaultPD(), back), wc.SrcQPN, "answer")
			_, h, text = sender.nextDatagram()
			assert.Equal(t, "answer", text)
			assert.Equal(t, source.GID, h.DGID)
		}
	}
	assert.Equal(t, uint64(3), counter(t, sender.dev, "multicast_xmit_packets"))
	assert.Equal(t, uint64(3), counter(t, sides[2].dev, "multicast_rcv_packets"))
	assert.Zero(t, counter(t, other.dev, "multicast_rcv_packets"))
	n, err := other.cq.Poll(other.wcs)
	require.NoError(t, err)
	assert.Zero(t, n)
}

// Of the queue pairs of a device, those with the Q_Key that are attached get copies.
func TestMulticastToQueuePairs(t *testing.T) {
	requireMulticast(t)
	group := gidOfGroup("239.255.72.2")
	x, y := openUD(t, Config{}), openUD(t, Config{})
	y.attach(group)
	qp := func(key uint32, attached bool) verbs.QP {
		q, err := y.dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.UD, SendCQ: y.cq, RecvCQ: y.cq, MaxSendWR: 1, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1})
		require.NoError(t, err)
		other := *y
		other.qp = q
		other.modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, QKey: key}, verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey)
		other.modify(verbs.QPAttr{State: verbs.QPReadyToReceive}, 0)
		other.postRecv(verbs.RecvWR{ID: 2, SGL: []verbs.SGE{y.sge(0, 200)}})
		t.Cleanup(func() { require.NoError(t, q.Close()) })
		if attached {
			m := q.(verbs.MulticastQP)
			require.NoError(t, m.AttachMulticast(group, 0))
			require.ErrorIs(t, q.Close(), verbs.ErrInUse)
			t.Cleanup(func() { require.NoError(t, m.DetachMulticast(group, 0)) })
		}
		return q
	}
	second := qp(testKey, true)
	qp(testKey+1, true)
	qp(testKey, false)
	y.recvDatagram()
	ah := x.handle(x.dev.DefaultPD(), verbs.AddressAttr{DGID: group})
	x.sendTo(ah, verbs.MulticastQPN, "hello")
	var who []uint32
	for _, wc := range y.wait(2) {
		who = append(who, wc.QPN)
	}
	assert.ElementsMatch(t, []uint32{y.qp.Num(), second.Num()}, who)
	assert.Equal(t, uint64(1), counter(t, y.dev, "multicast_rcv_packets"))
	assert.Equal(t, uint64(1), counter(t, y.dev, "rx_qkey_violations"))

	require.NoError(t, y.qp.(verbs.MulticastQP).DetachMulticast(group, 0))
	require.ErrorIs(t, y.qp.(verbs.MulticastQP).DetachMulticast(group, 0), verbs.ErrInvalid)
}

// A receiver that sleeps is woken, and one of faults gets what its faults leave.
func TestMulticastWakes(t *testing.T) {
	requireMulticast(t)
	group := gidOfGroup("239.255.72.3")
	x, y := openUD(t, Config{}), openUD(t, Config{Faults: faults.Faults{Reorder: 0.5, Duplicate: 0.2, Seed: 1}})
	y.attach(group)
	woken := make(chan struct{}, 1)
	y.cq.OnCompletion(func() { woken <- struct{}{} })
	armed, err := y.cq.Arm(false)
	require.NoError(t, err)
	require.True(t, armed)
	y.recvDatagram()
	x.sendTo(x.handle(x.dev.DefaultPD(), verbs.AddressAttr{DGID: group, HopLimit: 64}), verbs.MulticastQPN, "wake up")
	select {
	case <-woken:
	case <-time.After(5 * time.Minute):
		require.Fail(t, "nobody was woken")
	}
	_, h, text := y.nextDatagram()
	assert.Equal(t, "wake up", text)
	assert.Equal(t, uint8(64), h.HopLimit)
}

// Packets for groups that are not what they should be go nowhere.
func TestMulticastHostilePackets(t *testing.T) {
	requireMulticast(t)
	group := gidOfGroup("239.255.72.4")
	x, y := openUD(t, Config{}), openUD(t, Config{})
	y.attach(group)
	y.recvDatagram()
	e := x.dev.endpoints[0]
	to := netip.AddrPortFrom(group.Addr(), wire.UDPPort)
	send := func(p wire.Packet, change func([]byte)) {
		n := p.Opcode.HeaderLen() + wire.ICRCLen
		b := make([]byte, n)
		p.PutHeaders(b)
		flow := wire.NewFlow(e.socket.Source(), to)
		wire.PutICRC(b[n-wire.ICRCLen:], wire.ICRCFinish(flow.ICRCStart(0, n, b[:n-wire.ICRCLen])))
		change(b)
		x.dev.mu.Lock()
		defer x.dev.mu.Unlock()
		require.NoError(t, e.flush())
		packet, _ := e.socket.Packet(to, link.Header{}, len(b))
		copy(packet, b)
		require.NoError(t, e.flush())
	}
	good := wire.Packet{Opcode: wire.UDSendOnly, MigReq: true, PKey: 0xffff, DestQP: verbs.MulticastQPN, DETH: wire.DETH{QKey: testKey, SrcQP: 7}}
	same := func([]byte) {}
	own, rc, pkey := good, good, good
	own.DestQP = y.qp.Num() // by the group, to one queue pair
	rc.Opcode = wire.RCSendOnly
	pkey.PKey = 5
	send(own, same)
	send(rc, same)
	send(pkey, same)
	send(good, func(b []byte) { b[len(b)-1] ^= 1 })
	send(good, func(b []byte) { b[0] = 0xff })
	send(good, same)
	wc, _, text := y.nextDatagram()
	assert.Equal(t, uint32(7), wc.SrcQPN)
	assert.Empty(t, text)
	assert.Equal(t, uint64(3), counter(t, y.dev, "rx_wrong_peer"))
	assert.Equal(t, uint64(1), counter(t, y.dev, "rx_icrc_errors"))
	assert.Equal(t, uint64(1), counter(t, y.dev, "rx_malformed"))

	// To the group's queue pair number at the device's own address.
	own.DestQP = verbs.MulticastQPN
	to = y.dev.endpoints[0].socket.Addr()
	send(own, same)
	require.Eventually(t, func() bool { return counter(t, y.dev, "rx_wrong_peer") == 4 }, 5*time.Minute, time.Millisecond)
}

func TestMulticastMisuse(t *testing.T) {
	requireMulticast(t)
	group := gidOfGroup("239.255.72.5")
	x := openUD(t, Config{})
	m := x.qp.(verbs.MulticastQP)
	require.ErrorIs(t, m.AttachMulticast(gidOfGroup("127.0.0.1"), 0), verbs.ErrInvalid)
	require.ErrorIs(t, m.AttachMulticast(gidOfGroup("ff15::1"), 0), verbs.ErrInvalid)
	pd := x.dev.DefaultPD()
	for _, attr := range []verbs.AddressAttr{{DGID: group, UDPPort: 5000}, {DGID: gidOfGroup("ff15::1")}} {
		_, err := pd.CreateAH(attr)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	for _, c := range []struct {
		dgid verbs.GID
		qpn  uint32
	}{{group, 7}, {x.address(x).DGID, verbs.MulticastQPN}} {
		ah := x.handle(pd, verbs.AddressAttr{DGID: c.dgid})
		_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, AH: ah, RemoteQPN: c.qpn}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		assert.ErrorContains(t, err, "it must be 0xffffff for multicast groups")
	}
	rc := openSide(t, Config{}, 64)
	require.ErrorIs(t, rc.qp.(verbs.MulticastQP).AttachMulticast(group, 0), verbs.ErrInvalid)

	attr := must(x.dev.Query())
	addr := group.Addr()
	var all []verbs.GID
	for range attr.MaxMulticastGroups {
		addr = addr.Next()
		all = append(all, verbs.GIDFromAddr(addr))
		require.NoError(t, m.AttachMulticast(all[len(all)-1], 0))
	}
	require.ErrorIs(t, m.AttachMulticast(group, 0), verbs.ErrLimit)
	for _, g := range all {
		require.NoError(t, m.DetachMulticast(g, 0))
	}
	assert.Empty(t, x.dev.mu.groups)
}

// Captures hold packets of groups as they are on the wire.
func TestMulticastCapture(t *testing.T) {
	requireMulticast(t)
	group := gidOfGroup("239.255.72.6")
	var pcap bytes.Buffer
	x := openUD(t, Config{Capture: &pcap})
	x.attach(group)
	x.recvDatagram()
	x.sendTo(x.handle(x.dev.DefaultPD(), verbs.AddressAttr{DGID: group}), verbs.MulticastQPN, "hello")
	x.nextDatagram()
	x.dev.mu.Lock()
	defer x.dev.mu.Unlock()
	packets := capturedPackets(t, pcap.Bytes())
	require.Len(t, packets, 2, "the one sent, and the one that came")
	for _, p := range packets {
		assert.Equal(t, group.Addr().AsSlice(), p[16:20])
		assert.Equal(t, byte(1), p[8], "time to live")
	}
}

// The connection manager joins a group before queue pairs are attached, and after.
func TestMulticastByConnectionManager(t *testing.T) {
	requireMulticast(t)
	group := netip.MustParseAddr("239.255.72.7")
	x := openCMSide(t, Config{})
	cm := x.cm.(verbs.MulticastCM)
	for _, bad := range []verbs.CMJoin{{}, {Group: netip.MustParseAddr("127.0.0.1")}, {Group: group, Local: netip.MustParseAddr("192.0.2.1")}, {Group: netip.MustParseAddr("ff15::1")}} {
		_, err := cm.JoinMulticast(bad)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	groups := func() int {
		x.dev.mu.Lock()
		defer x.dev.mu.Unlock()
		return len(x.dev.mu.groups)
	}
	first, err := cm.JoinMulticast(verbs.CMJoin{Group: group, Local: netip.MustParseAddr("127.0.0.1")})
	require.NoError(t, err)
	ev := x.next(verbs.CMMulticastJoined)
	assert.Equal(t, first, ev.Multicast)
	assert.Equal(t, verbs.AddressAttr{DGID: verbs.GIDFromAddr(group), Port: 1, HopLimit: 1}, ev.Address)
	assert.Equal(t, verbs.CMParam{QPN: verbs.MulticastQPN, QKey: 0x01234567}, ev.Param)
	assert.Equal(t, 1, groups())
	second, err := cm.JoinMulticast(verbs.CMJoin{Group: group})
	require.NoError(t, err)
	x.next(verbs.CMMulticastJoined)
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	assert.Equal(t, 1, groups())
	require.NoError(t, second.Close())
	assert.Zero(t, groups())
	third, err := cm.JoinMulticast(verbs.CMJoin{Group: group, SendOnly: true})
	require.NoError(t, err)
	x.next(verbs.CMMulticastJoined)
	assert.Zero(t, groups())
	require.NoError(t, third.Close())
	_, err = cm.JoinMulticast(verbs.CMJoin{Group: group}) // left by Close of the manager
	require.NoError(t, err)
	x.next(verbs.CMMulticastJoined)
	require.NoError(t, x.cm.Close())
	assert.Zero(t, groups())
	_, err = cm.JoinMulticast(verbs.CMJoin{Group: group})
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// The loopback interface has no route to IPv6 groups, unless somebody has made one.
func TestMulticastWithoutRoute(t *testing.T) {
	requireMulticast(t)
	x := openCMSide(t, Config{Addresses: addresses("::1")})
	group := netip.MustParseAddr("ff15::7201")
	if x.dev.endpoints[0].socket.CheckRoute(netip.AddrPortFrom(group, wire.UDPPort)) == nil {
		t.Skip("this machine has such a route")
	}
	m, err := x.cm.(verbs.MulticastCM).JoinMulticast(verbs.CMJoin{Group: group})
	require.NoError(t, err)
	e := x.next(verbs.CMMulticastFailed)
	assert.Equal(t, m, e.Multicast)
	require.ErrorIs(t, e.Err, verbs.ErrNoRoute)
	assert.ErrorContains(t, e.Err, "the interface of ::1")
	require.NoError(t, m.Close())
}

package roce

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// use replaces the side's queue pair by one of another service.
func (s *side) use(service verbs.QPType) {
	s.t.Helper()
	require.NoError(s.t, s.qp.Close())
	var err error
	s.qp, err = s.dev.DefaultPD().CreateQP(verbs.QPInit{
		Type: service, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2,
	})
	require.NoError(s.t, err)
	require.Equal(s.t, service, s.qp.Type())
}

func (s *side) modify(attr verbs.QPAttr, mask verbs.QPAttrMask) {
	s.t.Helper()
	require.NoError(s.t, s.qp.Modify(attr, mask|verbs.QPAttrState))
}

func (s *side) address(peer *side) verbs.AddressAttr {
	gid := must(peer.dev.GIDs(1))[0]
	return verbs.AddressAttr{DGID: gid.GID, Port: 1, UDPPort: gid.UDPPort}
}

func (s *side) connectUC(peer *side) {
	s.t.Helper()
	s.connectUCWith(peer, 1024)
}

func (s *side) connectUCWith(peer *side, mtu verbs.MTU) {
	s.t.Helper()
	s.modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, Access: verbs.AccessRemoteWrite}, verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
	s.modify(verbs.QPAttr{State: verbs.QPReadyToReceive, Address: s.address(peer), PathMTU: mtu, DestQPN: peer.qp.Num(), RQPSN: 5},
		verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN)
	s.modify(verbs.QPAttr{State: verbs.QPReadyToSend, SQPSN: 5}, verbs.QPAttrSQPSN)
}

const testKey = 0x1234

func (s *side) readyUD() {
	s.t.Helper()
	s.modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, QKey: testKey}, verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey)
	s.modify(verbs.QPAttr{State: verbs.QPReadyToReceive}, 0)
	s.modify(verbs.QPAttr{State: verbs.QPReadyToSend}, verbs.QPAttrSQPSN)
}

func (s *side) postRecv(wrs ...verbs.RecvWR) {
	s.t.Helper()
	n, err := s.qp.PostRecv(wrs)
	require.NoError(s.t, err)
	require.Equal(s.t, len(wrs), n)
}

func (s *side) handle(pd verbs.PD, attr verbs.AddressAttr) verbs.AH {
	s.t.Helper()
	ah, err := pd.CreateAH(attr)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, ah.Close()) })
	return ah
}

func TestUnreliableConnection(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			const half = 1 << 20
			x, y := openSide(t, v.cfg, half), openSide(t, v.cfg, 2*half)
			x.use(verbs.UC)
			y.use(verbs.UC)
			x.connectUC(y)
			y.connectUC(x)
			for _, n := range []int{0, 1, 1023, 1025, 65537, half} {
				fill(x.mem[:n], uint64(n))
				y.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{y.sge(half, half)}}, verbs.RecvWR{ID: 2})
				x.post(verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}},
					verbs.SendWR{ID: 4, Op: verbs.OpWriteImm, Imm: 7, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
				assert.Equal(t, []verbs.WC{
					{ID: 3, Opcode: verbs.WCSend, Bytes: uint32(n), QPN: x.qp.Num()},
					{ID: 4, Opcode: verbs.WCWrite, Bytes: uint32(n), QPN: x.qp.Num()},
				}, x.wait(2))
				assert.Equal(t, []verbs.WC{
					{ID: 1, Opcode: verbs.WCRecv, Bytes: uint32(n), QPN: y.qp.Num()},
					{ID: 2, Opcode: verbs.WCRecvWriteImm, Bytes: uint32(n), HasImm: true, Imm: 7, QPN: y.qp.Num()},
				}, y.wait(2))
				assert.True(t, bytes.Equal(x.mem[:n], y.mem[half:half+n]), "send of %d bytes", n)
				assert.True(t, bytes.Equal(x.mem[:n], y.mem[:n]), "write of %d bytes", n)
			}
		})
	}
}

// A message far longer than the peer's socket buffer arrives whole, although nothing
// acknowledges its packets and the receiver sleeps.
func TestUnreliableLongMessage(t *testing.T) {
	const n = 16 << 20
	x, y := openSide(t, Config{}, n), openSide(t, Config{}, n)
	x.use(verbs.UC)
	y.use(verbs.UC)
	x.connectUC(y)
	y.connectUC(x)
	fill(x.mem, 1)
	wake := make(chan struct{}, 1)
	y.cq.OnCompletion(func() { wake <- struct{}{} })
	// A packet can be lost where the machine is busy.
	for range 20 {
		y.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{y.sge(0, n)}})
		armed, err := y.cq.Arm(false)
		require.NoError(t, err)
		require.True(t, armed)
		x.post(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}})
		x.wait(1)
		select {
		case <-wake:
			assert.Equal(t, uint32(n), y.wait(1)[0].Bytes)
			assert.True(t, bytes.Equal(x.mem, y.mem))
			return
		case <-time.After(10 * time.Second): // a packet was lost
		}
	}
	assert.Fail(t, "the message never arrived")
}

func TestDatagrams(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			x, y := openSide(t, v.cfg, 8192), openSide(t, v.cfg, 8192)
			x.use(verbs.UD)
			y.use(verbs.UD)
			x.readyUD()
			y.readyUD()
			ah := x.handle(x.dev.DefaultPD(), x.address(y))
			source, target := must(x.dev.GIDs(1))[0], must(y.dev.GIDs(1))[0]
			for _, n := range []int{0, 1, 1023, 4096} {
				fill(x.mem[:n], uint64(n))
				y.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{y.sge(0, 8192)}})
				x.post(verbs.SendWR{ID: 2, Op: verbs.OpSendImm, Imm: 9, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)},
					AH: ah, RemoteQPN: y.qp.Num(), RemoteQKey: testKey})
				assert.Equal(t, []verbs.WC{{ID: 2, Opcode: verbs.WCSend, Bytes: uint32(n), QPN: x.qp.Num()}}, x.wait(1))
				assert.Equal(t, []verbs.WC{{
					ID: 1, Opcode: verbs.WCRecv, Bytes: uint32(verbs.GRHLen + n), HasImm: true, Imm: 9,
					QPN: y.qp.Num(), SrcQPN: x.qp.Num(), HasGRH: true, IPv4: source.GID.Addr().Is4(), SrcUDPPort: admission.ReplyPort(source.UDPPort),
				}}, y.wait(1))
				assert.True(t, bytes.Equal(x.mem[:n], y.mem[verbs.GRHLen:verbs.GRHLen+n]))
				checkGRH(t, y.mem[:verbs.GRHLen], source.GID.Addr(), target.GID.Addr(), 8+wire.UDSendOnlyImm.HeaderLen()+(n+3)/4*4+wire.ICRCLen)
			}
		})
	}
}

// The completion of a datagram and the header in front of it suffice for a reply.
func TestReplyAddress(t *testing.T) {
	x, y := openSide(t, Config{}, 8192), openSide(t, Config{}, 8192)
	for _, s := range []*side{x, y} {
		s.use(verbs.UD)
		s.readyUD()
		s.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{s.sge(0, 4096)}})
	}
	send := func(from *side, ah verbs.AH, qpn uint32) {
		from.post(verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{from.sge(4096, 100)}, AH: ah, RemoteQPN: qpn, RemoteQKey: testKey})
	}
	send(x, x.handle(x.dev.DefaultPD(), x.address(y)), y.qp.Num())
	wc := y.wait(1)[0]
	back, err := verbs.ReplyAddress(&wc, y.mem, must(y.dev.GIDs(1)))
	require.NoError(t, err)
	assert.Equal(t, must(x.dev.GIDs(1))[0].GID, back.DGID)
	send(y, y.handle(y.dev.DefaultPD(), back), wc.SrcQPN)
	assert.Equal(t, y.qp.Num(), x.wait(1)[0].SrcQPN)
}

// checkGRH decodes the header in front of a datagram of n bytes, UDP's header
// included.
func checkGRH(t *testing.T, grh []byte, source, target netip.Addr, n int) {
	t.Helper()
	if source.Is6() {
		assert.Equal(t, []byte{0x60, 0, 0, 0}, grh[:4])
		assert.Equal(t, n, int(binary.BigEndian.Uint16(grh[4:])))
		assert.Equal(t, byte(17), grh[6])
		assert.Equal(t, source.AsSlice(), grh[8:24])
		assert.Equal(t, target.AsSlice(), grh[24:40])
		return
	}
	assert.Equal(t, make([]byte, 20), grh[:20])
	ip := grh[20:]
	assert.Equal(t, byte(0x45), ip[0])
	assert.Equal(t, 20+n, int(binary.BigEndian.Uint16(ip[2:])))
	assert.Equal(t, byte(17), ip[9])
	assert.Equal(t, source.AsSlice(), ip[12:16])
	assert.Equal(t, target.AsSlice(), ip[16:20])
	assert.Equal(t, uint16(0xffff), ipheader.Fold(ipheader.Sum(ip, 0)), "header checksum")
}

// A datagram queue pair receives at every address of its device from any other device, and can
// reply to each.
func TestDatagramsFromMany(t *testing.T) {
	both := Config{Addresses: append(addresses("127.0.0.1"), addresses("::1")...)}
	server := openSide(t, both, 4096)
	server.use(verbs.UD)
	server.readyUD()
	table := must(server.dev.GIDs(1))
	for i, c := range []Config{{Addresses: addresses("127.0.0.1")}, {Addresses: addresses("::1")}, {Addresses: addresses("127.0.0.1")}} {
		client := openSide(t, c, 4096)
		client.use(verbs.UD)
		client.readyUD()
		to := table[i%2]
		server.postRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{server.sge(0, 100)}})
		client.postRecv(verbs.RecvWR{ID: 2, SGL: []verbs.SGE{client.sge(0, 100)}})
		ah := client.handle(client.dev.DefaultPD(), verbs.AddressAttr{DGID: to.GID, UDPPort: to.UDPPort})
		client.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{client.sge(0, 10)}, AH: ah, RemoteQPN: server.qp.Num(), RemoteQKey: testKey})
		wc := server.wait(1)[0]
		assert.Equal(t, client.qp.Num(), wc.SrcQPN)
		own := must(client.dev.GIDs(1))[0]
		back := server.handle(server.dev.DefaultPD(), verbs.AddressAttr{DGID: own.GID, SGIDIndex: i % 2, UDPPort: own.UDPPort})
		server.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{server.sge(0, 10)}, AH: back, RemoteQPN: wc.SrcQPN, RemoteQKey: testKey})
		assert.Equal(t, server.qp.Num(), client.wait(1)[0].SrcQPN)
	}
}

func TestAddressHandles(t *testing.T) {
	x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
	x.use(verbs.UD)
	x.readyUD()
	pd := must(x.dev.AllocPD())
	foreign, other := y.handle(y.dev.DefaultPD(), y.address(x)), x.handle(x.dev.DefaultPD(), x.address(y))
	elsewhere := must(pd.CreateAH(x.address(y)))
	closed := must(x.dev.DefaultPD().CreateAH(x.address(y)))
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		ah   verbs.AH
		want error
		text string
	}{
		"none":            {nil, verbs.ErrInvalid, "the address handle does not belong to device"},
		"another device":  {foreign, verbs.ErrInvalid, "the address handle does not belong to device"},
		"another domain":  {elsewhere, verbs.ErrInvalid, "protection domain"},
		"closed":          {closed, verbs.ErrClosed, "address handle"},
		"the right thing": {other, nil, ""},
	} {
		_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, AH: c.ah, RemoteQPN: 2}})
		assert.ErrorIs(t, err, c.want, name)
		if c.want != nil {
			assert.ErrorContains(t, err, c.text, name)
		}
	}
	assert.ErrorIs(t, pd.Close(), verbs.ErrInUse)
	require.NoError(t, elsewhere.Close())
	require.NoError(t, pd.Close())
	_, err := pd.CreateAH(x.address(y))
	assert.ErrorIs(t, err, verbs.ErrClosed)
	for _, bad := range []verbs.AddressAttr{
		{DGID: x.address(y).DGID, SGIDIndex: 1}, {DGID: x.address(y).DGID, SGIDIndex: -1}, {DGID: x.address(y).DGID, Port: 2},
		{DGID: verbs.GIDFromAddr(netip.MustParseAddr("::1"))}, {},
	} {
		_, err := x.dev.DefaultPD().CreateAH(bad)
		assert.ErrorIs(t, err, verbs.ErrInvalid, "%+v", bad)
	}
}

// A queue pair that was reset or closed accepts no packets.
func TestDatagramsNotListening(t *testing.T) {
	x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
	x.use(verbs.UD)
	y.use(verbs.UD)
	x.readyUD()
	y.readyUD()
	ah := x.handle(x.dev.DefaultPD(), x.address(y))
	wr := verbs.SendWR{Op: verbs.OpSend, AH: ah, RemoteQPN: y.qp.Num(), RemoteQKey: testKey}
	refused := func() uint64 { return counter(t, y.dev, "rx_wrong_peer") }
	y.modify(verbs.QPAttr{State: verbs.QPReset}, 0)
	x.post(wr)
	require.Eventually(t, func() bool { return refused() == 1 }, 5*time.Minute, time.Millisecond)
	y.readyUD()
	wr.RemoteQKey++
	x.post(wr)
	require.Eventually(t, func() bool { return counter(t, y.dev, "rx_qkey_violations") == 1 }, 5*time.Minute, time.Millisecond)
	wr.RemoteQKey--
	x.post(wr) // there is no receive
	require.Eventually(t, func() bool { return counter(t, y.dev, "rx_datagrams_dropped") == 1 }, 5*time.Minute, time.Millisecond)
	assert.Equal(t, uint64(1), refused())
}

func TestUnknownService(t *testing.T) {
	x := openSide(t, Config{}, 8)
	for _, service := range []verbs.QPType{-1, 6, 99} {
		_, err := x.dev.DefaultPD().CreateQP(verbs.QPInit{Type: service, SendCQ: x.cq, RecvCQ: x.cq})
		assert.ErrorIs(t, err, verbs.ErrNotSupported)
	}
}

// Sending and receiving datagrams allocates nothing.
func TestDatagramAllocations(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("coverage allocates")
	}
	x, y := openSide(t, Config{}, 4096), openSide(t, Config{}, 4096)
	x.use(verbs.UD)
	y.use(verbs.UD)
	x.readyUD()
	y.readyUD()
	ah := x.handle(x.dev.DefaultPD(), x.address(y))
	wrs := []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 64)}, AH: ah, RemoteQPN: y.qp.Num(), RemoteQKey: testKey}}
	receives := []verbs.RecvWR{{SGL: []verbs.SGE{y.sge(0, 256)}}}
	play := func() {
		_, _ = y.qp.PostRecv(receives)
		_, _ = x.qp.PostSend(wrs)
		for _, s := range []*side{x, y} {
			for n := 0; n == 0; {
				n, _ = s.cq.Poll(s.wcs)
			}
		}
	}
	play()
	assert.Less(t, testing.AllocsPerRun(2000, play), 1.0)
}

package roce

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/ipheader"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// forger is a program on the host of a device, without privileges: a socket at the device's
// address.
type forger struct {
	t    testing.TB
	conn *net.UDPConn
	own  netip.AddrPort
}

func newForger(t testing.TB, at netip.Addr) *forger {
	t.Helper()
	for range 100 {
		own := netip.AddrPortFrom(at, admission.FirstSendPort+uint16(admission.Random()%4000)) // as a device's
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(own))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return &forger{t, conn, own}
	}
	require.Fail(t, "no port is free")
	return nil
}

// send sends a well-formed packet.
func (f *forger) send(to netip.AddrPort, p wire.Packet, payload string) {
	f.t.Helper()
	headers := p.Opcode.HeaderLen()
	b := make([]byte, headers+len(payload)+wire.ICRCLen)
	p.MigReq = true
	if p.PKey == 0 {
		p.PKey = 0xffff
	}
	p.PutHeaders(b)
	copy(b[headers:], payload)
	f.sendRaw(to, b)
}

// sendRaw sends a packet with a checksum for its own address.
func (f *forger) sendRaw(to netip.AddrPort, b []byte) {
	f.t.Helper()
	flow := wire.NewFlow(f.own, to)
	n := len(b) - wire.ICRCLen
	crc := flow.ICRCStart(0, len(b), b[:wire.BTHLen])
	wire.PutICRC(b[n:], wire.ICRCFinish(wire.ICRCUpdate(crc, b[wire.BTHLen:n])))
	_, err := f.conn.WriteToUDPAddrPort(b, to)
	require.NoError(f.t, err)
}

func (s *side) at() netip.AddrPort { return s.dev.endpoints[0].socket.Addr() }

func (s *side) source() netip.AddrPort { return s.dev.endpoints[0].socket.Source() }

// awaitCount waits until a counter of the device has grown by n from before.
func (s *side) awaitCount(name string, before, n uint64) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return counter(s.t, s.dev, name) >= before+n }, 5*time.Minute, time.Millisecond, name)
}

func (s *side) state() verbs.QPState {
	attr, err := s.qp.Query()
	require.NoError(s.t, err)
	return attr.State
}

// write8 returns a write of eight bytes that the peer executes if it accepts the packet.
func write8(to *side, psn uint32) wire.Packet {
	return wire.Packet{Opcode: wire.RCWriteOnly, DestQP: to.qp.Num(), PSN: psn, AckReq: true,
		RETH: wire.RETH{VA: to.mr.Addr() + 64, RKey: to.mr.RKey(), Length: 8}}
}

// standard opens two sides at port 4791, at addresses that no other test uses.
var standard = map[string]func(t *testing.T, local bool) (x, y *side){
	"IPv4": func(t *testing.T, local bool) (x, y *side) {
		at := func(s string) Config {
			return Config{Addresses: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(s), wire.UDPPort)}, DisableLocal: !local}
		}
		return openSide(t, at("127.0.71.1"), 4096), openSide(t, at("127.0.71.2"), 4096)
	},
	"other ports": func(t *testing.T, local bool) (x, y *side) {
		_ = openSide(t, Config{}, 8) // has 4791
		return openSide(t, Config{DisableLocal: !local}, 4096), openSide(t, Config{DisableLocal: !local}, 4096)
	},
	"IPv6": func(t *testing.T, local bool) (x, y *side) {
		cfg := Config{Addresses: addresses("::1"), DisableLocal: !local}
		return openSide(t, cfg, 4096), openSide(t, cfg, 4096)
	},
}

// Packets with correct numbers from the peer's address, but from another port, have no effect:
// whether the connection was given the port or has learned it, whether it is idle or busy, and
// whatever path its own packets take.
func TestForgedPackets(t *testing.T) {
	for name, open := range standard {
		for _, way := range []string{"named", "learned", "named, shared memory"} {
			t.Run(name+", "+way, func(t *testing.T) {
				local := way == "named, shared memory"
				x, y := open(t, local)
				if way != "learned" {
					x.path.SourceUDPPort, y.path.SourceUDPPort = y.source().Port(), x.source().Port()
				}
				x.connect(y)
				y.connect(x)
				if local {
					awaitSharedMemory(x, y)
				}
				testForged(t, x, y, 0xfffff0)
			})
		}
	}
}

// testForged attacks the connection from x to y, whose first packet has that number.
func testForged(t *testing.T, x, y *side, next uint32) {
	exchange := func(n int) {
		for range n {
			x.post(x.write(y, 8))
			require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
			next = wire.PSNAdd(next, 1)
		}
	}
	exchange(1)
	f, g := newForger(t, x.at().Addr()), newForger(t, y.at().Addr())
	before := []uint64{counter(t, y.dev, "rx_wrong_source"), counter(t, x.dev, "rx_wrong_source")}
	secret := slices.Clone(y.mem)

	// Idle: the very next request, a repetition, and one ahead.
	for _, psn := range []uint32{next, wire.PSNAdd(next, -1), wire.PSNAdd(next, 5)} {
		f.send(y.at(), write8(y, psn), "intruder")
	}
	f.send(y.at(), wire.Packet{Opcode: wire.RCReadRequest, DestQP: y.qp.Num(), PSN: next,
		RETH: wire.RETH{VA: y.mr.Addr(), RKey: y.mr.RKey() + 1, Length: 8}}, "") // ends the connection if it is taken
	y.awaitCount("rx_wrong_source", before[0], 4)
	require.Equal(t, verbs.QPReadyToSend, y.state())
	require.True(t, bytes.Equal(secret, y.mem), "something was written")

	// At work: answers to what is under way, and requests among those of the peer.
	sent := uint64(0)
	for range 50 {
		x.post(x.write(y, 8), x.write(y, 8))
		for range 3 {
			g.send(x.at(), wire.Packet{Opcode: wire.RCAcknowledge, DestQP: x.qp.Num(), PSN: wire.PSNAdd(next, int(sent%3)),
				AETH: wire.AETH{Syndrome: wire.Nak(wire.NakRemoteOperation)}}, "")
			f.send(y.at(), write8(y, wire.PSNAdd(next, int(sent%3))), "intruder")
			sent++
		}
		for _, wc := range x.wait(2) {
			require.Equal(t, verbs.StatusSuccess, wc.Status)
		}
		next = wire.PSNAdd(next, 2)
	}
	y.awaitCount("rx_wrong_source", before[0], 4+sent)
	x.awaitCount("rx_wrong_source", before[1], sent)
	exchange(3)
	assert.NotContains(t, string(y.mem), "intruder")
	assert.Equal(t, []verbs.QPState{verbs.QPReadyToSend, verbs.QPReadyToSend}, []verbs.QPState{x.state(), y.state()})
}

// No other program can bind the port that a device sends from, at any address of the host.
func TestSourceOfADevice(t *testing.T) {
	for name, open := range standard {
		t.Run(name, func(t *testing.T) {
			x, _ := open(t, false)
			port := int(x.source().Port())
			entry := must(x.dev.GIDs(1))[0]
			assert.Equal(t, x.source().Port(), entry.SourceUDPPort)
			if entry.UDPPort == wire.UDPPort {
				assert.GreaterOrEqual(t, entry.SourceUDPPort, uint16(admission.FirstSendPort))
			} else {
				assert.Equal(t, entry.UDPPort, entry.SourceUDPPort)
			}
			list := []string{"127.0.0.1", "127.0.0.99", "0.0.0.0"}
			if x.at().Addr().Is6() {
				list = []string{"::1", "::"}
			}
			for _, at := range list {
				c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(at), Port: port})
				if !assert.Error(t, err, at) {
					c.Close()
				}
			}
		})
	}
}

// The port of a foreign peer is learned from its first plausible packet, and kept until the
// queue pair is connected again or the peer is silent. An unreliable connection learns none.
func TestSourceIsLearned(t *testing.T) {
	for _, service := range []verbs.QPType{verbs.RC, verbs.UC} {
		t.Run(service.String(), func(t *testing.T) {
			y := openSide(t, Config{Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.71.3:4791")}}, 4096)
			peer := netip.MustParseAddr("127.0.71.9") // nobody listens there
			a, b := newForger(t, peer), newForger(t, peer)
			y.use(service)
			p := wire.Packet{Opcode: wire.RCWriteOnly, DestQP: y.qp.Num(), AckReq: true, RETH: wire.RETH{VA: y.mr.Addr(), RKey: y.mr.RKey(), Length: 8}}
			if service == verbs.UC {
				p.Opcode, p.AckReq = wire.UCWriteOnly, false
			}
			const first = 0xfffff0
			send := func(f *forger, psn uint32, text string, taken bool) {
				t.Helper()
				p.PSN, p.DestQP = psn, y.qp.Num()
				before := counter(t, y.dev, "rx_wrong_source")
				f.send(y.at(), p, text)
				if !taken {
					y.awaitCount("rx_wrong_source", before, 1)
					require.NotEqual(t, text, string(y.mem[:8]))
					return
				}
				require.Eventually(t, func() bool {
					sh := y.qp.(*queuePair).lock()
					defer sh.mu.Unlock()
					return string(y.mem[:8]) == text
				}, 5*time.Minute, time.Millisecond)
				require.Equal(t, before, counter(t, y.dev, "rx_wrong_source"))
			}
			for round, holder := range []*forger{a, b} {
				other := []*forger{b, a}[round]
				gid := verbs.GIDEntry{GID: verbs.GIDFromAddr(peer), UDPPort: 4791}
				if service == verbs.RC {
					y.connectTo(gid, 77)
				} else {
					y.modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, Access: verbs.AccessRemoteWrite}, verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
					y.modify(verbs.QPAttr{
						State: verbs.QPReadyToReceive, PathMTU: 1024, DestQPN: 77, RQPSN: first,
						Address: verbs.AddressAttr{DGID: gid.GID, Port: 1},
					}, verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN)
				}
				clear(y.mem)
				if service == verbs.RC {
					send(other, wire.PSNAdd(first, -1), "the past", false)
					send(other, wire.PSNAdd(first, 1), "too soon", false)
				}
				send(holder, first, "the 1st.", true)
				if service == verbs.RC {
					send(other, wire.PSNAdd(first, 1), "stranger", false)
				}
				send(holder, wire.PSNAdd(first, 1), "the 2nd.", true)
				if service == verbs.RC {
					y.wasSilent(admission.RelearnTime)
					send(other, wire.PSNAdd(first, 3), "too soon", false)
					send(holder, wire.PSNAdd(first, 2), "the 3rd.", true)
					y.wasSilent(admission.RelearnTime)
					send(other, wire.PSNAdd(first, 3), "the 4th.", true)
					send(holder, wire.PSNAdd(first, 4), "stranger", false)
				}
				y.modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState)
			}
		})
	}
}

// wasSilent moves the arrival of the peer's last packet back by d.
func (s *side) wasSilent(d time.Duration) {
	q := s.qp.(*queuePair)
	sh := q.lock()
	defer sh.mu.Unlock()
	q.source.LastPacketAt -= d
}

// A requester learns the port only from a response to an outstanding request.
func TestSourceIsLearnedFromAResponse(t *testing.T) {
	y := openSide(t, Config{Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.71.3:4791")}}, 4096)
	peer := netip.MustParseAddr("127.0.71.9")
	a, b := newForger(t, peer), newForger(t, peer)
	y.timeout = 31 // for hours
	y.connectTo(verbs.GIDEntry{GID: verbs.GIDFromAddr(peer), UDPPort: 4791}, 77)
	y.post(y.write(y, 8), y.write(y, 8))
	const una, next = 0xfffff0, 0xfffff2
	ack := func(psn uint32, s wire.Syndrome) wire.Packet {
		return wire.Packet{Opcode: wire.RCAcknowledge, DestQP: y.qp.Num(), PSN: psn, AETH: wire.AETH{Syndrome: s}}
	}
	bad, good := wire.Nak(wire.NakRemoteAccess), wire.Ack(0)
	b.send(y.at(), ack(next, bad), "")
	b.send(y.at(), ack(wire.PSNAdd(una, -1), bad), "")
	y.awaitCount("rx_wrong_source", 0, 2)
	a.send(y.at(), ack(una, good), "")
	require.Equal(t, verbs.StatusSuccess, y.wait(1)[0].Status)
	b.send(y.at(), ack(wire.PSNAdd(una, 1), bad), "")
	y.awaitCount("rx_wrong_source", 0, 3)
	a.send(y.at(), ack(wire.PSNAdd(una, 1), good), "")
	require.Equal(t, verbs.StatusSuccess, y.wait(1)[0].Status)
}

// A device that is opened again sends from another port, which a new connection knows.
func TestSourceAfterReconnect(t *testing.T) {
	at := []netip.AddrPort{netip.MustParseAddrPort("127.0.71.4:4791")}
	y := openSide(t, Config{Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.71.5:4791")}, DisableLocal: true}, 4096)
	for range 3 {
		t.Run("", func(t *testing.T) {
			x := openSide(t, Config{Addresses: at, DisableLocal: true}, 4096)
			x.path.SourceUDPPort, y.path.SourceUDPPort = y.source().Port(), x.source().Port()
			x.connect(y)
			y.connect(x)
			x.post(x.write(y, 8))
			require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
			y.modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState)
		})
	}
}

// Two ends connected by the connection manager know each other's port. Packets and messages
// from other ports have no effect.
func TestForgedPacketsOfManagedConnections(t *testing.T) {
	for name, cfg := range map[string][2]Config{
		"IPv4": {{Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.71.6:4791")}, DisableLocal: true},
			{Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.71.7:4791")}, DisableLocal: true}},
		"other ports": {{DisableLocal: true}, {DisableLocal: true}},
		"IPv6":        {{Addresses: addresses("::1"), DisableLocal: true}, {Addresses: addresses("::1"), DisableLocal: true}},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := openCMSide(t, cfg[0]), openCMSide(t, cfg[1])
			a, b := establish(t, x, y)
			for _, end := range []struct {
				id   verbs.CMID
				peer *cmSide
			}{{a, y}, {b, x}} {
				attr, _, err := end.id.Attr(verbs.QPReadyToReceive)
				require.NoError(t, err)
				assert.Equal(t, end.peer.source().Port(), attr.Address.SourceUDPPort)
			}
			for _, s := range []*cmSide{x, y} {
				q := s.qp.(*queuePair)
				sh := q.lock()
				assert.True(t, q.source.Named(), "nothing has come yet")
				sh.mu.Unlock()
			}
			attr, _, err := b.Attr(verbs.QPReadyToReceive)
			require.NoError(t, err)
			testForged(t, x.side, y.side, attr.RQPSN)
		})
	}
}

// If an address handle names the port of a device, datagrams of that device must come from the
// port. Without such a handle, any sender with the Q_Key is accepted.
func TestForgedDatagrams(t *testing.T) {
	for name, open := range standard {
		t.Run(name, func(t *testing.T) {
			x, y := open(t, false)
			x.use(verbs.UD)
			y.use(verbs.UD)
			x.readyUD()
			y.readyUD()
			f := newForger(t, x.at().Addr())
			forged := wire.Packet{Opcode: wire.UDSendOnly, DestQP: y.qp.Num(), DETH: wire.DETH{QKey: testKey, SrcQP: x.qp.Num()}}
			// The port of a device at another port than 4791 is its name.
			claims := admission.ReplyAddress(f.own) == admission.ReplyAddress(x.source())

			y.postRecv(verbs.RecvWR{SGL: []verbs.SGE{y.sge(0, 1024)}})
			f.send(y.at(), forged, "from any")
			wc := y.wait(1)[0]
			assert.Equal(t, x.qp.Num(), wc.SrcQPN)
			if !claims {
				assert.NotEqual(t, x.at().Port(), cmp.Or(wc.SrcUDPPort, wire.UDPPort), "it names another sender")
				return
			}
			attr := y.address(x)
			attr.SourceUDPPort, attr.SourceQPN = x.source().Port(), x.qp.Num()
			ah, err := y.dev.DefaultPD().CreateAH(attr)
			require.NoError(t, err)
			y.postRecv(verbs.RecvWR{SGL: []verbs.SGE{y.sge(0, 1024)}})
			f.send(y.at(), forged, "stranger")
			y.awaitCount("rx_wrong_source", 0, 1)
			x.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{x.sge(0, 10)}, AH: x.handle(x.dev.DefaultPD(), x.address(y)), RemoteQPN: y.qp.Num(), RemoteQKey: testKey})
			wc = y.wait(1)[0]
			assert.Equal(t, x.qp.Num(), wc.SrcQPN)
			assert.Zero(t, wc.SrcUDPPort, "it is answered at 4791")
			assert.NotContains(t, string(y.mem), "stranger")
			require.NoError(t, ah.Close())
			y.postRecv(verbs.RecvWR{SGL: []verbs.SGE{y.sge(0, 1024)}})
			f.send(y.at(), forged, "from any")
			y.wait(1)
		})
	}
}

// SRD packets with correct tokens from another port than the peer's have no effect.
func TestForgedScalableDatagrams(t *testing.T) {
	for _, family := range []string{"127.0.71.%d:4791", "other ports", "::1"} {
		t.Run(family, func(t *testing.T) {
			var seen bytes.Buffer
			cfg := [2]Config{{Capture: &seen}, {}}
			switch family {
			case "::1":
				cfg[0].Addresses, cfg[1].Addresses = addresses("::1"), addresses("::1")
			case "other ports":
			default:
				cfg[0].Addresses = []netip.AddrPort{netip.MustParseAddrPort("127.0.71.11:4791")}
				cfg[1].Addresses = []netip.AddrPort{netip.MustParseAddrPort("127.0.71.12:4791")}
			}
			x, y := newSRDNode(t, srdNodeOptions{cfg: cfg[0], memory: 4096}), newSRDNode(t, srdNodeOptions{cfg: cfg[1], memory: 4096})
			y.to(x)
			write := func() {
				x.post(x.request(y, 0, verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}))
				require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
			}
			write()
			write()
			// The last write again with the next sequence number, by a host that has seen it.
			var last []byte
			x.dev.mu.Lock()
			for _, p := range capturedPackets(t, bytes.Clone(seen.Bytes())) {
				header := ipheader.IPv6Len
				if p[0]>>4 == 4 {
					header = ipheader.IPv4Len
				}
				if b := p[header+8:]; wire.Opcode(b[0]) == wire.SRDWrite {
					last = bytes.Clone(b)
				}
			}
			x.dev.mu.Unlock()
			require.NotNil(t, last)
			f := newForger(t, x.at().Addr())
			claims := admission.ListenAddress(f.own) == x.at()
			psn := binary.BigEndian.Uint32(last[8:])
			binary.BigEndian.PutUint32(last[8:], psn&^wire.PSNMask|(psn+1)&wire.PSNMask)
			copy(last[len(last)-wire.ICRCLen-8:], "intruder")
			name := "srd_rx_unverified" // of another device, which has no token
			if claims {
				name = "rx_wrong_source"
			}
			before := counter(t, y.dev, name)
			f.sendRaw(y.at(), last)
			y.awaitCount(name, before, 1)
			write()
			assert.NotContains(t, string(y.mem), "intruder")
		})
	}
}

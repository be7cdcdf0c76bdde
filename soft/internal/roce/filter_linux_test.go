package roce

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// restricted reports whether the socket filter is installed. It changes under the lock of a shard.
func (s *side) restricted() bool {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return !hidden(s.dev.endpoints[0].entry, "restrictedUntil").FieldByName("v").IsZero()
}

func (s *side) awaitRestricted(want bool) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.restricted() == want }, 5*time.Minute, time.Millisecond)
}

// restrict starts a restriction that does not expire.
func (s *side) restrict() {
	s.t.Helper()
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	require.NoError(s.t, s.dev.endpoints[0].entry.Restrict(s.dev.now()+24*time.Hour))
}

// flood sends packets for a queue pair until it is stopped.
func (f *forger) flood(to netip.AddrPort, qpn uint32) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			for range 16 {
				f.send(to, wire.Packet{Opcode: wire.RCSendOnly, DestQP: qpn}, "nonsense")
			}
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// writeBothWays makes both sides write to each other.
func writeBothWays(x, y *side, n int) {
	x.t.Helper()
	for range n {
		for _, end := range [][2]*side{{x, y}, {y, x}} {
			end[0].post(end[0].write(end[1], 8))
			require.Equal(x.t, verbs.StatusSuccess, end[0].wait(1)[0].Status)
		}
	}
}

func connectWithPorts(x, y *side) {
	x.path.SourceUDPPort, y.path.SourceUDPPort = y.source().Port(), x.source().Port()
	x.connect(y)
	y.connect(x)
}

// A flood from another program on the peer's host is dropped by the kernel after a while, as
// long as it lasts, and the connection continues.
func TestFloodOfRefusedPackets(t *testing.T) {
	for name, open := range standard {
		for _, known := range []bool{true, false} {
			if !known && name != "IPv4" {
				continue
			}
			t.Run(fmt.Sprintf("%s, known queue pair %v", name, known), func(t *testing.T) {
				x, y := open(t, false)
				connectWithPorts(x, y)
				qpn := y.qp.Num()
				if !known {
					qpn ^= 1 << 20
				}
				stop := newForger(t, x.at().Addr()).flood(y.at(), qpn)
				y.awaitRestricted(true)
				for before := counter(t, y.dev, "rx_socket_drops"); counter(t, y.dev, "rx_socket_drops") < before+100; {
					writeBothWays(x, y, 1)
				}
				stop()
				writeBothWays(x, y, 10)
				y.awaitRestricted(false)
				writeBothWays(x, y, 10)
				refused := counter(t, y.dev, "rx_wrong_source") + counter(t, y.dev, "rx_wrong_peer")
				assert.GreaterOrEqual(t, refused, uint64(admission.RefusedBurst))
				assert.False(t, x.restricted(), "nobody has sent it anything")
			})
		}
	}
}

// A restricted device accepts packets from a new peer before the call that names it returns,
// and packets that any host may send.
func TestRestrictedDeviceTakesNewPeers(t *testing.T) {
	y := openCMSide(t, Config{Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.71.11:4791")}, DisableLocal: true})
	z := openCMSide(t, Config{DisableLocal: true})

	t.Run("named", func(t *testing.T) {
		a, b := z.anotherQueuePair(), y.anotherQueuePair()
		a.path.SourceUDPPort, b.path.SourceUDPPort = y.source().Port(), z.source().Port()
		a.connect(b)
		y.restrict()
		b.connect(a)
		assert.False(t, y.restricted())
		writeBothWays(a, b, 1)
		y.restrict()
		writeBothWays(a, b, 10)
		c, d := z.anotherQueuePair(), y.anotherQueuePair()
		c.connect(d)
		d.path.SourceUDPPort = z.source().Port()
		d.connect(c)
		assert.True(t, y.restricted(), "packets of another connection come from there already")
		writeBothWays(c, d, 10)
	})
	t.Run("foreign", func(t *testing.T) {
		peer := netip.MustParseAddr("127.0.71.12") // nobody listens there
		f, g, b := newForger(t, peer), newForger(t, peer), y.anotherQueuePair()
		y.restrict()
		b.connectTo(verbs.GIDEntry{GID: verbs.GIDFromAddr(peer), UDPPort: wire.UDPPort}, 77)
		assert.False(t, y.restricted())
		y.restrict()
		before := counter(t, y.dev, "rcvd_pkts")
		f.send(y.at(), write8(b, 0xfffff0), "the 1st.")
		y.awaitCount("rcvd_pkts", before, 1)
		b.wasSilent(admission.RelearnTime)
		g.send(y.at(), write8(b, 0xfffff1), "the 2nd.")
		y.awaitCount("rcvd_pkts", before, 2)
	})
	t.Run("datagrams", func(t *testing.T) {
		sender := openSide(t, Config{}, 512)
		sender.use(verbs.UD)
		sender.readyUD()
		receiver := y.anotherQueuePair()
		receiver.use(verbs.UD)
		y.restrict()
		receiver.readyUD()
		assert.False(t, y.restricted())
		for range 2 {
			receiver.postRecv(verbs.RecvWR{SGL: []verbs.SGE{receiver.sge(0, 512)}})
			sender.post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{sender.sge(0, 10)}, RemoteQPN: receiver.qp.Num(), RemoteQKey: testKey,
				AH: sender.handle(sender.dev.DefaultPD(), sender.address(y.side))})
			assert.Equal(t, verbs.StatusSuccess, receiver.wait(1)[0].Status)
			y.restrict()
		}
	})
	t.Run("scalable datagrams", func(t *testing.T) {
		y.restrict()
		before := counter(t, y.dev, "rcvd_pkts")
		newForger(t, netip.MustParseAddr("127.0.71.13")).send(y.at(), wire.Packet{Opcode: wire.SRDHello, SRDETH: wire.SRDETH{Source: 1, MTU: 1}}, "")
		y.awaitCount("rcvd_pkts", before, 1)
	})
	t.Run("connection manager", func(t *testing.T) {
		y.restrict()
		a, b := establish(t, z, y)
		exchange := func() {
			z.post(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{z.sge(0, 8)}})
			y.recv(1, y.sge(0, 8))
			require.Equal(t, []verbs.Status{verbs.StatusSuccess, verbs.StatusSuccess}, statuses(append(z.wait(1), y.wait(1)...)))
		}
		exchange()
		y.restrict()
		exchange()
		require.NoError(t, a.Disconnect())
		y.next(verbs.CMDisconnected)
		require.NoError(t, b.Close())
	})
}

// The filter passes packets for queue pairs of all shards at each socket, including those of
// new shards.
func TestRestrictedShards(t *testing.T) {
	y, ys := openPollers(t, Config{DisableLocal: true}, 2, 1<<20)
	var xs []*side
	for i, b := range ys {
		require.Equal(t, i, b.shard().index)
		x := openSide(t, Config{DisableLocal: true}, 1<<20)
		y.restrict()
		connectWithPorts(x, b)
		assert.False(t, y.restricted())
		xs = append(xs, x)
	}
	for _, b := range ys {
		stop := newForger(t, y.at().Addr()).flood(y.at(), b.qp.Num())
		y.awaitRestricted(true)
		for before := counter(t, y.dev, "rx_socket_drops"); counter(t, y.dev, "rx_socket_drops") < before+20; {
			writeBothWays(xs[0], ys[0], 1)
			writeBothWays(xs[1], ys[1], 1)
		}
		stop()
		y.awaitRestricted(false)
	}
	y.restrict()
	require.NoError(t, must(y.dev.CreateCQ(verbs.CQInit{Capacity: 1, Poller: "another"})).Close())
	assert.Len(t, y.dev.mu.list, 3)
	assert.False(t, y.restricted(), "or the new shard would have no part in it")
	y.restrict()
	writeBothWays(xs[0], ys[0], 1)
	writeBothWays(xs[1], ys[1], 1)
}

// There is no filter if there are more sources or datagram queue pairs than it can list.
func TestTooManyToRestrict(t *testing.T) {
	x, y := standard["IPv4"](t, false)
	connectWithPorts(x, y)
	f := newForger(t, x.at().Addr())
	var qps []verbs.QP
	more := func(n int, init verbs.QPInit, connect func(s *side, i int)) {
		for i := range n {
			s := *y
			init.SendCQ, init.RecvCQ = s.cq, s.cq
			s.qp = must(s.dev.DefaultPD().CreateQP(init))
			qps = append(qps, s.qp)
			connect(&s, i)
		}
	}
	check := func() {
		before := counter(t, y.dev, "rx_wrong_source")
		stop := f.flood(y.at(), y.qp.Num())
		y.awaitCount("rx_wrong_source", before, 4*admission.RefusedBurst)
		require.False(t, y.restricted())
		writeBothWays(x, y, 10)
		stop()
		for _, qp := range qps {
			require.NoError(t, qp.Close())
		}
		qps = nil
		sources, open := y.dev.endpoints[0].entry.Open()
		assert.Equal(t, []int{1, 0}, []int{sources, open})
	}
	more(link.MaxAdmitted, verbs.QPInit{}, func(s *side, i int) {
		s.connectTo(verbs.GIDEntry{GID: verbs.GIDFromAddr(netip.AddrFrom4([4]byte{127, 0, 72, byte(i)})), UDPPort: wire.UDPPort}, 77)
	})
	check()
	more(link.MaxOpen, verbs.QPInit{Type: verbs.UD}, func(s *side, _ int) { s.readyUD() })
	check()
	stop := f.flood(y.at(), y.qp.Num())
	y.awaitRestricted(true)
	stop()
}

// Ignored messages and a restriction share one filter.
func TestRestrictionAndIgnoredMessages(t *testing.T) {
	x := openSide(t, Config{}, 64)
	x.dev.mu.Lock() // the device's own goroutines keep away
	t.Cleanup(x.dev.mu.Unlock)
	e := x.dev.endpoints[0]
	messages, now := &x.dev.admission.MADs, time.Hour
	for messages.Admit(e.entry, netip.MustParseAddr("127.9.9.9"), false, now) {
	}
	until := time.Duration(0)
	for until == 0 {
		until = e.entry.Refused(netip.MustParseAddrPort("127.9.9.8:1"), 5, now)
	}
	dropped := func(at string, qpn uint32) bool {
		before := e.socket.Dropped()
		newForger(t, netip.MustParseAddr(at)).send(e.socket.Addr(), wire.Packet{Opcode: wire.UDSendOnly, DestQP: qpn}, "")
		return e.socket.Dropped() > before
	}
	assert.True(t, dropped("127.9.9.9", wire.ManagementQPN))
	assert.False(t, dropped("127.9.9.8", wire.ManagementQPN))
	assert.True(t, dropped("127.9.9.8", 5))
	e.entry.Expire(until)
	assert.True(t, dropped("127.9.9.9", wire.ManagementQPN))
	assert.False(t, dropped("127.9.9.8", 5))
	messages.Expire(until)
	assert.False(t, dropped("127.9.9.9", wire.ManagementQPN))
}

// The filter drops only packets that handle refuses.
func TestFilterDropsOnlyWhatIsRefused(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.71.15:4791")
	var forgers []*forger
	for i := range 3 {
		for range 2 {
			forgers = append(forgers, newForger(t, netip.AddrFrom4([4]byte{127, 0, 73, byte(i)})))
		}
	}
	forgers = append(forgers, newForger(t, at.Addr()))
	y := openSide(t, Config{Addresses: []netip.AddrPort{at}, DisableLocal: true}, 4096)
	e := y.dev.endpoints[0]
	dropped, taken := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var qps []verbs.QP
		defer func() {
			for _, qp := range qps {
				require.NoError(t, qp.Close())
			}
		}()
		forger := rapid.SampledFrom(forgers)
		for range rapid.IntRange(0, 4).Draw(t, "queue pairs") {
			s := *y
			kind := rapid.SampledFrom([]verbs.QPType{verbs.RC, verbs.RC, verbs.UC, verbs.UD}).Draw(t, "kind")
			s.qp = must(s.dev.DefaultPD().CreateQP(verbs.QPInit{Type: kind, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 1, MaxRecvWR: 1}))
			qps = append(qps, s.qp)
			peer := forger.Draw(t, "peer").own
			attr := verbs.AddressAttr{DGID: verbs.GIDFromAddr(peer.Addr()), Port: 1, UDPPort: wire.UDPPort}
			if rapid.Bool().Draw(t, "named") {
				attr.SourceUDPPort = peer.Port()
			}
			switch {
			case rapid.IntRange(0, 4).Draw(t, "left") == 0: // not connected
			case kind == verbs.UD:
				s.readyUD()
			default:
				s.modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1}, verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess)
				mask := verbs.QPAttrAddress | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
				if kind == verbs.RC {
					mask |= verbs.QPAttrMaxDestReadAtomic | verbs.QPAttrMinRNRTimer
				}
				s.modify(verbs.QPAttr{State: verbs.QPReadyToReceive, PathMTU: 1024, DestQPN: 77, Address: attr}, mask)
			}
		}
		d := y.dev
		d.mu.Lock() // the device's own goroutines keep away
		defer d.mu.Unlock()
		numbers := []uint32{wire.ManagementQPN, 0x123, verbs.MulticastQPN}
		for _, qp := range qps {
			numbers = append(numbers, qp.Num(), qp.Num())
		}
		for range 10 {
			from := forger.Draw(t, "from")
			p := wire.Packet{DestQP: rapid.SampledFrom(numbers).Draw(t, "to"), PKey: rapid.SampledFrom([]uint16{0xffff, 0xffff, 0x8001}).Draw(t, "partition")}
			p.Opcode = rapid.SampledFrom([]wire.Opcode{wire.RCAcknowledge, wire.RCWriteOnly, wire.UCSendOnly, wire.UDSendOnly, wire.CNP, wire.SRDSend, wire.SRDHello, wire.SRDAcknowledge}).Draw(t, "opcode")
			p.SRDETH = wire.SRDETH{Source: 1, MTU: 1}
			b := make([]byte, p.Opcode.HeaderLen()+wire.ICRCLen) // a wrong checksum: it is looked at after the source
			p.PutHeaders(b)
			arrives := func() []link.Datagram {
				_, err := from.conn.WriteToUDPAddrPort(b, at)
				require.NoError(t, err)
				got, err := e.socket.Receive()
				require.NoError(t, err)
				return got
			}
			require.NoError(t, e.entry.Restrict(d.now()))
			passed := len(arrives()) > 0
			e.entry.Lift()
			got := arrives()
			require.Len(t, got, 1)
			before := d.main.mu.drops
			e.handle(&got[0], d.now())
			refused := d.main.mu.drops.wrongPeer+d.main.mu.drops.wrongSource > before.wrongPeer+before.wrongSource
			switch {
			case !passed && !refused:
				t.Fatalf("%v from %v for %#x is dropped, and would not be refused", p.Opcode, from.own, p.DestQP)
			case !passed:
				dropped++
			case !refused:
				taken++
			}
		}
	})
	assert.Positive(t, dropped)
	assert.Positive(t, taken)
}

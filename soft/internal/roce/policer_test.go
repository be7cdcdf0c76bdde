package roce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// A bucket admits what a counter of tokens would.
func TestBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const interval = 8
		burst := rapid.IntRange(1, 20).Draw(t, "burst")
		var b bucket
		now, credit := time.Duration(0), burst*interval // in parts of a token
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			pause := rapid.IntRange(0, 3*interval).Draw(t, "pause")
			now += time.Duration(pause)
			credit = min(credit+pause, burst*interval)
			has := b.has(now, burst, interval)
			if credit >= interval != has {
				t.Fatalf("at %d with %d parts of a token: %v", now, credit, has)
			}
			if has {
				b.take(now, interval)
				credit -= interval
			}
		}
	})
}

func openPolicer(t *testing.T) (*policer, *endpoint) {
	x := openSide(t, Config{}, 64)
	x.dev.mu.Lock() // the device's own goroutines keep away
	t.Cleanup(x.dev.mu.Unlock)
	return newPolicer(), x.dev.endpoints[0]
}

// A source has its burst, then its rate, and does not take those of others.
func TestPolicerIsFair(t *testing.T) {
	p, e := openPolicer(t)
	stranger, friend := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for p.sources.of(stranger) == p.sources.of(friend) {
		p = newPolicer()
	}
	flood := func(now time.Duration) (n int) {
		for range 4 * sourceBurst {
			if p.admit(e, stranger, false, now) {
				n++
			}
		}
		return n
	}
	now := time.Hour
	assert.Equal(t, sourceBurst, flood(now))
	assert.Len(t, p.ignored, 1)
	assert.False(t, p.admit(e, stranger, true, now), "not for what it knows either")
	assert.True(t, p.admit(e, friend, false, now))
	assert.Equal(t, 1024, flood(now+time.Second))
	p.expire(now + time.Minute)
	assert.Empty(t, p.ignored)
	assert.Equal(t, sourceBurst, flood(now+time.Minute))
}

// What was of use costs nothing, however much there is of it.
func TestPolicerLetsPeersWork(t *testing.T) {
	p, e := openPolicer(t)
	peer := netip.MustParseAddr("2001:db8::1")
	for i := range 100 * sourceBurst {
		require.True(t, p.admit(e, peer, i%2 == 0, time.Hour))
		p.giveBack(peer, i%2 == 0)
	}
	assert.Empty(t, p.ignored)
}

// Forged addresses take no memory, and no more than the tokens of all: messages of
// known connections do not need these.
func TestPolicerAndForgedAddresses(t *testing.T) {
	p, e := openPolicer(t)
	now := time.Hour
	admitted := 0
	for i := range uint32(1 << 18) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], i)
		if p.admit(e, netip.AddrFrom4(b), false, now) {
			admitted++
		}
	}
	assert.Equal(t, allBurst, admitted)
	assert.LessOrEqual(t, len(p.ignored), 16)
	assert.False(t, p.admit(e, netip.MustParseAddr("2001:db8::1"), false, now))
	assert.True(t, p.admit(e, netip.MustParseAddr("2001:db8::1"), true, now))
}

// toManagement is a datagram with a message to queue pair 1.
func toManagement(from, to netip.AddrPort, message *[mad.Len]byte) []byte {
	flow := wire.NewFlow(from, to)
	b := make([]byte, wire.MaxDatagramLen)
	p := wire.Packet{Opcode: wire.UDSendOnly, MigReq: true, PKey: 0xffff, DestQP: managementQPN, DETH: wire.DETH{QKey: cm.QKey, SrcQP: managementQPN}}
	n := p.PutHeaders(b)
	crc := wire.ICRCUpdate(flow.ICRCStart(0, n+mad.Len+wire.ICRCLen, b[:n]), message[:])
	n += copy(b[n:], message[:])
	wire.PutICRC(b[n:], wire.ICRCFinish(crc))
	return b[:n+wire.ICRCLen]
}

// BenchmarkJunk is what a message costs that leads to nothing, once it has been received.
func BenchmarkJunk(b *testing.B) {
	d := must(Open(Config{Name: "soft-test", Addresses: addresses("127.0.0.1")}))
	defer d.Close()
	m := must(d.OpenCM(func(verbs.CMEvent) {}))
	defer m.Close()
	e := d.endpoints[0]
	stranger := netip.MustParseAddrPort("192.0.2.1:4791")
	dg := link.Datagram{Src: stranger, Data: toManagement(stranger, e.socket.Addr(), new([mad.Len]byte))}
	for _, c := range []struct {
		name string
		step time.Duration // between two
	}{{"taken", sourceInterval}, {"refused", 0}} {
		b.Run(c.name, func(b *testing.B) {
			d.mu.Lock()
			defer d.mu.Unlock()
			now := time.Hour
			for range sourceBurst {
				e.handle(&dg, now)
			}
			b.ReportAllocs()
			for b.Loop() {
				now += c.step
				e.handle(&dg, now)
			}
		})
	}
}

// A stranger's flood is limited, and another host connects and disconnects meanwhile.
func TestFlood(t *testing.T) {
	passive := openManaged(t, Config{})
	_, dial := passive.listen(verbs.RC)
	target := netip.AddrPortFrom(dial.Addr.Addr(), dial.UDPPort)
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.9.9.9:0")), net.UDPAddrFromAddrPort(target))
	require.NoError(t, err)
	defer conn.Close()
	datagram := toManagement(conn.LocalAddr().(*net.UDPAddr).AddrPort(), target, new([mad.Len]byte))
	require.Eventually(t, func() bool {
		for range 256 {
			_, err := conn.Write(datagram)
			require.NoError(t, err)
		}
		return counter(t, passive.dev, "cm_rx_rate_limited") > 0
	}, 5*time.Minute, time.Millisecond)
	malformed := counter(t, passive.dev, "cm_rx_malformed")
	assert.GreaterOrEqual(t, malformed, uint64(sourceBurst))

	active := openManaged(t, Config{})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = conn.Write(datagram)
			}
		}
	}()
	a, _ := establish(t, active, passive)
	require.NoError(t, a.Disconnect())
	passive.next(verbs.CMDisconnected)
	close(stop)
	<-stopped
}

package roce

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/admission"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm"
	"github.com/verbena-rdma/verbena/soft/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// toManagement returns a datagram with a message to queue pair 1.
func toManagement(from, to netip.AddrPort, message *[mad.Len]byte) []byte {
	flow := wire.NewFlow(from, to)
	b := make([]byte, wire.MaxDatagramLen)
	p := wire.Packet{Opcode: wire.UDSendOnly, MigReq: true, PKey: 0xffff, DestQP: wire.ManagementQPN, DETH: wire.DETH{QKey: cm.QKey, SrcQP: wire.ManagementQPN}}
	n := p.PutHeaders(b)
	crc := wire.ICRCUpdate(flow.ICRCStart(0, n+mad.Len+wire.ICRCLen, b[:n]), message[:])
	n += copy(b[n:], message[:])
	wire.PutICRC(b[n:], wire.ICRCFinish(crc))
	return b[:n+wire.ICRCLen]
}

// BenchmarkJunk measures the cost of a useless message after it was received.
func BenchmarkJunk(b *testing.B) {
	d := must(Open(Config{Name: "soft-test", Addresses: addresses("127.0.0.1")}))
	defer d.Close()
	m := must(d.OpenCM(func(verbs.CMEvent) {}))
	defer m.Close()
	e := d.endpoints[0]
	unknown := netip.MustParseAddrPort("192.0.2.1:4791")
	dg := link.Datagram{Src: unknown, Data: toManagement(unknown, e.socket.Addr(), new([mad.Len]byte))}
	for _, c := range []struct {
		name string
		step time.Duration // between two
	}{{"taken", time.Second / 1024}, {"refused", 0}} {
		b.Run(c.name, func(b *testing.B) {
			d.mu.Lock()
			defer d.mu.Unlock()
			now := time.Hour
			for range admission.MADBurst {
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

// A flood from an unknown host is limited, and another host connects and disconnects meanwhile.
func TestFlood(t *testing.T) {
	passive := openCMSide(t, Config{})
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
	assert.GreaterOrEqual(t, malformed, uint64(admission.MADBurst))

	active := openCMSide(t, Config{})
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

package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/verbena-rdma/verbena/internal/roce/cm"
	"github.com/verbena-rdma/verbena/internal/roce/cm/mad"
	"github.com/verbena-rdma/verbena/internal/roce/wire"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// floods are what the second process sends, as fast as it can. Each goes to a socket that
// nobody reads, for comparison, and then to the device's: to make the packets costs the
// machine as much either way.
var floods = []string{"random", "requests"}

// compareFloods measures writes while a stranger floods the connection manager of the
// end that is written to, which listens.
func compareFloods(o options) (string, error) {
	type figures struct{ elsewhere, here, ratio []float64 }
	all := make([]figures, len(floods))
	for range o.rounds {
		for i, flood := range floods {
			elsewhere, err := rateUnderFlood(o, flood, true)
			if errors.Is(err, rdma.ErrNotSupported) {
				return "the device has no connection manager", nil
			}
			here := 0.0
			if err == nil {
				here, err = rateUnderFlood(o, flood, false)
			}
			if err != nil {
				return "", fmt.Errorf("%s: %w", flood, err)
			}
			f := &all[i]
			f.elsewhere, f.here, f.ratio = append(f.elsewhere, elsewhere), append(f.here, here), append(f.ratio, here/elsewhere)
		}
	}
	var b strings.Builder
	for i, flood := range floods {
		if i > 0 {
			b.WriteString("\n            ")
		}
		f := &all[i]
		fmt.Fprintf(&b, "%-9s %6.2f M writes/s, elsewhere %6.2f; ratio %.2f (median of the rounds')", flood, middle(f.here)/1e6, middle(f.elsewhere)/1e6, middle(f.ratio))
	}
	return b.String(), nil
}

// rateUnderFlood measures beside a flood of one kind: to the device, or elsewhere.
func rateUnderFlood(o options, flood string, elsewhere bool) (rate float64, err error) {
	var p *process
	var other *net.UDPConn
	defer func() {
		if p != nil {
			err = errors.Join(err, p.stop())
		}
		if other != nil {
			err = errors.Join(err, other.Close())
		}
	}()
	return writesPerSecond(o, func(y *endpoint) error {
		l, err := y.rdma.Listen(":0", rdma.ListenConfig{})
		if err != nil {
			return err
		}
		gid := y.rdma.GID()
		target := netip.AddrPortFrom(gid.GID.Addr(), max(gid.UDPPort, wire.UDPPort))
		if elsewhere {
			if other, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(target.Addr(), 0))); err != nil {
				return err
			}
			target = other.LocalAddr().(*net.UDPAddr).AddrPort()
		}
		o.style = fmt.Sprintf("%s,%v,%d", flood, target, l.Addr().Port())
		p, err = startPeer(o)
		return err
	})
}

// serveFlood is the second process. It ends when its standard input does.
func serveFlood(o options) error {
	words := strings.Split(o.style, ",")
	if len(words) != 3 {
		return fmt.Errorf("what to send is %q, and not KIND,ADDRESS,PORT", o.style)
	}
	target, err := netip.ParseAddrPort(words[1])
	if err != nil {
		return err
	}
	var port uint16
	if _, err := fmt.Sscan(words[2], &port); err != nil {
		return err
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(target))
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	f := flooder{flow: wire.NewFlow(conn.LocalAddr().(*net.UDPAddr).AddrPort(), target), local: conn.LocalAddr().(*net.UDPAddr).AddrPort(), target: target, port: port}
	for {
		select {
		case <-ended:
			return conn.Close()
		default:
		}
		b, err := f.next(words[0] == "random")
		if err != nil {
			return err
		}
		_, _ = conn.Write(b) // a socket that is not there refuses
	}
}

// flooder makes packets for queue pair 1.
type flooder struct {
	flow          wire.Flow
	local, target netip.AddrPort
	port          uint16 // that is listened on
	packet        [wire.MaxDatagramLen]byte
	message       [mad.Len]byte
}

// next returns a packet with a request for a connection, or with random bytes in place of
// a message.
func (f *flooder) next(random bool) ([]byte, error) {
	if random {
		for i := range f.message {
			f.message[i] = byte(rand.Uint32())
		}
	} else if err := f.request(); err != nil {
		return nil, err
	}
	p := wire.Packet{
		Opcode: wire.UDSendOnly, MigReq: true, PKey: 0xffff, DestQP: 1, PSN: rand.Uint32() & 0xffffff,
		DETH: wire.DETH{QKey: cm.QKey, SrcQP: 1},
	}
	n := p.PutHeaders(f.packet[:])
	crc := f.flow.ICRCStart(0, n+mad.Len+wire.ICRCLen, f.packet[:n])
	n += copy(f.packet[n:], f.message[:])
	wire.PutICRC(f.packet[n:], wire.ICRCFinish(wire.ICRCUpdate(crc, f.message[:])))
	return f.packet[:n+wire.ICRCLen], nil
}

// request makes one that no other was like.
func (f *flooder) request() error {
	var private [mad.IPHeaderLen]byte
	header := mad.IPHeader{Source: f.local.Addr(), Destination: f.target.Addr(), SourcePort: uint16(rand.Uint32())}
	header.Encode(&private)
	path := mad.Path{
		LocalLID: mad.PermissiveLID, RemoteLID: mad.PermissiveLID,
		LocalGID: verbs.GIDFromAddr(f.local.Addr()), RemoteGID: verbs.GIDFromAddr(f.target.Addr()), HopLimit: 64, AckTimeout: 17,
	}
	r := mad.REQ{
		TransactionID: rand.Uint64(), LocalCommID: rand.Uint32(), CAGUID: rand.Uint64(), QPN: rand.Uint32N(1<<24-2) + 2,
		ServiceID: cm.Service{Space: cm.PortSpaceTCP, Port: f.port}.ID(), RemoteResponseTimeout: 20, LocalResponseTimeout: 20,
		ResponderResources: 1, InitiatorDepth: 1, PKey: 0xffff, PathMTU: 5, RetryCount: 7, RNRRetry: 7, MaxCMRetries: 15,
		Primary: path, PrivateData: private[:],
	}
	return r.Encode(&f.message)
}

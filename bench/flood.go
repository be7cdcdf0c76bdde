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

// floods are what the second process sends, as fast as it can. The first goes to a socket
// that is not the device's, and costs the machine as much as the others.
var floods = []string{"elsewhere", "random", "requests"}

// compareFloods measures writes while a stranger floods the connection manager of the
// end that is written to, which listens.
func compareFloods(o options) (string, error) {
	rates := make(map[string][]float64)
	for range o.rounds {
		for _, flood := range floods {
			rate, err := rateUnderFlood(o, flood)
			if errors.Is(err, rdma.ErrNotSupported) {
				return "the device has no connection manager", nil
			}
			if err != nil {
				return "", fmt.Errorf("%s: %w", flood, err)
			}
			rates[flood] = append(rates[flood], rate)
		}
	}
	var b strings.Builder
	base := middle(rates[floods[0]])
	for i, flood := range floods {
		if i > 0 {
			b.WriteString("\n            ")
		}
		rate := middle(rates[flood])
		fmt.Fprintf(&b, "%-9s %6.2f M writes/s, ratio %.2f", flood, rate/1e6, rate/base)
	}
	return b.String(), nil
}

func rateUnderFlood(o options, flood string) (float64, error) {
	var p *process
	rate, err := writesPerSecond(o, func(y *endpoint) error {
		l, err := y.rdma.Listen(":0", rdma.ListenConfig{})
		if err != nil {
			return err
		}
		gid := y.rdma.GID()
		target := netip.AddrPortFrom(gid.GID.Addr(), max(gid.UDPPort, wire.UDPPort))
		if flood == floods[0] {
			target = netip.AddrPortFrom(target.Addr(), 9) // discard
		}
		o.style = fmt.Sprintf("%s,%v,%d", flood, target, l.Addr().Port())
		p, err = startPeer(o)
		return err
	})
	if p != nil {
		err = errors.Join(err, p.stop())
	}
	return rate, err
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

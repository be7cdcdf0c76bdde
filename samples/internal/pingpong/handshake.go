package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Address is the address that the two sides exchange.
type Address struct {
	LID uint16
	QPN uint32 // 24 bits
	PSN uint32 // 24 bits, of the first packet that this side sends
	GID verbs.GID
	// GIDIndex is the index of the GID in the table of this side's port. It is not sent.
	GIDIndex int
}

func (a Address) print(out io.Writer, side string) {
	_, _ = fmt.Fprintf(out, "  %-15s LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %v\n", side+":", a.LID, a.QPN, a.PSN, netip.AddrFrom16(a.GID))
}

// Path returns the route to the peer.
func (p *Peer) Path() verbs.AddressAttr {
	return verbs.AddressAttr{DGID: p.GID, DLID: p.LID, SGIDIndex: p.Mine.GIDIndex, Port: p.o.Port, SL: uint8(p.o.SL)}
}

const (
	messageLen = 52
	doneLen    = 5
	done       = "done\x00"
	// answerTimeout bounds the wait for the peer's answer.
	answerTimeout = 30 * time.Second
)

func (a Address) encode() []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", a.LID, a.QPN, a.PSN, a.GID[:])
}

func decode(b []byte) (a Address, err error) {
	text, _, ended := strings.Cut(string(b), "\x00")
	fields := strings.Split(text, ":")
	bad := fmt.Errorf("the peer's address is %q, want LID:QPN:PSN:GID in hexadecimal", text)
	if !ended || len(fields) != 4 || len(fields[3]) != 2*len(a.GID) {
		return a, bad
	}
	number := func(s string, bits int) uint32 {
		v, e := strconv.ParseUint(s, 16, bits)
		if e != nil {
			err = bad
		}
		return uint32(v)
	}
	a.LID = uint16(number(fields[0], 16))
	a.QPN, a.PSN = number(fields[1], 24), number(fields[2], 24)
	for i := range a.GID {
		a.GID[i] = byte(number(fields[3][2*i:2*i+2], 8))
	}
	return a, err
}

// Peer is the other side: both addresses, and the TCP connection that carried them.
type Peer struct {
	Address
	Mine Address

	o    *Options
	conn net.Conn
	stop func() bool

	cancel    context.CancelCauseFunc // ends the exchange of messages; nil before Ready
	announced chan struct{}           // closed when it is known whether the peer keeps the connection
	keepsOpen bool                    // it does; set before announced is closed
	mismatch  error                   // why the programs do not go together; likewise
	ended     chan struct{}           // closed when the peer sends nothing more over TCP
	lossTimer *time.Timer             // set before ended is closed; nil: the peer has not said bye
}

// Meet waits for a client, or connects to the server, and exchanges the addresses of the queue
// pairs. On a server it only receives: Ready sends the address.
func (o *Options) Meet(ctx context.Context, dev verbs.Device, qp verbs.QP) (*Peer, error) {
	port, err := dev.QueryPort(o.Port)
	if err != nil {
		return nil, err
	}
	table, err := dev.GIDs(o.Port)
	if err != nil {
		return nil, err
	}
	conn, err := o.connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// A deadline in the past ends a pending read or write.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	p := &Peer{o: o, conn: conn, stop: stop, Mine: Address{LID: port.LID, QPN: qp.Num(), PSN: rand.Uint32N(1 << 24)}}
	if err := p.exchangeAddresses(table, port.LinkLayer != verbs.LinkInfiniBand || o.GIDIndex >= 0); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (o *Options) connect(ctx context.Context) (net.Conn, error) {
	port := strconv.Itoa(o.TCPPort)
	if o.Client() {
		address := net.JoinHostPort(o.Host, port)
		o.say("connecting to %s (TCP)", address)
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	o.say("waiting for a client on TCP port %d", o.TCPPort)
	return listener.Accept()
}

// exchangeAddresses sends the address of this side's queue pair and receives the peer's. If
// packets are routed by GID, the addresses have a GID, this side's from the table.
func (p *Peer) exchangeAddresses(table []verbs.GIDEntry, routed bool) (err error) {
	var peer netip.Addr
	if !p.o.Client() {
		if p.Address, err = p.receive(routed); err != nil {
			return err
		}
		peer = p.GID.Addr()
	}
	if routed {
		e, err := p.o.chooseGID(table, peer)
		if err != nil {
			return err
		}
		p.Mine.GID, p.Mine.GIDIndex = e.GID, e.Index
	}
	if p.o.Client() {
		if err = p.send(p.Mine.encode()); err == nil {
			p.Address, err = p.receive(routed)
		}
		if err != nil {
			return err
		}
	}
	p.Mine.print(p.o.out, "local address")
	p.Address.print(p.o.out, "remote address")
	return nil
}

// Ready tells the peer that this side's queue pair is up. When Ready returns on a server, the
// client has its address. The context that it returns ends if the peer dies.
func (p *Peer) Ready(ctx context.Context) (context.Context, error) {
	if err := p.sendReady(); err != nil {
		return ctx, err
	}
	return p.watchConnection(ctx)
}

func (p *Peer) sendReady() error {
	if p.o.Client() {
		return p.send([]byte(done))
	}
	if err := p.send(p.Mine.encode()); err != nil {
		return err
	}
	b, err := p.read(doneLen)
	if err == nil && string(b) != done {
		err = fmt.Errorf("the client wrote %q, want %q", b, done)
	}
	return err
}

// Close closes the connection.
func (p *Peer) Close() error {
	p.stop()
	err := p.conn.Close()
	if p.cancel != nil {
		p.cancel(nil)
		<-p.ended
		if p.lossTimer != nil {
			p.lossTimer.Stop()
		}
	}
	return err
}

func (p *Peer) send(b []byte) error {
	_, err := p.conn.Write(b)
	return err
}

// receive reads the peer's address, with a GID if packets are routed by it.
func (p *Peer) receive(routed bool) (Address, error) {
	b, err := p.read(messageLen)
	if err != nil {
		return Address{}, err
	}
	a, err := decode(b)
	if err == nil && routed && a.GID == (verbs.GID{}) {
		err = errors.New("the peer sent no GID: start it with -g")
	}
	return a, err
}

func (p *Peer) read(n int) ([]byte, error) {
	b := make([]byte, n)
	got, err := io.ReadFull(p.conn, b)
	if err != nil {
		return nil, fmt.Errorf("read %d bytes of the handshake from %v, got %d: %w", n, p.conn.RemoteAddr(), got, err)
	}
	return b, nil
}

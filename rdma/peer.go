package rdma

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/internal/ref"
	"github.com/verbena-rdma/verbena/internal/wirecode"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/verbs"
)

// EndpointAddr is the address of an endpoint: a queue pair that exchanges datagrams with
// others. Two addresses are equal if they are of the same endpoint.
type EndpointAddr struct {
	GID verbs.GID // of its device
	QPN uint32    // its queue pair number, 24 bits
	// UDPPort is the UDP port of its device: 4791, or another on a software device; zero on
	// InfiniBand.
	UDPPort uint16
}

// String is the address in words.
func (a EndpointAddr) String() string {
	s := a.GID.Addr().String()
	if a.UDPPort != 0 && a.UDPPort != roceUDPPort {
		s = netip.AddrPortFrom(a.GID.Addr(), a.UDPPort).String()
	}
	return fmt.Sprintf("%s queue pair %#x", s, a.QPN)
}

// Peer is an endpoint that a context of datagrams sends to. It holds nothing of the device,
// and needs no Close: the context keeps address handles for the peers in use. It belongs to
// the goroutine that drives the engine.
type Peer struct {
	ctx      *Datagrams
	addr     EndpointAddr
	qkey     uint32
	lid      uint16
	source   uint16                  // UDP source port of its datagrams; 0: not named
	handle   *ref.Ref[addressHandle] // that a task to it used last; nil: none
	pinned   *addressHandle          // address handle that is kept open; nil: none
	userData any
	group    *MulticastGroup  // that the peer stands for; nil: none
	learned  fifo.Node[*Peer] // among those that the context knows only from their messages
}

// maxLearnedPeers is how many peers that are known only by their messages a context remembers. It
// is limited, since anybody can send messages.
const maxLearnedPeers = 4096

// NewPeer makes a peer from the descriptor of its endpoint (ExportEndpoint), binary or
// armored. If the context knows the peer already, NewPeer returns the same Peer, with the
// Q_Key of the descriptor. With SRD, a device executes reads and writes only of peers that it
// has an address handle for; NewPeer keeps one open while the context runs. With UD, the
// software device accepts messages of the peer only from the port that the descriptor names.
// It is legal in every state. Errors match those of package descriptor, and ErrMismatch if the
// transport services or networks do not fit, or are the device's.
func (c *Datagrams) NewPeer(desc []byte) (*Peer, error) {
	const op = "make a peer"
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	d, err := decodeEndpointDescriptor(desc)
	if err == nil && d.transport != c.set.Transport {
		err = fmt.Errorf("%w: the peer uses %v, the context %v; set the same DatagramsConfig.Transport at both ends", ErrMismatch, d.transport, c.set.Transport)
	}
	if err == nil {
		err = c.reaches(d.gidType, d.addr.GID)
	}
	if err != nil {
		return nil, fmt.Errorf("rdma: %s of context %q: %w", op, c.set.Name, err)
	}
	p, added := c.addPeer(d.addr)
	p.qkey, p.lid = d.qkey, d.lid
	if c.set.Transport == verbs.UD && p.source != d.source { // SRD has tokens instead
		c.unpin(p)
		p.source = d.source
	}
	return c.pinned(p, added)
}

// PeerAt makes a peer from the address of its endpoint, as EndpointAddr and Peer.Addr return
// it. The address of a multicast group has verbs.MulticastQPN, and JoinMulticast need not be
// called before. Messages to the peer carry the context's own Q_Key; those to a peer of
// NewPeer carry that of the descriptor. On InfiniBand, the peer also needs Peer.SetLID. Errors
// match ErrInvalid for an invalid address, and ErrMismatch if the networks do not fit.
func (c *Datagrams) PeerAt(addr EndpointAddr) (*Peer, error) {
	const op = "make a peer"
	if err := c.control.Owned(op); err != nil {
		return nil, err
	}
	var err error
	switch {
	case addr.QPN < 2 || addr.QPN > verbs.MulticastQPN:
		err = fmt.Errorf("%w: %v: the queue pair number must be 2 to %#x", ErrInvalid, addr, verbs.MulticastQPN)
	case addr.GID.Addr().IsMulticast() != (addr.QPN == verbs.MulticastQPN):
		err = fmt.Errorf("%w: %v: multicast groups, and no other addresses, have the queue pair number %#x", ErrInvalid, addr, verbs.MulticastQPN)
	default:
		err = c.reaches(c.port.State().GID.Type, addr.GID)
	}
	if err != nil {
		return nil, fmt.Errorf("rdma: %s of context %q: %w", op, c.set.Name, err)
	}
	p, added := c.addPeer(addr)
	return c.pinned(p, added)
}

// reaches refuses addresses that packets would not reach.
func (c *Datagrams) reaches(t verbs.GIDType, gid verbs.GID) error {
	own := &c.port.State().GID
	if err := sameNetwork(own.Type, t, own.GID, gid); err != nil {
		return err
	}
	if why := hostaddr.Unusable(gid.Addr()); why != "" && !gid.Addr().IsMulticast() {
		return fmt.Errorf("%w: %v is not the address of a peer but %s", ErrInvalid, gid.Addr(), why)
	}
	return nil
}

// addPeer returns the peer at an address, and makes it known to the context. It reports whether the program had none there.
func (c *Datagrams) addPeer(addr EndpointAddr) (p *Peer, added bool) {
	if addr.UDPPort == 0 && c.port.State().GID.Type == verbs.GIDRoCEv2 {
		addr.UDPPort = roceUDPPort
	}
	if p = c.peers[addr]; p == nil {
		p, added = c.newPeer(addr), true
	}
	added = added || p.learned.Queued()
	c.learned.Remove(&p.learned)
	return p, added
}

// pinned pins a peer and returns it. If that fails, one that was added is forgotten.
func (c *Datagrams) pinned(p *Peer, added bool) (*Peer, error) {
	if err := c.pin(p); err != nil {
		if added {
			c.forget(p)
		}
		return nil, err
	}
	return p, nil
}

// pin keeps the address handle of a peer open during a run. With SRD, a device executes reads
// and writes only of peers that it has a handle for. With UD, the handle tells the device the
// port that the peer sends from.
func (c *Datagrams) pin(p *Peer) error {
	if c.set.Transport != verbs.SRD && p.source == 0 || c.endpoint == nil || p.pinned != nil {
		return nil
	}
	h, err := c.endpoint.handles.find(p, false)
	if err != nil {
		return fmt.Errorf("rdma: make a peer of context %q: %w", c.set.Name, err)
	}
	p.pinned = h
	c.endpoint.handles.acquire(h)
	return nil
}

// unpin undoes pin.
func (c *Datagrams) unpin(p *Peer) {
	if p.pinned != nil && c.endpoint != nil {
		c.endpoint.handles.release(p.pinned)
	}
	p.pinned = nil
}

// learnPeer returns the peer at an address that a message has come from.
func (c *Datagrams) learnPeer(addr EndpointAddr, lid uint16) *Peer {
	if p := c.peers[addr]; p != nil {
		return p
	}
	if c.learned.Len() == maxLearnedPeers {
		delete(c.peers, c.learned.Pop().Value.addr)
	}
	p := c.newPeer(addr)
	p.lid = lid
	c.learned.Push(&p.learned)
	return p
}

func (c *Datagrams) newPeer(addr EndpointAddr) *Peer {
	p := &Peer{ctx: c, addr: addr, qkey: c.set.qkey}
	p.learned.Value = p
	c.peers[addr] = p
	return p
}

// Forget removes the peer from the context. It is for peers made by NewPeer and PeerAt, in a
// program that meets new ones without end. Tasks under way go on. A later message of the peer
// makes another Peer. Forget revokes no access: with SRD, the peer may still access the memory
// whose keys it has, so close that map before its memory serves another peer.
func (p *Peer) Forget() error {
	if err := p.ctx.control.Owned("forget a peer"); err != nil {
		return err
	}
	p.ctx.forget(p)
	return nil
}

func (c *Datagrams) forget(p *Peer) {
	if c.peers[p.addr] == p {
		delete(c.peers, p.addr)
		c.learned.Remove(&p.learned)
		c.unpin(p)
	}
}

// compare orders peers by address.
func (p *Peer) compare(q *Peer) int {
	a, b := &p.addr, &q.addr
	return cmp.Or(bytes.Compare(a.GID[:], b.GID[:]), cmp.Compare(a.UDPPort, b.UDPPort), cmp.Compare(a.QPN, b.QPN))
}

// Addr is the address of the peer's endpoint.
func (p *Peer) Addr() EndpointAddr { return p.addr }

// Context is the context of the peer.
func (p *Peer) Context() *Datagrams { return p.ctx }

// SetLID sets the local identifier (LID) of the peer's port, which InfiniBand needs to deliver
// datagrams. For a peer of PeerAt, call it before anything is sent to the peer. NewPeer,
// ResolvePeer and messages of the peer set the LID themselves.
func (p *Peer) SetLID(lid uint16) { p.lid = lid }

// UserData returns what SetUserData stored last, or nil.
func (p *Peer) UserData() any { return p.userData }

// SetUserData stores a value of the user's with the peer. It is lost when the context
// forgets the peer.
func (p *Peer) SetUserData(v any) { p.userData = v }

// String names the peer.
func (p *Peer) String() string { return "peer " + p.addr.String() }

// EndpointAddr is the address of the context's endpoint. The error matches pe.ErrBadState in
// Idle, where there is no endpoint, and pe.ErrBusy while another goroutine drives the engine.
func (c *Datagrams) EndpointAddr() (EndpointAddr, error) {
	if err := c.control.Owned("ask for the address of the endpoint"); err != nil {
		return EndpointAddr{}, err
	}
	if err := c.control.Require("ask for the address of the endpoint", pe.Starting, pe.Running, pe.Stopping); err != nil {
		return EndpointAddr{}, err
	}
	return c.endpoint.addr(), nil
}

// ExportEndpoint makes the descriptor of the context's endpoint, in binary form
// (descriptor.Armor makes it text), for NewPeer of any number of others. It contains the
// endpoint's Q_Key: its holder can send messages, but needs descriptors of memory maps to
// access memory. It is legal in Starting and Running. Errors match those of EndpointAddr.
func (c *Datagrams) ExportEndpoint() ([]byte, error) {
	if err := c.control.Owned("export the endpoint"); err != nil {
		return nil, err
	}
	addr, err := c.EndpointAddr()
	if err != nil {
		return nil, err
	}
	if err := c.control.Require("export the endpoint", pe.Starting, pe.Running); err != nil {
		return nil, err
	}
	port := c.port.State()
	d := endpointDescriptor{transport: c.set.Transport, gidType: port.GID.Type, addr: addr, lid: port.LID, qkey: c.set.qkey, source: port.GID.SourceUDPPort}
	return d.encode()
}

// endpointDescriptor is the payload of the descriptor of an endpoint, in this order.
type endpointDescriptor struct {
	transport verbs.QPType  // 1 byte
	gidType   verbs.GIDType // 1 byte
	addr      EndpointAddr  // 16 bytes of GID, 2 of UDP port, 4 of queue pair number
	source    uint16        // UDP source port of its packets; 0: not known
	lid       uint16
	qkey      uint32
}

func (d *endpointDescriptor) encode() ([]byte, error) {
	var c wirecode.Coder
	written := *d
	written.addr.UDPPort = cmp.Or(d.addr.UDPPort, roceUDPPort)
	written.code(&c)
	payload, err := c.Payload()
	if err != nil {
		return nil, err
	}
	return descriptor.Encode(descriptor.Endpoint, payload)
}

func decodeEndpointDescriptor(desc []byte) (endpointDescriptor, error) {
	payload, err := descriptor.Decode(descriptor.Endpoint, desc)
	if err != nil {
		return endpointDescriptor{}, err
	}
	c := wirecode.ReadFrom(payload)
	var d endpointDescriptor
	d.code(c)
	if err := c.Done(); err != nil {
		return endpointDescriptor{}, err
	}
	if field, value := d.invalidField(); field != "" {
		return endpointDescriptor{}, fmt.Errorf("%w: its %s is %v; export the descriptor again", descriptor.ErrFormat, field, value)
	}
	if d.gidType == verbs.GIDInfiniBand {
		d.addr.UDPPort = 0
	}
	return d, nil
}

// invalidField names the first field that no exporter would write so.
func (d *endpointDescriptor) invalidField() (field string, value any) {
	switch {
	case d.transport != verbs.UD && d.transport != verbs.SRD:
		return "transport service", d.transport
	case d.gidType != verbs.GIDInfiniBand && d.gidType != verbs.GIDRoCEv2:
		return "GID type", d.gidType
	case d.addr.GID == verbs.GID{}:
		return "GID", d.addr.GID
	case hostaddr.Unusable(d.addr.GID.Addr()) != "":
		return "GID", invalidGID(d.addr.GID)
	case d.addr.UDPPort == 0:
		return "UDP port", d.addr.UDPPort
	case d.gidType == verbs.GIDInfiniBand && d.source != 0:
		return "source UDP port", d.source
	case d.addr.QPN < 2 || d.addr.QPN >= verbs.MulticastQPN:
		return "queue pair number", d.addr.QPN
	}
	return "", nil
}

func (d *endpointDescriptor) code(c *wirecode.Coder) {
	wirecode.Int(c, &d.transport, 1)
	wirecode.Int(c, &d.gidType, 1)
	c.Fixed(d.addr.GID[:])
	c.Uint16(&d.addr.UDPPort)
	c.Uint32(&d.addr.QPN)
	c.Uint16(&d.source)
	c.Uint16(&d.lid)
	c.Uint32(&d.qkey)
}

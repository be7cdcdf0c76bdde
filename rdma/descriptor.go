package rdma

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/hostaddr"
	"github.com/verbena-rdma/verbena/internal/wirecode"
	"github.com/verbena-rdma/verbena/verbs"
)

// endpoint is what the peer must know of an end of a connection: the payload of the end's
// descriptor, in this order.
type endpoint struct {
	transport verbs.QPType  // 1 byte
	gidType   verbs.GIDType // 1 byte
	gid       verbs.GID     // 16 bytes
	udpPort   uint16
	source    uint16 // port that its packets come from; 0: not known
	lid       uint16
	mtu       verbs.MTU // 2 bytes
	reads     int       // reads and atomics accepted at a time, 1 byte
	qpn       uint32
	psn       uint32 // of the first packet it sends
	nonce     uint64 // random, different in every descriptor; it is the ready signal, and says whether the end answers
	readyAddr uint64 // address of the 8 bytes that the ready signal is written to
	readyKey  uint32
}

const roceUDPPort = 4791

func (e *endpoint) encode() ([]byte, error) {
	var c wirecode.Coder
	e.code(&c)
	payload, err := c.Payload()
	if err != nil {
		return nil, err
	}
	return descriptor.Encode(descriptor.Connection, payload)
}

func decodeEndpoint(desc []byte) (endpoint, error) {
	payload, err := descriptor.Decode(descriptor.Connection, desc)
	if err != nil {
		return endpoint{}, err
	}
	c := wirecode.ReadFrom(payload)
	var e endpoint
	e.code(c)
	if err := c.Done(); err != nil {
		return endpoint{}, err
	}
	if field, value := e.invalidField(); field != "" {
		return endpoint{}, fmt.Errorf("%w: its %s is %v; export the descriptor again", descriptor.ErrFormat, field, value)
	}
	return e, nil
}

// invalidField names the first field that no exporter would write so.
func (e *endpoint) invalidField() (field string, value any) {
	const max24 = 1<<24 - 1
	switch {
	case e.transport != verbs.RC && e.transport != verbs.UC:
		return "transport service", e.transport
	case e.gidType != verbs.GIDInfiniBand && e.gidType != verbs.GIDRoCEv2:
		return "GID type", e.gidType
	case e.gid == verbs.GID{}:
		return "GID", e.gid
	case hostaddr.Unusable(e.gid.Addr()) != "":
		return "GID", invalidGID(e.gid)
	case e.udpPort == 0:
		return "UDP port", e.udpPort
	case e.gidType == verbs.GIDInfiniBand && e.source != 0:
		return "source UDP port", e.source
	case !e.mtu.Valid():
		return "MTU", int(e.mtu)
	case e.qpn < 2 || e.qpn >= verbs.MulticastQPN:
		return "queue pair number", e.qpn
	case e.psn > max24:
		return "packet sequence number", e.psn
	case e.nonce == 0:
		return "nonce", e.nonce
	case e.readyAddr == 0 || e.readyAddr%8 != 0:
		return "address of the ready signal", e.readyAddr
	}
	return "", nil
}

// invalidGID says why a GID is not the address of one peer.
func invalidGID(gid verbs.GID) string {
	return gid.Addr().String() + ", " + hostaddr.Unusable(gid.Addr())
}

// newNonce makes a nonce of random bits. Its lowest bit is 0 if the end answers disconnect notices.
// An end that knows of no answers sets the bit, so that nobody waits for one.
func newNonce(random uint64, answers bool) uint64 {
	if answers {
		return random&^1 | 2 // not zero
	}
	return random | 1
}

// answers reports whether the end answers disconnect notices.
func (e *endpoint) answers() bool { return e.nonce&1 == 0 }

// compare orders endpoints; both ends of a connection compute the same order.
func (e *endpoint) compare(o *endpoint) int {
	return cmp.Or(cmp.Compare(e.nonce, o.nonce), bytes.Compare(e.gid[:], o.gid[:]), cmp.Compare(e.qpn, o.qpn))
}

func (e *endpoint) addr() netip.AddrPort {
	if e.qpn == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(e.gid.Addr(), e.udpPort)
}

// sameNetwork refuses GIDs that do not speak the same protocol.
func sameNetwork(ownType, peerType verbs.GIDType, own, peer verbs.GID) error {
	switch {
	case ownType != peerType:
		return fmt.Errorf("%w: this end uses %v, the peer %v; choose other GID indexes", ErrMismatch, ownType, peerType)
	case ownType == verbs.GIDRoCEv2 && own.Addr().Is4() != peer.Addr().Is4():
		return fmt.Errorf("%w: this end has the address %v, the peer %v: one is IPv4 and one IPv6; choose other GID indexes",
			ErrMismatch, own.Addr(), peer.Addr())
	}
	return nil
}

func (e *endpoint) code(c *wirecode.Coder) {
	wirecode.Int(c, &e.transport, 1)
	wirecode.Int(c, &e.gidType, 1)
	c.Fixed(e.gid[:])
	c.Uint16(&e.udpPort)
	c.Uint16(&e.source)
	c.Uint16(&e.lid)
	wirecode.Int(c, &e.mtu, 2)
	wirecode.Int(c, &e.reads, 1)
	c.Uint32(&e.qpn)
	c.Uint32(&e.psn)
	c.Uint64(&e.nonce)
	c.Uint64(&e.readyAddr)
	c.Uint32(&e.readyKey)
}

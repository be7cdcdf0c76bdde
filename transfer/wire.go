package transfer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/mmap"
)

// The protocol, in network byte order. The dialling agent's private data is a request, the
// accepting one's an acceptance. Then the dialling agent sends queries, and waits for the reply
// to each before the next one.
const (
	magic       = 0x56544701 // "VTG", version 1
	maxDevices  = 8          // of an agent: their addresses fit into the private data
	maxName     = 255        // bytes of a segment's name
	maxMessage  = 4096       // bytes of a query or reply
	requestLen  = 24         // of the 56 bytes of private data; the rest is zero
	acceptFixed = 16
	addrLen     = 18
	maxPrivate  = 196
)

// request identifies one end of a connection: no two connections of the same end exist.
type request struct {
	epoch  uint64 // of the dialling agent
	peer   uint32 // its Peer
	device uint8  // of the dialling agent
}

func (r request) encode() []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, requestLen), magic)
	b = binary.BigEndian.AppendUint64(b, r.epoch)
	b = binary.BigEndian.AppendUint32(b, r.peer)
	return append(b, r.device, 0, 0, 0, 0, 0, 0, 0)
}

func decodeRequest(b []byte) (request, error) {
	if len(b) < requestLen || binary.BigEndian.Uint32(b) != magic {
		return request{}, fmt.Errorf("%w: a request to connect of another protocol, or of another version of it", ErrProtocol)
	}
	r := request{epoch: binary.BigEndian.Uint64(b[4:]), peer: binary.BigEndian.Uint32(b[12:]), device: b[16]}
	if r.epoch == 0 || r.device >= maxDevices || !zero(b[17:]) {
		return request{}, fmt.Errorf("%w: a request to connect with impossible values", ErrProtocol)
	}
	return r, nil
}

// acceptance says whom the dialling agent has reached.
type acceptance struct {
	epoch  uint64           // of the accepting agent
	device uint8            // which of its devices
	addrs  []netip.AddrPort // of all of its devices, in order
}

func (a acceptance) encode() []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, maxPrivate), magic)
	b = binary.BigEndian.AppendUint64(b, a.epoch)
	b = append(b, a.device, uint8(len(a.addrs)), 0, 0)
	for _, addr := range a.addrs {
		ip := addr.Addr().As16()
		b = binary.BigEndian.AppendUint16(append(b, ip[:]...), addr.Port())
	}
	return b
}

func decodeAcceptance(b []byte) (acceptance, error) {
	if len(b) < acceptFixed || binary.BigEndian.Uint32(b) != magic {
		return acceptance{}, fmt.Errorf("%w: who accepts is no agent, or has another version of the protocol", ErrProtocol)
	}
	a := acceptance{epoch: binary.BigEndian.Uint64(b[4:]), device: b[12]}
	n := int(b[13])
	if a.epoch == 0 || n == 0 || n > maxDevices || int(a.device) >= n || len(b) < acceptFixed+n*addrLen || !zero(b[14:16]) || !zero(b[acceptFixed+n*addrLen:]) {
		return acceptance{}, fmt.Errorf("%w: an acceptance with impossible values", ErrProtocol)
	}
	for i := range n {
		at := b[acceptFixed+i*addrLen:]
		addr := netip.AddrPortFrom(netip.AddrFrom16([16]byte(at)).Unmap(), binary.BigEndian.Uint16(at[16:]))
		if addr.Port() == 0 || addr.Addr().IsUnspecified() {
			return acceptance{}, fmt.Errorf("%w: an acceptance with the address %v", ErrProtocol, addr)
		}
		a.addrs = append(a.addrs, addr)
	}
	return a, nil
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// query asks for the segments whose names come after a name, or for the one of that name.
type query struct {
	only bool // the one of that name
	name string
}

func (q query) encode(b []byte) []byte {
	kind := byte(1)
	if q.only {
		kind = 2
	}
	return append(append(b, kind, byte(len(q.name))), q.name...)
}

func decodeQuery(b []byte) (query, error) {
	if len(b) < 2 || b[0] < 1 || b[0] > 2 || len(b) != 2+int(b[1]) {
		return query{}, fmt.Errorf("%w: a query of %d bytes that cannot be read", ErrProtocol, len(b))
	}
	return query{only: b[0] == 2, name: string(b[2:])}, nil
}

// key is how a segment is reached through one device of its agent.
type key struct {
	addr uint64
	rkey uint32
}

// description is a segment as its agent describes it.
type description struct {
	name string
	size uint64
	perm mmap.Permission
	keys []key // by device; rkey and addr are zero where the segment is not reached
}

// reply has descriptions in the order of their names.
type reply struct {
	more     bool // further ones come after the last
	segments []description
}

const remotePermissions = mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic

// appendDescription appends the description if it fits into the rest of a reply.
func appendDescription(b []byte, d *description) ([]byte, bool) {
	if len(b)+11+len(d.name)+12*len(d.keys) > maxMessage {
		return b, false
	}
	b = append(append(b, byte(len(d.name))), d.name...)
	b = binary.BigEndian.AppendUint64(b, d.size)
	b = append(b, byte(d.perm&remotePermissions), byte(len(d.keys)))
	for _, k := range d.keys {
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, k.addr), k.rkey)
	}
	return b, true
}

// replyTo answers a query from the segments, which are in the order of their names.
func replyTo(q query, segments []*description, b []byte) []byte {
	b = append(b, 3, 0, 0)
	n := byte(0)
	at, found := slices.BinarySearchFunc(segments, q.name, func(d *description, name string) int { return strings.Compare(d.name, name) })
	switch {
	case q.only && found:
		segments = segments[at : at+1]
	case q.only:
		segments = nil
	case found:
		segments = segments[at+1:]
	default:
		segments = segments[at:]
	}
	for _, d := range segments {
		longer, fits := appendDescription(b, d)
		if !fits || n == 255 {
			b[1] = 1
			break
		}
		b, n = longer, n+1
	}
	b[2] = n
	return b
}

func decodeReply(b []byte, devices int) (reply, error) {
	bad := func(what string) (reply, error) {
		return reply{}, fmt.Errorf("%w: a reply to a query %s", ErrProtocol, what)
	}
	if len(b) < 3 || b[0] != 3 || b[1] > 1 {
		return bad("that is no reply")
	}
	r, n := reply{more: b[1] == 1}, int(b[2])
	if r.more && n == 0 {
		return bad("that promises more and gives nothing")
	}
	b = b[3:]
	last := ""
	for range n {
		if len(b) < 1 || len(b) < 11+int(b[0]) {
			return bad("that ends too early")
		}
		d := description{name: string(b[1 : 1+int(b[0])])}
		b = b[1+len(d.name):]
		d.size, d.perm = binary.BigEndian.Uint64(b), mmap.Permission(b[8])
		keys := int(b[9])
		b = b[10:]
		if d.name <= last || d.size == 0 || d.size > math.MaxInt || !remotePermissions.Has(d.perm) || keys != devices {
			return bad("with impossible values, or names out of order")
		}
		last = d.name
		if len(b) < 12*keys {
			return bad("that ends too early")
		}
		for range keys {
			k := key{addr: binary.BigEndian.Uint64(b), rkey: binary.BigEndian.Uint32(b[8:])}
			if k.addr+d.size < k.addr {
				return bad("with memory beyond the end of the address space")
			}
			d.keys = append(d.keys, k)
			b = b[12:]
		}
		r.segments = append(r.segments, d)
	}
	if len(b) != 0 {
		return bad("with bytes behind its end")
	}
	return r, nil
}

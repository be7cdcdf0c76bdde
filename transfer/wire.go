package transfer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"net/netip"

	"github.com/verbena-rdma/verbena/mmap"
)

// The protocol, in network byte order. The dialling agent's private data is a request, and that of the agent
// that accepts an acceptance, which says where its directory is: memory with a checksum, the number of records,
// and the records, in the order of their names. The dialling agent reads it.
const (
	magic             = 0x56544701 // "VTG", version 1
	maxDevices        = 8          // of an agent
	maxSegments       = 1000       // that an agent publishes
	headLen           = 8          // of the directory
	recordLen         = 176
	directoryLen      = headLen + maxSegments*recordLen
	remotePermissions = mmap.RemoteRead | mmap.RemoteWrite | mmap.RemoteAtomic
)

// request says who dials.
type request struct {
	Magic uint32
	Path  pathID
	Zero  [1]byte
	Port  uint16 // at which the agent listens with the device that dials; zero: at none
	Dials uint32 // that this is the next of, by this end; one that comes late is refused
	Epoch uint64 // of the agent
}

// pathID names a path of the agent that dials. It has one connection at a time.
type pathID struct {
	ID     [16]byte // of the Peer: random, and sent only to whom it dials, so that nobody else can take its place
	Device uint8    // of the dialling agent
}

// acceptance says whom a connection has reached.
type acceptance struct {
	rcAcceptance
	QPNs [maxDevices]uint32 // of the endpoints of its devices; without SRD zero
}

// rcAcceptance is what is sent of it without SRD.
type rcAcceptance struct {
	Magic     uint32
	Epoch     uint64 // of the agent
	Device    uint8  // of the agent
	Devices   uint8  // that it has
	Known     uint8  // 1: it has counted the notes of this end since the first connection
	Zero      [1]byte
	Directory key
	Notes     uint64              // that have come from this end so far
	Addrs     [maxDevices]address // of its devices
}

// addr is where a device is dialled.
func (a *acceptance) addr(device int) Addr { return Addr{a.Addrs[device].addrPort(), a.QPNs[device]} }

type address struct {
	IP   [16]byte
	Port uint16
}

func (a address) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.IP).Unmap(), a.Port)
}

// key is how memory is reached through a device of its agent.
type key struct {
	Addr uint64
	Key  uint32
}

// record describes a segment.
type record struct {
	Name    [64]byte
	Size    uint64
	Perm    uint8
	Devices uint8
	Zero    [6]byte
	Keys    [maxDevices]key
}

func (r *record) name() string { return string(bytes.TrimRight(r.Name[:], "\x00")) }

func encode(v any) []byte {
	b, _ := binary.Append(nil, binary.BigEndian, v) // cannot fail for values of fixed size
	return b
}

// decode decodes and checks what a peer sends, which can be padded with zeroes.
func decode(b []byte, v interface{ check() error }) error {
	n, err := binary.Decode(b, binary.BigEndian, v)
	if err != nil || len(bytes.TrimLeft(b[n:], "\x00")) > 0 {
		return fmt.Errorf("%w: a message of %d bytes", ErrProtocol, len(b))
	}
	return v.check()
}

func (r *request) check() error {
	if r.Magic != magic || r.Path.ID == [16]byte{} || r.Path.Device >= maxDevices || r.Epoch == 0 || r.Zero != [1]byte{} {
		return fmt.Errorf("%w: a request to connect by another protocol, or another version of it", ErrProtocol)
	}
	return nil
}

func (a *rcAcceptance) check() error {
	if a.Magic != magic || a.Epoch == 0 || a.Devices == 0 || a.Devices > maxDevices || a.Device >= a.Devices || a.Known > 1 || a.Zero != [1]byte{} || a.Directory.Addr > math.MaxUint64-directoryLen {
		return fmt.Errorf("%w: what accepts is no agent, or has another version of the protocol", ErrProtocol)
	}
	for i, addr := range a.Addrs {
		if i < int(a.Devices) && (addr.Port == 0 || addr.addrPort().Addr().IsUnspecified()) || i >= int(a.Devices) && addr != (address{}) {
			return fmt.Errorf("%w: an agent with the address %v", ErrProtocol, addr.addrPort())
		}
	}
	return nil
}

// check checks an acceptance of SRD.
func (a *acceptance) check() error {
	for i, qpn := range a.QPNs {
		if (qpn != 0) != (i < int(a.Devices)) {
			return fmt.Errorf("%w: an agent with the queue pair number %#x", ErrProtocol, qpn)
		}
	}
	return a.rcAcceptance.check()
}

// writeDirectory replaces the content of a directory.
func writeDirectory(b []byte, records []*record) {
	end := b[headLen:headLen]
	for _, r := range records {
		end, _ = binary.Append(end, binary.BigEndian, r)
	}
	binary.BigEndian.PutUint32(b[4:], uint32(len(records)))
	binary.BigEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:headLen+len(end)]))
}

// readDirectory decodes what was read of a directory. If that is less than there is, need says how much to read. A
// directory that changed meanwhile is an error; read it again.
func readDirectory(b []byte, devices int) (records []record, need int, err error) {
	n := binary.BigEndian.Uint32(b[4:])
	if n > maxSegments {
		return nil, 0, fmt.Errorf("%w: a directory of %d segments", ErrProtocol, n)
	}
	if need = headLen + int(n)*recordLen; need > len(b) {
		return nil, need, nil
	}
	if binary.BigEndian.Uint32(b) != crc32.ChecksumIEEE(b[4:need]) {
		return nil, 0, errTorn
	}
	records = make([]record, n)
	_, err = binary.Decode(b[headLen:need], binary.BigEndian, records)
	last := ""
	for i := range records {
		r := &records[i]
		name := r.name()
		if err != nil || name <= last || r.Size == 0 || r.Size > math.MaxInt || !remotePermissions.Has(mmap.Permission(r.Perm)) || int(r.Devices) != devices || r.Zero != [6]byte{} {
			return nil, 0, fmt.Errorf("%w: a directory with a wrong segment %q", ErrProtocol, name)
		}
		for j, k := range r.Keys {
			if k.Addr+r.Size < k.Addr || j >= devices && k != (key{}) {
				return nil, 0, fmt.Errorf("%w: a directory with a wrong key of segment %q", ErrProtocol, name)
			}
		}
		last = name
	}
	return records, need, nil
}

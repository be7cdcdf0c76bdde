package attack

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
)

// page is memory that the processes of a test share. It has what the ends of connections sent
// last, so an attacker that reads it knows more than a host on the path.
type page struct{ words []uint32 }

const pageBytes = 4096

func openPage(f *os.File) (page, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return page{}, err
	}
	return page{unsafe.Slice((*uint32)(unsafe.Pointer(&b[0])), pageBytes/4)}, nil
}

// slot is the part of the page for one end of a connection.
type slot struct{ words []uint32 }

// The fields of a slot.
const (
	slotQPN    = iota // destination of its packets
	slotPort          // source port of its packets
	slotNext          // the sequence number of its next request
	slotSource        // its SRD token
	slotTarget        // its peer's SRD token
	slotWords
)

func (p page) slot(i int) slot { return slot{p.words[i*slotWords:][:slotWords]} }

func (s slot) get(field int) uint32    { return atomic.LoadUint32(&s.words[field]) }
func (s slot) set(field int, v uint32) { atomic.StoreUint32(&s.words[field], v) }

// tracker is the capture of a device. It writes what the device sends to a slot.
type tracker struct {
	slot
	own atomic.Pointer[netip.Addr]
	mtu atomic.Uint32
}

// The headers of a packet in a pcap file, the second of which says whether it was sent.
const (
	recordHeader = 16 + 16
	packetTypeAt = 16 + 1
	typeSent     = 4
)

// Write implements io.Writer. The device writes a file header first, then one packet at a time.
func (t *tracker) Write(b []byte) (int, error) {
	if own := t.own.Load(); own != nil && len(b) > recordHeader+40 && b[packetTypeAt] == typeSent {
		t.packet(*own, b[recordHeader:])
	}
	return len(b), nil
}

func (t *tracker) packet(own netip.Addr, b []byte) {
	source, udp := netip.Addr{}, 20
	if b[0]>>4 == 4 {
		source = netip.AddrFrom4([4]byte(b[12:]))
	} else {
		source, udp = netip.AddrFrom16([16]byte(b[8:])), 40
	}
	var p wire.Packet
	if source != own || p.Parse(b[udp+8:]) != nil || p.DestQP <= 1 {
		return
	}
	n := uint32(1)
	switch {
	case p.Opcode.Service() == wire.ServiceSRD:
		t.set(slotSource, p.SRDETH.Source)
		t.set(slotTarget, p.SRDETH.Target)
		if p.Opcode == wire.SRDReadRequest {
			n = uint32(p.Segments.Count)
		}
	case p.Opcode == wire.RCReadRequest:
		n = uint32(packetsOf(p.RETH.Length, t.mtu.Load()))
	case p.Opcode >= wire.RCReadResponseFirst && p.Opcode <= wire.RCAtomicAcknowledge, p.Opcode == wire.CNP:
		return // no request
	}
	t.set(slotQPN, p.DestQP)
	t.set(slotPort, uint32(binary.BigEndian.Uint16(b[udp:])))
	if next := wire.PSNAdd(p.PSN, int(n)); t.get(slotNext) == 0 || wire.PSNDiff(next, t.get(slotNext)) > 0 {
		t.set(slotNext, next)
	}
}

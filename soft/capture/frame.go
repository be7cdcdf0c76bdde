package capture

import (
	"encoding/binary"
	"net/netip"
)

// datagram is the UDP datagram in a frame.
type datagram struct {
	src, dst netip.AddrPort
	tos      uint8  // or traffic class
	ident    uint16 // of IPv4
	payload  []byte // as far as it was recorded
	length   int    // of the whole payload
	unusual  bool   // the IP header is not as the ICRC expects it: options, extensions, no "don't fragment"
}

// Link types (tcpdump.org/linktypes.html).
const (
	linkNull     = 0
	linkEthernet = 1
	linkRaw12    = 12
	linkRaw14    = 14
	linkRaw      = 101
	linkLoop     = 108
	linkCooked   = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkCooked2  = 276
)

// content is what a frame has.
type content uint8

const (
	other content = iota // nothing of interest
	udp
	fragment   // of a UDP datagram
	noLinkType // one that this package does not know
)

// datagramIn finds the UDP datagram in a frame. If the frame's header says whether it was sent or
// received, f.from is set.
func datagramIn(f *frame, d *datagram) content {
	b, etherTypeAt := f.data, 0
	switch f.linkType {
	case linkNull, linkLoop: // the number of the address family; it depends on the system
		b = b[min(4, len(b)):]
	case linkRaw, linkRaw12, linkRaw14, linkIPv4, linkIPv6:
	case linkEthernet:
		etherTypeAt = 12
	case linkCooked:
		etherTypeAt = 14
		if len(b) >= 2 {
			f.from = cookedDirection(b[1])
		}
	case linkCooked2:
		if len(b) < 20 {
			return other
		}
		f.from = cookedDirection(b[10])
		// The protocol comes first here. A VLAN tag may follow the header.
		protocol := [2]byte(b)
		copy(b[18:], protocol[:])
		etherTypeAt = 18
	default:
		return noLinkType
	}
	if etherTypeAt > 0 {
		for {
			if len(b) < etherTypeAt+2 {
				return other
			}
			etherType := binary.BigEndian.Uint16(b[etherTypeAt:])
			b = b[etherTypeAt+2:]
			if etherType == 0x0800 || etherType == 0x86dd {
				break
			}
			if etherType != 0x8100 && etherType != 0x88a8 && etherType != 0x9100 {
				return other
			}
			etherTypeAt = 2 // behind the tag
		}
	}
	return d.parse(b)
}

func cookedDirection(packetType byte) direction {
	switch packetType {
	case 0, 1, 2: // to this host, by broadcast or multicast too
		return inbound
	case 4:
		return outbound
	}
	return unknown
}

const protocolUDP = 17

// parse reads the headers of IP and UDP.
func (d *datagram) parse(b []byte) content {
	*d = datagram{}
	if len(b) < 20 {
		return other
	}
	var src, dst netip.Addr
	switch b[0] >> 4 {
	case 4:
		header := int(b[0]&15) * 4
		if header < 20 || len(b) < header || b[9] != protocolUDP {
			return other
		}
		if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return fragment
		}
		d.tos, d.ident = b[1], binary.BigEndian.Uint16(b[4:])
		d.unusual = header != 20 || b[6] != 0x40
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		b = b[header:]
	case 6:
		if len(b) < 40 {
			return other
		}
		d.tos = uint8(binary.BigEndian.Uint16(b) >> 4)
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		protocol := b[6]
		for b = b[40:]; protocol != protocolUDP; {
			const hopByHop, routing, fragmentHeader, destination = 0, 43, 44, 60
			switch protocol {
			case hopByHop, routing, destination:
			case fragmentHeader:
				return fragment
			default:
				return other
			}
			if len(b) < 8 || len(b) < int(b[1])*8+8 {
				return other
			}
			protocol, b = b[0], b[int(b[1])*8+8:]
			d.unusual = true
		}
	default:
		return other
	}
	if len(b) < 8 {
		return other
	}
	d.src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	d.dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	if d.length = int(binary.BigEndian.Uint16(b[4:])) - 8; d.length < 0 {
		return other
	}
	d.payload = b[8:min(8+d.length, len(b))]
	return udp
}

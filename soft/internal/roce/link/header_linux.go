package link

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options of <linux/in6.h> that x/sys does not name.
const (
	ipv6FlowInfo     = 11
	ipv6FlowInfoSend = 33
)

// intControl is a control message of one int.
type intControl struct {
	hdr   unix.Cmsghdr
	value int32
	_     [unix.SizeofPtr - 4]byte
}

func (c *intControl) set(level, kind, value int) {
	c.hdr.Level, c.hdr.Type = int32(level), int32(kind)
	c.hdr.SetLen(unix.CmsgLen(4))
	c.value = int32(value)
}

// segmentControl requests segmentation.
type segmentControl struct {
	hdr  unix.Cmsghdr
	size uint16
	_    [unix.SizeofPtr - 2]byte
}

const maxSourceSize = 40 // size of a control message with an in6_pktinfo

// sendControl has room for the control messages of a train: segmentation, the source, and
// fields of the IP header. The source is in all of a socket's trains, or in none.
type sendControl struct {
	segment segmentControl
	rest    [(maxSourceSize + 2*unsafe.Sizeof(intControl{})) / unsafe.Sizeof(uintptr(0))]uintptr
}

// init writes what is the same in all trains. It returns the size of the source message.
func (c *sendControl) init(k *kernel) (source int) {
	c.segment.hdr.Level = unix.SOL_UDP
	c.segment.hdr.Type = unix.UDP_SEGMENT
	c.segment.hdr.SetLen(unix.CmsgLen(2))
	if k.sendSock == k.sock && !k.cfg.Exclusive {
		return 0
	}
	addr := k.cfg.Addr.Addr()
	hdr := (*unix.Cmsghdr)(unsafe.Pointer(&c.rest))
	data := unsafe.Add(unsafe.Pointer(&c.rest), unix.CmsgLen(0))
	if k.v4 {
		hdr.Level, hdr.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
		hdr.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
		(*unix.Inet4Pktinfo)(data).Spec_dst = addr.As4()
		return unix.CmsgSpace(unix.SizeofInet4Pktinfo)
	}
	hdr.Level, hdr.Type = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
	hdr.SetLen(unix.CmsgLen(unix.SizeofInet6Pktinfo))
	info := (*unix.Inet6Pktinfo)(data)
	info.Addr = addr.As16()
	if addr.IsLinkLocalUnicast() {
		info.Ifindex = k.index
	}
	return unix.CmsgSpace(unix.SizeofInet6Pktinfo)
}

// fill writes the control messages that a message needs, and returns them.
func (c *sendControl) fill(m *message, source int) (first unsafe.Pointer, size int) {
	size = source
	if m.header.TrafficClass != 0 || m.header.HopLimit != 0 {
		size += c.fillFields(m, unsafe.Add(unsafe.Pointer(&c.rest), source))
	}
	if m.packets > 1 {
		c.segment.size = uint16(m.size)
		return unsafe.Pointer(c), int(unsafe.Sizeof(c.segment)) + size
	}
	if size == 0 {
		return nil, 0
	}
	return unsafe.Pointer(&c.rest), size
}

func (c *sendControl) fillFields(m *message, at unsafe.Pointer) (size int) {
	level, class, hops := unix.IPPROTO_IP, unix.IP_TOS, unix.IP_TTL
	if m.dst.Addr().Is6() {
		level, class, hops = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT
	}
	fields := (*[2]intControl)(at)
	n := 0
	if v := m.header.TrafficClass; v != 0 {
		fields[n].set(level, class, int(v))
		n++
	}
	if v := m.header.HopLimit; v != 0 {
		fields[n].set(level, hops, int(v))
		n++
	}
	return n * int(unsafe.Sizeof(fields[0]))
}

// setHeaderDefaults makes packets leave with the defaults of the zero Header, whatever the
// system's defaults are, and makes the flow label part of the destination address.
func setHeaderDefaults(s int, v4 bool) error {
	type option struct {
		name              string
		level, opt, value int
	}
	options := []option{
		{"IP_TTL", unix.IPPROTO_IP, unix.IP_TTL, defaultHopLimit},
		{"IP_MULTICAST_TTL", unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 1},
	}
	if !v4 {
		options = []option{
			{"IPV6_UNICAST_HOPS", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, defaultHopLimit},
			{"IPV6_MULTICAST_HOPS", unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 1},
			{"IPV6_AUTOFLOWLABEL", unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL, 0},
			{"IPV6_FLOWINFO_SEND", unix.IPPROTO_IPV6, ipv6FlowInfoSend, 1},
		}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(s, o.level, o.opt, o.value); err != nil {
			return fmt.Errorf("set %s: %w", o.name, err)
		}
	}
	return nil
}

// receiveHeaders turns control messages with the IP header's fields on or off.
func receiveHeaders(s int, v4, on bool) error {
	value := 0
	if on {
		value = 1
	}
	level, options := unix.IPPROTO_IP, [2]int{unix.IP_RECVTOS, unix.IP_RECVTTL}
	if !v4 {
		// The flow information has the traffic class and the flow label.
		level, options = unix.IPPROTO_IPV6, [2]int{ipv6FlowInfo, unix.IPV6_RECVHOPLIMIT}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(s, level, o, value); err != nil {
			return fmt.Errorf("link: enable the reception of IP headers: %w", err)
		}
	}
	return nil
}

// receiveControl has room for the control messages of a received train.
type receiveControl [16]uint64

// parse returns the size of the packets in the train, zero if the kernel does not report it,
// and the fields of the IP header that it reports.
func (c *receiveControl) parse(length uint64) (size int, h Header) {
	all := unsafe.Slice((*byte)(unsafe.Pointer(c)), unsafe.Sizeof(*c))
	rest := all[:min(length, uint64(len(all)))]
	for len(rest) >= unix.SizeofCmsghdr {
		m := (*unix.Cmsghdr)(unsafe.Pointer(&rest[0]))
		if uint64(m.Len) <= unix.SizeofCmsghdr || uint64(m.Len) > uint64(len(rest)) {
			break
		}
		data := rest[unix.SizeofCmsghdr:m.Len]
		value := int32(data[0]) // IP_TOS comes as a byte
		if len(data) >= 4 {
			value = *(*int32)(unsafe.Pointer(&data[0]))
		}
		switch [2]int32{m.Level, m.Type} {
		case [2]int32{unix.SOL_UDP, unix.UDP_GRO}:
			size = int(value)
		case [2]int32{unix.SOL_IP, unix.IP_TOS}:
			h.TrafficClass = uint8(value)
		case [2]int32{unix.SOL_IP, unix.IP_TTL}, [2]int32{unix.SOL_IPV6, unix.IPV6_HOPLIMIT}:
			h.HopLimit = uint8(value)
		case [2]int32{unix.SOL_IPV6, ipv6FlowInfo}:
			info := swap(uint32(value))
			h.TrafficClass, h.FlowLabel = uint8(info>>20), info&maxFlowLabel
		}
		rest = rest[min(unix.CmsgSpace(len(data)), len(rest)):]
	}
	return size, h
}

// flowInfo returns the sin6_flowinfo of packets.
func (h Header) flowInfo() uint32 { return swap(h.FlowLabel & maxFlowLabel) }

// swap converts a number to network byte order, or back.
func swap(v uint32) uint32 {
	b := [4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
	return *(*uint32)(unsafe.Pointer(&b))
}

package ipheader

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// Capture writes packets in the pcap format, as they are on the wire. The headers of IP and
// UDP, which the kernel adds and removes, are reconstructed. The link type is Linux cooked,
// because its header says whether a packet was sent or received: a device whose queue pairs
// send to each other records each of their packets twice.
type Capture struct {
	w      io.Writer
	base   time.Time
	buf    []byte
	failed error
}

const (
	pcapMagicNanoseconds = 0xa1b23c4d
	pcapLinuxCooked      = 113
	pcapSnapLen          = 1 << 18

	cookedSent      = 4 // packet types of the cooked header; 0: received
	cookedNoAddress = 0xfffe
	etherTypeIPv4   = 0x0800
	etherTypeIPv6   = 0x86dd
	cookedLen       = 16
)

// NewCapture starts a capture for a device whose time zero is base.
func NewCapture(w io.Writer, base time.Time) (*Capture, error) {
	c := &Capture{w: w, base: base}
	h := binary.LittleEndian.AppendUint32(nil, pcapMagicNanoseconds)
	h = binary.LittleEndian.AppendUint16(h, 2) // version 2.4
	h = binary.LittleEndian.AppendUint16(h, 4)
	h = append(h, make([]byte, 8)...) // time zone, accuracy
	h = binary.LittleEndian.AppendUint32(h, pcapSnapLen)
	h = binary.LittleEndian.AppendUint32(h, pcapLinuxCooked)
	_, err := w.Write(h)
	return c, err
}

// Sent writes a packet that was sent. After a failed write it does nothing.
func (c *Capture) Sent(src, dst netip.AddrPort, h link.Header, ident uint16, now time.Duration, payload []byte) {
	c.packet(cookedSent, src, dst, h, ident, now, payload)
}

// Received writes a packet that was received at an address and port. After a failed write it does
// nothing.
func (c *Capture) Received(dg *link.Datagram, at netip.AddrPort, now time.Duration) {
	if dg.Group.IsValid() {
		at = netip.AddrPortFrom(dg.Group, at.Port())
	}
	c.packet(0, dg.Src, at, dg.Header, uint16(dg.Segment), now, dg.Data)
}

func (c *Capture) packet(packetType byte, src, dst netip.AddrPort, h link.Header, ident uint16, now time.Duration, payload []byte) {
	if c.failed != nil {
		return
	}
	n := UDPLen + len(payload)
	header, protocol := cookedLen+IPv6Len, uint16(etherTypeIPv6)
	if src.Addr().Is4() {
		header, protocol = cookedLen+IPv4Len, etherTypeIPv4
	}
	at := c.base.Add(now)
	b := binary.LittleEndian.AppendUint32(c.buf[:0], uint32(at.Unix()))
	b = binary.LittleEndian.AppendUint32(b, uint32(at.Nanosecond()))
	b = binary.LittleEndian.AppendUint32(b, uint32(header+n))
	b = binary.LittleEndian.AppendUint32(b, uint32(header+n))
	b = append(b, 0, packetType)
	b = binary.BigEndian.AppendUint16(b, cookedNoAddress)
	b = append(b, make([]byte, cookedLen-6)...)
	b = binary.BigEndian.AppendUint16(b, protocol)
	b = appendIPHeader(b, src.Addr(), dst.Addr(), h, ident, n)
	udp := len(b)
	addresses := udp - 2*src.Addr().BitLen()/8
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, 0, 0)
	b = append(b, payload...)
	checksum := ^Fold(Sum(b[udp:], Sum(b[addresses:udp], uint32(n)+protocolUDP)))
	if checksum == 0 {
		checksum = 0xffff
	}
	binary.BigEndian.PutUint16(b[udp+6:], checksum)
	c.buf = b
	if _, err := c.w.Write(b); err != nil {
		c.failed = err
	}
}

// Err returns the error that ended the capture, or nil. c may be nil.
func (c *Capture) Err() error {
	if c == nil || c.failed == nil {
		return nil
	}
	return fmt.Errorf("packet capture is incomplete: %w", c.failed)
}

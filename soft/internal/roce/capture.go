package roce

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// capture writes packets in the pcap format, link type raw IP, as they are on
// the wire. The headers of IP and UDP, which the kernel adds and removes, are
// reconstructed.
type capture struct {
	w      io.Writer
	base   time.Time
	buf    []byte
	failed error
}

const (
	pcapMagicNanoseconds = 0xa1b23c4d
	pcapRawIP            = 101
	pcapSnapLen          = 65535
)

func newCapture(w io.Writer, base time.Time) *capture {
	c := &capture{w: w, base: base}
	h := binary.LittleEndian.AppendUint32(nil, pcapMagicNanoseconds)
	h = binary.LittleEndian.AppendUint16(h, 2) // version 2.4
	h = binary.LittleEndian.AppendUint16(h, 4)
	h = append(h, make([]byte, 8)...) // time zone, accuracy
	h = binary.LittleEndian.AppendUint32(h, pcapSnapLen)
	h = binary.LittleEndian.AppendUint32(h, pcapRawIP)
	_, c.failed = w.Write(h)
	return c
}

// packet writes one packet. After a failed write the capture takes no more.
func (c *capture) packet(src, dst netip.AddrPort, h link.Header, ident uint16, now time.Duration, payload []byte) {
	if c.failed != nil {
		return
	}
	n := udpHeader + len(payload)
	header := ipv6Header
	if src.Addr().Is4() {
		header = ipv4Header
	}
	at := c.base.Add(now)
	b := binary.LittleEndian.AppendUint32(c.buf[:0], uint32(at.Unix()))
	b = binary.LittleEndian.AppendUint32(b, uint32(at.Nanosecond()))
	b = binary.LittleEndian.AppendUint32(b, uint32(header+n))
	b = binary.LittleEndian.AppendUint32(b, uint32(header+n))
	b = appendIPHeader(b, src.Addr(), dst.Addr(), h, ident, n)
	udp := len(b)
	addresses := udp - 2*src.Addr().BitLen()/8
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, 0, 0)
	b = append(b, payload...)
	checksum := ^fold(sum(b[udp:], sum(b[addresses:udp], uint32(n)+protocolUDP)))
	if checksum == 0 {
		checksum = 0xffff
	}
	binary.BigEndian.PutUint16(b[udp+6:], checksum)
	c.buf = b
	if _, err := c.w.Write(b); err != nil {
		c.failed = err
	}
}

func (c *capture) err() error {
	if c == nil || c.failed == nil {
		return nil
	}
	return fmt.Errorf("packet capture is incomplete: %w", c.failed)
}

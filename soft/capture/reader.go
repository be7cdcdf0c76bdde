package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// Limits of a file. They bound the memory that a hostile file can take.
const (
	maxFrame      = 1 << 18 // bytes: tcpdump's largest snapshot length
	maxInterfaces = 1 << 12 // of a section of a pcapng file
)

// direction says where a frame was recorded, if the file tells.
type direction uint8

const (
	unknown direction = iota
	inbound           // by the receiver, or on its way in
	outbound
)

// frame is one recorded frame. data is valid until the next one is read.
type frame struct {
	at       int64 // nanoseconds since 1970
	linkType uint32
	data     []byte
	from     direction
}

// reader reads the frames of a pcap or pcapng file.
type reader struct {
	r          *bufio.Reader
	order      binary.ByteOrder
	offset     int64
	buf        []byte
	nanosecond bool // of a pcap file
	linkType   uint32
	pcapng     bool
	interfaces []interfaceBlock // of the section of a pcapng file
	skipped    int64            // packets in blocks that are not read
}

type interfaceBlock struct {
	linkType uint32
	unit     uint64 // time stamps per second
}

// Block types of pcapng.
const (
	sectionHeader   = 0x0a0d0d0a
	interfaceHeader = 1
	obsoletePacket  = 2
	simplePacket    = 3 // without a time
	enhancedPacket  = 6
)

var errFormat = errors.New("not a capture that can be read")

func newReader(r io.Reader) (*reader, error) {
	c := &reader{r: bufio.NewReaderSize(r, 1<<16), order: binary.LittleEndian}
	magic, err := c.r.Peek(4)
	switch err {
	case nil:
	case io.EOF, io.ErrUnexpectedEOF:
		return nil, fmt.Errorf("%w: it has fewer than 4 bytes", errFormat)
	default:
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	little, big := binary.LittleEndian.Uint32(magic), binary.BigEndian.Uint32(magic)
	const microseconds, nanoseconds = 0xa1b2c3d4, 0xa1b23c4d
	switch {
	case little == sectionHeader:
		c.pcapng = true
		return c, nil
	case little == microseconds, little == nanoseconds:
	case big == microseconds, big == nanoseconds:
		c.order = binary.BigEndian
	default:
		return nil, fmt.Errorf("%w: it begins with % x, which is neither pcap nor pcapng", errFormat, magic)
	}
	b, err := c.read(24)
	if err != nil {
		return nil, err
	}
	c.nanosecond = c.order.Uint32(b) == nanoseconds
	c.linkType = c.order.Uint32(b[20:]) & 0xffff // the rest describes the check sequence of Ethernet
	return c, nil
}

// read returns the next n bytes, valid until the next call. Only at the end of the file is the error
// io.EOF.
func (c *reader) read(n int) ([]byte, error) {
	b, err := c.rest(n)
	if errors.Is(err, io.EOF) {
		err = io.EOF
	}
	return b, err
}

// rest is read where the file must not end.
func (c *reader) rest(n int) ([]byte, error) {
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	b := c.buf[:n]
	got, err := io.ReadFull(c.r, b)
	switch c.offset += int64(got); err {
	case nil:
		return b, nil
	case io.EOF, io.ErrUnexpectedEOF:
		return nil, fmt.Errorf("the capture is truncated: it ends at byte %d, within a header or a packet: %w", c.offset, err)
	}
	return nil, fmt.Errorf("read the capture at byte %d: %w", c.offset, err)
}

// next reads a frame. It returns io.EOF at the end of the file.
func (c *reader) next(f *frame) error {
	if c.pcapng {
		return c.nextBlock(f)
	}
	b, err := c.read(16)
	if err != nil {
		return err
	}
	second, fraction := c.order.Uint32(b), int64(c.order.Uint32(b[4:]))
	if !c.nanosecond {
		fraction *= 1000
	}
	n := c.order.Uint32(b[8:])
	*f = frame{at: int64(second)*1e9 + fraction, linkType: c.linkType}
	if n > maxFrame {
		return fmt.Errorf("the capture is damaged: the packet before byte %d has %d bytes, more than %d", c.offset, n, maxFrame)
	}
	f.data, err = c.rest(int(n))
	return err
}

// nextBlock reads blocks of a pcapng file until one has a frame.
func (c *reader) nextBlock(f *frame) error {
	for {
		b, err := c.read(8)
		if err != nil {
			return err
		}
		kind := c.order.Uint32(b)
		rawLength := [4]byte(b[4:])
		if kind == sectionHeader { // its third word tells the byte order
			if b, err = c.rest(4); err != nil {
				return err
			}
			const byteOrderMagic = 0x1a2b3c4d
			switch {
			case binary.LittleEndian.Uint32(b) == byteOrderMagic:
				c.order = binary.LittleEndian
			case binary.BigEndian.Uint32(b) == byteOrderMagic:
				c.order = binary.BigEndian
			default:
				return c.damaged("a section has no byte order")
			}
			c.interfaces = nil
		}
		left := int64(c.order.Uint32(rawLength[:])) - 12 // without the length that ends the block
		if kind == sectionHeader {
			left -= 4
		}
		if left < 0 || left%4 != 0 {
			return c.damaged("the length of a block is wrong")
		}
		switch kind {
		case interfaceHeader, enhancedPacket:
		default:
			n, err := io.CopyN(io.Discard, c.r, left+4)
			if c.offset += n; err != nil {
				_, err = c.rest(1) // says where
				return err
			}
			if kind == simplePacket || kind == obsoletePacket {
				c.skipped++
			}
			continue
		}
		if left > 2*maxFrame {
			return c.damaged("a block is too long")
		}
		if b, err = c.rest(int(left) + 4); err != nil {
			return err
		}
		if [4]byte(b[left:]) != rawLength {
			return c.damaged("the two lengths of a block differ")
		}
		if kind == interfaceHeader {
			err = c.interfaceBlock(b[:left])
		} else if err = c.packetBlock(b[:left], f); err == nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *reader) damaged(what string) error {
	return fmt.Errorf("the capture is damaged: before byte %d, %s", c.offset, what)
}

func (c *reader) interfaceBlock(b []byte) error {
	if len(b) < 8 || len(c.interfaces) == maxInterfaces {
		return c.damaged("the description of an interface is too short, or one too many")
	}
	i := interfaceBlock{linkType: uint32(c.order.Uint16(b)), unit: 1e6}
	const resolution = 9
	if v := c.option(b[8:], resolution); len(v) > 0 {
		if exponent := v[0] & 0x7f; v[0]&0x80 != 0 {
			i.unit = 1 << min(exponent, 63)
		} else {
			for i.unit = 1; exponent > 0 && i.unit < 1e18; exponent-- {
				i.unit *= 10
			}
		}
	}
	c.interfaces = append(c.interfaces, i)
	return nil
}

// option returns the value of an option of a block, or nil.
func (c *reader) option(b []byte, code uint16) []byte {
	for len(b) >= 4 {
		found, n := c.order.Uint16(b), int(c.order.Uint16(b[2:]))
		if b = b[4:]; n > len(b) {
			return nil
		}
		if found == code {
			return b[:n]
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

func (c *reader) packetBlock(b []byte, f *frame) error {
	const header, flags = 20, 2
	if len(b) < header {
		return c.damaged("the block of a packet is too short")
	}
	index, n := c.order.Uint32(b), int64(c.order.Uint32(b[12:]))
	if int64(index) >= int64(len(c.interfaces)) {
		return c.damaged("a packet names an interface that was not described")
	}
	if n > int64(len(b)-header) {
		return c.damaged("a packet is longer than its block")
	}
	i := &c.interfaces[index]
	stamp := uint64(c.order.Uint32(b[4:]))<<32 | uint64(c.order.Uint32(b[8:]))
	high, low := bits.Mul64(stamp%i.unit, 1e9)
	fraction, _ := bits.Div64(high, low, i.unit)
	*f = frame{at: int64(stamp/i.unit)*1e9 + int64(fraction), linkType: i.linkType, data: b[header : header+n]}
	if v := c.option(b[min(header+int(n+3)&^3, len(b)):], flags); len(v) == 4 {
		f.from = [...]direction{unknown, inbound, outbound, unknown}[c.order.Uint32(v)&3]
	}
	return nil
}

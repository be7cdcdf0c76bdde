package mad

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/verbs"
)

// Len is the length of every MAD in bytes (IBTA 13.4.2).
const Len = 256

// headerLen is the length of the MAD header; the message follows.
const headerLen = 24

// The header of all MADs of connection management (IBTA 13.4.2 and 16.7).
const (
	baseVersion  = 1
	classCommMgt = 0x07
	classVersion = 2
	methodSend   = 0x03
)

// Attribute is the kind of a message (IBTA 16.7.3).
type Attribute uint16

// The messages of connection management.
const (
	AttrREQ     Attribute = 0x10 // request for communication
	AttrMRA     Attribute = 0x11 // message receipt acknowledgement
	AttrREJ     Attribute = 0x12 // reject
	AttrREP     Attribute = 0x13 // reply to request for communication
	AttrRTU     Attribute = 0x14 // ready to use
	AttrDREQ    Attribute = 0x15 // request for communication release
	AttrDREP    Attribute = 0x16 // reply to request for communication release
	AttrSIDRREQ Attribute = 0x17 // service ID resolution request
	AttrSIDRREP Attribute = 0x18 // service ID resolution response
	AttrLAP     Attribute = 0x19 // load alternate path
	AttrAPR     Attribute = 0x1a // alternate path response
)

var attributeNames = [...]string{
	"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR",
}

// String returns the standard's name of the message.
func (a Attribute) String() string {
	if a >= AttrREQ && a <= AttrAPR {
		return attributeNames[a-AttrREQ]
	}
	return fmt.Sprintf("attribute %#x", uint16(a))
}

// Errors of decoding. ErrMalformed matches all of them. They are allocated in advance, so that
// a flood of bad datagrams allocates nothing.
var (
	ErrMalformed = errors.New("malformed connection management MAD")

	ErrLength    = fmt.Errorf("%w: its length is not 256 bytes", ErrMalformed)
	ErrClass     = fmt.Errorf("%w: the base version is not 1, the class is not 0x07, the class version is not 2, or the method is not Send", ErrMalformed)
	ErrAttribute = fmt.Errorf("%w: the attribute is unknown, or is not that of the message being decoded", ErrMalformed)
	ErrStatus    = fmt.Errorf("%w: the status is not 0", ErrMalformed)
	ErrMessage   = fmt.Errorf("%w: the kind of the rejected or acknowledged message is unknown", ErrMalformed)
	ErrInfoLen   = fmt.Errorf("%w: the additional information is longer than its field of 72 bytes", ErrMalformed)
	ErrIPHeader  = fmt.Errorf("%w: the RDMA CM header in the private data has a version other than 0, or an IP version other than 4 and 6", ErrMalformed)
)

// ErrField: a field of a message to encode is larger than its place on the wire.
var ErrField = errors.New("value does not fit its field of the connection management message")

// Header has the fields that all messages share.
type Header struct {
	TransactionID uint64
	Attribute     Attribute
}

// DecodeHeader checks the header of a MAD and returns it.
func DecodeHeader(b []byte) (Header, error) {
	if len(b) != Len {
		return Header{}, ErrLength
	}
	if b[0] != baseVersion || b[1] != classCommMgt || b[2] != classVersion || b[3] != methodSend {
		return Header{}, ErrClass
	}
	if b[4]|b[5] != 0 {
		return Header{}, ErrStatus
	}
	h := Header{
		TransactionID: binary.BigEndian.Uint64(b[8:]),
		Attribute:     Attribute(binary.BigEndian.Uint16(b[16:])),
	}
	if h.Attribute < AttrREQ || h.Attribute > AttrAPR {
		return Header{}, ErrAttribute
	}
	return h, nil
}

// Receiver returns the ID by which a message names an object of its receiver: a connection or,
// with AttrSIDRREP, a resolution. REQ and SIDR_REQ name none. It reads only the length and the
// attribute besides the ID.
func Receiver(b []byte) (id uint32, a Attribute, ok bool) {
	if len(b) != Len {
		return 0, 0, false
	}
	switch a = Attribute(binary.BigEndian.Uint16(b[16:])); a {
	case AttrMRA, AttrREJ, AttrREP, AttrRTU, AttrDREQ, AttrDREP, AttrLAP, AttrAPR:
		return binary.BigEndian.Uint32(b[headerLen+4:]), a, true
	case AttrSIDRREP:
		return binary.BigEndian.Uint32(b[headerLen:]), a, true
	}
	return 0, a, false
}

// coder codes the fields of one message in one direction: it writes them, or reads them. A message
// lists its fields once, for both. The coder keeps its first error. After an error it reads zeros.
type coder struct {
	message []byte // what follows the header
	header  []byte // of a MAD to write; nil: the coder reads
	read    Header // of the MAD to read
	err     error
}

// writeTo returns a coder that writes a message to b.
func writeTo(b *[Len]byte) coder {
	clear(b[:])
	return coder{message: b[headerLen:], header: b[:headerLen]}
}

// readFrom returns a coder that reads a message from b, after a check of the header.
func readFrom(b []byte) coder {
	h, err := DecodeHeader(b)
	if err != nil {
		return coder{err: err}
	}
	return coder{message: b[headerLen:], read: h}
}

// begin codes the header.
func (c *coder) begin(a Attribute, transactionID *uint64) {
	if c.header != nil {
		copy(c.header, []byte{baseVersion, classCommMgt, classVersion, methodSend})
		binary.BigEndian.PutUint64(c.header[8:], *transactionID)
		binary.BigEndian.PutUint16(c.header[16:], uint16(a))
		return
	}
	if c.err == nil && c.read.Attribute != a {
		c.err = ErrAttribute
	}
	*transactionID = c.read.TransactionID
}

func (c *coder) reading() bool { return c.header == nil }

func (c *coder) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// limit fails if a value to write has more bits than its field.
func (c *coder) limit(field string, value uint32, width int) {
	if !c.reading() && value>>width != 0 {
		c.fail(fmt.Errorf("%w: %s is %v", ErrField, field, value))
	}
}

var zeros [16]byte

// field returns the bytes of a field.
func (c *coder) field(at, n int) []byte {
	if c.reading() && c.err != nil {
		return zeros[:n]
	}
	return c.message[at : at+n : at+n]
}

func (c *coder) u8(at int, x *uint8) { c.bits("", at, 0, 8, x) }

func (c *coder) u16(at int, x *uint16) {
	if b := c.field(at, 2); c.reading() {
		*x = binary.BigEndian.Uint16(b)
	} else {
		binary.BigEndian.PutUint16(b, *x)
	}
}

func (c *coder) u32(at int, x *uint32) {
	if b := c.field(at, 4); c.reading() {
		*x = binary.BigEndian.Uint32(b)
	} else {
		binary.BigEndian.PutUint32(b, *x)
	}
}

func (c *coder) u64(at int, x *uint64) {
	if b := c.field(at, 8); c.reading() {
		*x = binary.BigEndian.Uint64(b)
	} else {
		binary.BigEndian.PutUint64(b, *x)
	}
}

// upper codes the upper bits of four bytes. A field in the lower ones is coded afterwards.
func (c *coder) upper(name string, at, width int, x *uint32) {
	c.limit(name, *x, width)
	all := *x << (32 - width)
	if c.u32(at, &all); c.reading() {
		*x = all >> (32 - width)
	}
}

// bits codes a part of a byte, which must be zero before it is written.
func (c *coder) bits(name string, at, shift, width int, x *uint8) {
	c.limit(name, uint32(*x), width)
	mask := uint8(1<<width - 1)
	if b := c.field(at, 1); c.reading() {
		*x = b[0] >> shift & mask
	} else {
		b[0] |= *x & mask << shift
	}
}

func (c *coder) bit(at, shift int, x *bool) {
	var bit uint8
	if *x {
		bit = 1
	}
	c.bits("", at, shift, 1, &bit)
	*x = bit != 0
}

func (c *coder) gid(at int, x *verbs.GID) {
	if b := c.field(at, len(x)); c.reading() {
		copy(x[:], b)
	} else {
		copy(b, x[:])
	}
}

// data codes bytes that a field of limit bytes begins with; n is their number when they are read.
func (c *coder) data(name string, at, limit, n int, x *[]byte) {
	switch {
	case !c.reading() && len(*x) > limit:
		c.fail(fmt.Errorf("%w: length of %s is %v", ErrField, name, len(*x)))
	case !c.reading():
		copy(c.message[at:], *x)
	case c.err != nil:
		*x = nil
	default:
		*x = c.message[at : at+n : at+n]
	}
}

// private codes the private data: everything from at on.
func (c *coder) private(at int, x *[]byte) {
	n := Len - headerLen - at
	c.data("private data", at, n, n, x)
}

// info codes additional information, and its length in the bits of another byte from shift on.
func (c *coder) info(at, lengthAt, shift int, x *[]byte) {
	n := uint8(min(len(*x), InfoLen))
	if c.bits("", lengthAt, shift, 8-shift, &n); n > InfoLen {
		c.fail(ErrInfoLen)
	}
	c.data("additional information", at, InfoLen, int(n), x)
}

// kind codes the kind of a message in the upper bits of a byte.
func (c *coder) kind(at int, x *Message) {
	if c.bits("message", at, 6, 2, (*uint8)(x)); c.reading() && *x > MessageOther {
		c.fail(ErrMessage)
	}
}

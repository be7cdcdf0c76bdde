package mad

import (
	"encoding/binary"
	"errors"
	"fmt"
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
		return view(b[headerLen:]).u32(4), a, true
	case AttrSIDRREP:
		return view(b[headerLen:]).u32(0), a, true
	}
	return 0, a, false
}

// open checks the header and the attribute, and returns a view of the message.
func open(b []byte, want Attribute, transactionID *uint64) (view, error) {
	h, err := DecodeHeader(b)
	if err != nil {
		return nil, err
	}
	if h.Attribute != want {
		return nil, ErrAttribute
	}
	*transactionID = h.TransactionID
	return view(b[headerLen:]), nil
}

// view is the 232 bytes of a message after the header.
type view []byte

func (v view) u16(at int) uint16 { return binary.BigEndian.Uint16(v[at:]) }
func (v view) u24(at int) uint32 { return binary.BigEndian.Uint32(v[at:]) >> 8 }
func (v view) u32(at int) uint32 { return binary.BigEndian.Uint32(v[at:]) }
func (v view) u64(at int) uint64 { return binary.BigEndian.Uint64(v[at:]) }
func (v view) bit(at, shift int) bool {
	return v[at]>>shift&1 != 0
}

func (v view) bits(at, shift, width int) uint8 { return v[at] >> shift & (1<<width - 1) }

// rest returns the private data: everything from at on.
func (v view) rest(at int) []byte { return v[at:len(v):len(v)] }

// info returns additional information of n bytes.
func (v view) info(at, n int) ([]byte, error) {
	if n > InfoLen {
		return nil, ErrInfoLen
	}
	return v[at : at+n : at+n], nil
}

// writer encodes one message, and keeps the error of the first field that does not fit.
type writer struct {
	message view
	err     error
}

// begin clears a MAD and writes its header.
func begin(b *[Len]byte, a Attribute, transactionID uint64) writer {
	clear(b[:])
	b[0], b[1], b[2], b[3] = baseVersion, classCommMgt, classVersion, methodSend
	binary.BigEndian.PutUint64(b[8:], transactionID)
	binary.BigEndian.PutUint16(b[16:], uint16(a))
	return writer{message: b[headerLen:]}
}

func (w *writer) fail(field string, value any) {
	if w.err == nil {
		w.err = fmt.Errorf("%w: %s is %v", ErrField, field, value)
	}
}

func (w *writer) u8(at int, x uint8)   { w.message[at] = x }
func (w *writer) u16(at int, x uint16) { binary.BigEndian.PutUint16(w.message[at:], x) }
func (w *writer) u32(at int, x uint32) { binary.BigEndian.PutUint32(w.message[at:], x) }
func (w *writer) u64(at int, x uint64) { binary.BigEndian.PutUint64(w.message[at:], x) }

// u24 writes three bytes.
func (w *writer) u24(field string, at int, x uint32) {
	if x >= 1<<24 {
		w.fail(field, x)
	}
	w.message[at], w.message[at+1], w.message[at+2] = byte(x>>16), byte(x>>8), byte(x)
}

// bits writes a part of a byte, which must be zero before.
func (w *writer) bits(field string, at, shift, width int, x uint8) {
	if x>>width != 0 {
		w.fail(field, x)
	}
	w.message[at] |= x & (1<<width - 1) << shift
}

func (w *writer) bit(at, shift int, x bool) {
	if x {
		w.message[at] |= 1 << shift
	}
}

// data writes bytes into a field of limit bytes.
func (w *writer) data(field string, at, limit int, b []byte) {
	if len(b) > limit {
		w.fail("length of "+field, len(b))
		return
	}
	copy(w.message[at:], b)
}

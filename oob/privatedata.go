package oob

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"unicode/utf8"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/wirecode"
)

// The maximum private data of each message of the connection manager, in bytes (IBTA 12.6,
// annex A11). Messages do not carry its length: unused bytes are zero.
const (
	maxRequestData = 56
	maxReplyData   = 196
	maxRejectData  = 148
)

const (
	cmMagic   = "VC"
	cmVersion = 2
)

type cmKind uint8

// The kinds of private data. Private data consists of the magic, the version, the kind, and the
// fields named here, in this order. Numbers are big-endian. Texts and names are counted: a byte
// with the length precedes them. An offer is the sender's name (counted); a byte for the type of
// the object (0 none, 2 a memory map, 3 a sync event), and the object; and the program's own
// bytes (counted). A memory map is its address (8 bytes), length (8), remote key (4) and
// permissions (1). A sync event is the 15 bytes of its descriptor's payload.
const (
	cmRequest    cmKind = 1 + iota // a connection request: token, index, count, to, offer
	cmReply                        // the reply to it: offer
	cmBusy                         // a rejection; another attempt may succeed: text
	cmRefused                      // a final rejection: text
	cmWrongNames                   // a rejection: the programs do not belong together: offer.From, offer.To
	cmReport                       // the requester's report, with a disconnect: ok
)

// cmToken identifies the requests of one exchange. Only its two ends know it.
type cmToken [8]byte

// privateData is the content of one message of the connection manager. Its kind determines
// which fields it has.
type privateData struct {
	kind         cmKind
	token        cmToken
	index, count uint8  // index of the connection in the exchange, and number of connections
	to           uint16 // nameSum of the program that is addressed
	ok           bool
	text         string
	// offer has the sender's name, at most one memory map or sync event, and data.
	offer descriptor.Bundle
}

// nameSum replaces the responder's name in a request, which has no room for the name. The
// reply has it.
func nameSum(name string) uint16 {
	return uint16(crc32.Checksum([]byte(name), crc32.MakeTable(crc32.Castagnoli)))
}

func (d *privateData) encode() []byte {
	var c wirecode.Coder
	c.Fixed(append([]byte(cmMagic), cmVersion, uint8(d.kind)))
	d.code(&c)
	b, _ := c.Payload() // far smaller than the largest
	return b
}

// code codes the fields that the kind has.
func (d *privateData) code(c *wirecode.Coder) {
	switch d.kind {
	case cmRequest:
		c.Fixed(d.token[:])
		c.Uint8(&d.index)
		c.Uint8(&d.count)
		c.Uint16(&d.to)
		codeOffer(c, &d.offer)
	case cmReply:
		codeOffer(c, &d.offer)
	case cmBusy, cmRefused:
		codeText(c, &d.text)
	case cmWrongNames:
		codeText(c, &d.offer.From)
		codeText(c, &d.offer.To)
	case cmReport:
		c.Bool(&d.ok)
	}
}

// codeCounted codes a length of one byte, and the bytes.
func codeCounted(c *wirecode.Coder, b *[]byte) {
	n := uint8(len(*b))
	if c.Uint8(&n); c.Reading() && n > 0 {
		*b = make([]byte, n)
	}
	c.Fixed(*b)
}

func codeText(c *wirecode.Coder, s *string) {
	b := []byte(*s)
	codeCounted(c, &b)
	*s = string(b)
}

// Lengths of descriptors' payloads, in bytes. The payload of a memory map ends with four bytes
// of permissions. Private data carries only the last of them, because permissions fit into it.
const (
	mapPayload, mapPermissions = 24, 4
	eventPayload               = 15
)

// codeOffer codes an offer. A Coder that reads rebuilds the descriptor in it.
func codeOffer(c *wirecode.Coder, o *descriptor.Bundle) {
	codeText(c, &o.From)
	var kind descriptor.Kind
	m, e := make([]byte, mapPayload), make([]byte, eventPayload)
	switch {
	case len(o.Maps) > 0:
		kind, m = descriptor.MemoryMap, payloadOf(descriptor.MemoryMap, o.Maps[0], mapPayload)
	case len(o.Events) > 0:
		kind, e = descriptor.SyncEvent, payloadOf(descriptor.SyncEvent, o.Events[0], eventPayload)
	}
	c.Uint8((*uint8)(&kind))
	switch kind {
	case descriptor.MemoryMap:
		c.Fixed(m[:mapPayload-mapPermissions])
		c.Uint8(&m[mapPayload-1])
		if c.Reading() {
			o.Maps = [][]byte{describe(kind, m)}
		}
	case descriptor.SyncEvent:
		if c.Fixed(e); c.Reading() {
			o.Events = [][]byte{describe(kind, e)}
		}
	}
	codeCounted(c, &o.Data)
}

// payloadOf returns the payload of a descriptor that this program has made.
func payloadOf(kind descriptor.Kind, desc []byte, n int) []byte {
	payload, err := descriptor.Decode(kind, desc)
	if err != nil || len(payload) != n {
		panic(fmt.Sprintf("oob: a %v descriptor of %d bytes: %v", kind, len(payload), err))
	}
	return payload
}

func describe(kind descriptor.Kind, payload []byte) []byte {
	desc, _ := descriptor.Encode(kind, payload) // fails only for a payload that is too long
	return desc
}

// decodePrivateData decodes private data. It refuses everything that encode does not make.
// Errors match those of package descriptor. Callers must check the content of the offer.
func decodePrivateData(b []byte) (*privateData, error) {
	const header = len(cmMagic) + 2
	if len(b) < header || string(b[:len(cmMagic)]) != cmMagic {
		return nil, fmt.Errorf("%w: the private data does not come from package oob", descriptor.ErrFormat)
	}
	if v := b[len(cmMagic)]; v != cmVersion {
		return nil, fmt.Errorf("%w: the private data has version %d, but this program reads version %d; run the same release of Verbena on both ends", descriptor.ErrVersion, v, cmVersion)
	}
	d := &privateData{kind: cmKind(b[header-1])}
	if d.kind < cmRequest || d.kind > cmReport {
		return nil, d.unexpected()
	}
	c := wirecode.ReadFrom(b[header:])
	if d.code(c); c.Err() != nil {
		return nil, c.Err()
	}
	if again := d.encode(); !bytes.HasPrefix(b, again) || !isZero(b[len(again):]) {
		return nil, fmt.Errorf("%w: the private data is too long, or has invalid values", descriptor.ErrTrailing)
	}
	return d, nil
}

func (d *privateData) unexpected() error {
	return fmt.Errorf("%w: private data of kind %d is not expected here", descriptor.ErrKind, d.kind)
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// otherWays is the advice in errors for offers that do not fit into the private data.
const otherWays = "offer less, or exchange through a folder (dir:PATH), TCP (tcp:HOST:PORT), standard input (stdio) or files"

// checkOffer refuses an offer with too many objects or connections for private data.
func checkOffer(maps, events, connections int) error {
	switch {
	case connections < 1 || connections > maxCMConnections:
		return fmt.Errorf("%w: one exchange makes 1 to %d connections through the connection manager, but %d are offered; %s",
			ErrInvalid, maxCMConnections, connections, otherWays)
	case maps+events > 1:
		return fmt.Errorf("%w: %s are offered, but the private data of the connection manager has room for one memory map or sync event; %s",
			ErrInvalid, amount(maps, events), otherWays)
	}
	return nil
}

// maxCMConnections is the largest number of connections in one exchange by connection manager.
const maxCMConnections = 255

// encodeWithinLimit encodes an offer, and fails if it is too long.
func (d *privateData) encodeWithinLimit() ([]byte, error) {
	what, room := "request", maxRequestData
	if d.kind == cmReply {
		what, room = "reply", maxReplyData
	}
	o := &d.offer
	if len(o.Data) <= room {
		b := d.encode()
		if len(b) <= room {
			return b, nil
		}
	}
	without := *d
	without.offer.Data = nil
	objects := amount(len(o.Maps), len(o.Events))
	left := room - len(without.encode())
	if left < 0 {
		return nil, fmt.Errorf("%w: the name %q and %s take %d bytes more than the %d of private data in a %s of the connection manager; shorten the name, %s",
			ErrInvalid, o.From, objects, -left, room, what, otherWays)
	}
	return nil, fmt.Errorf("%w: with the name %q and %s, the private data of a %s of the connection manager has room for %d bytes of Offer.Data, but %d are offered; %s",
		ErrInvalid, o.From, objects, what, left, len(o.Data), otherWays)
}

// rejection makes the private data with the reason of a rejection.
func rejection(kind cmKind, err error) []byte {
	const room = maxRejectData - len(cmMagic) - 3
	d := privateData{kind: kind, text: truncate(err.Error(), room)}
	return d.encode()
}

// wrongNames makes the private data that rejects a requester which is not the expected program,
// or which addresses another responder.
func wrongNames(ends Ends) []byte {
	const room = (maxRejectData - len(cmMagic) - 4) / 2
	d := privateData{kind: cmWrongNames, offer: descriptor.Bundle{From: truncate(ends.Name, room), To: truncate(ends.Peer, room)}}
	return d.encode()
}

// truncate shortens a text to at most n bytes, without splitting a character.
func truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// errBusy is the error of a responder that cannot answer now.
var errBusy = errors.New("the responder cannot accept this program yet")

package descriptor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"

	"github.com/verbena-rdma/verbena/internal/wirecode"
)

// Kind is the kind of object that a descriptor describes.
type Kind uint8

// The kinds.
const (
	Connection Kind = 1 // one end of a connection, from rdma
	MemoryMap  Kind = 2 // memory open to a peer, from mmap
	SyncEvent  Kind = 3 // a 64-bit event open to a peer
	Bundled    Kind = 4 // several of the others, and bytes of the program's own: a Bundle
	Endpoint   Kind = 5 // an endpoint of datagrams, from rdma
)

var kindNames = [...]string{Connection: "connection", MemoryMap: "memory map", SyncEvent: "sync event", Bundled: "bundle", Endpoint: "endpoint"}

// String names the kind in words.
func (k Kind) String() string {
	if k.known() {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

func (k Kind) known() bool { return int(k) < len(kindNames) && kindNames[k] != "" }

// Sizes.
const (
	MaxPayload = wirecode.MaxPayload // most bytes of payload in one descriptor
	MaxFile    = 64 << 10            // most bytes of text or binary that readers accept
)

const (
	magic         = "VRBN"
	formatVersion = 2 // the version written, and the only one read
	headerSize    = len(magic) + 1 + 1 + 4
	sumSize       = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode makes the binary form of a descriptor. It fails with ErrKind for a kind
// that is not one of the constants, and with ErrTooBig for a payload of more
// than MaxPayload bytes.
func Encode(kind Kind, payload []byte) ([]byte, error) {
	if !kind.known() {
		return nil, fmt.Errorf("encode descriptor: %w: this release does not know %v", ErrKind, kind)
	}
	if len(payload) > MaxPayload {
		return nil, fmt.Errorf("encode %v descriptor: %w: %d bytes of payload, at most %d fit",
			kind, ErrTooBig, len(payload), MaxPayload)
	}
	b := make([]byte, 0, headerSize+len(payload)+sumSize)
	b = append(b, magic...)
	b = append(b, formatVersion, byte(kind))
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// Decode returns the payload of a descriptor of the wanted kind, binary or armored. The
// payload of the binary form is part of b, not a copy.
//
// Decode reads exactly one descriptor: anything missing, damaged, unknown or left over is an
// error that matches one of this package's. It allows white space around the lines of the
// armored form, and line ends of any system.
func Decode(want Kind, b []byte) ([]byte, error) {
	kind, payload, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("read %v descriptor: %w", want, err)
	}
	if kind != want {
		return nil, fmt.Errorf("read %v descriptor: %w: it is a %v descriptor; check which of the peer's descriptors goes where",
			want, ErrKind, kind)
	}
	return payload, nil
}

// Parse is Decode for a descriptor of any kind.
func Parse(b []byte) (Kind, []byte, error) {
	text := bytes.TrimSpace(b)
	if len(text) == 0 {
		return 0, nil, fmt.Errorf("%w: it is empty; export it again and copy all of it", ErrTruncated)
	}
	if !bytes.HasPrefix(text, []byte(dashes)) {
		return parseBinary(b)
	}
	label, raw, err := unarmor(text)
	if err != nil {
		return 0, nil, err
	}
	kind, payload, err := parseBinary(raw)
	if err != nil {
		return 0, nil, err
	}
	if kind != label {
		return 0, nil, fmt.Errorf("%w: its BEGIN line says %v, but it holds a %v descriptor; copy it again, unedited",
			ErrFormat, label, kind)
	}
	return kind, payload, nil
}

func parseBinary(b []byte) (Kind, []byte, error) {
	if n := min(len(b), len(magic)); string(b[:n]) != magic[:n] {
		return 0, nil, fmt.Errorf("%w: it begins with neither a BEGIN line nor %q; check that it is the file or text that the peer exported",
			ErrFormat, magic)
	}
	if len(b) < headerSize {
		return 0, nil, fmt.Errorf("%w: %d bytes are less than its header of %d; copy all of it",
			ErrTruncated, len(b), headerSize)
	}
	version, kind := b[len(magic)], Kind(b[len(magic)+1])
	if version != formatVersion {
		return 0, nil, fmt.Errorf("%w: it has version %d, this program reads version %d; run the same release of Verbena on both ends",
			ErrVersion, version, formatVersion)
	}
	size := binary.BigEndian.Uint32(b[headerSize-4:])
	if size > MaxPayload {
		return 0, nil, fmt.Errorf("%w: it claims %d bytes of payload, at most %d are allowed; copy it again",
			ErrTooBig, size, MaxPayload)
	}
	total := headerSize + int(size) + sumSize
	if len(b) < total {
		return 0, nil, fmt.Errorf("%w: %d of its %d bytes are there; copy all of it", ErrTruncated, len(b), total)
	}
	if len(b) > total {
		return 0, nil, fmt.Errorf("%w: it has %d bytes, and %d more come after it; copy it alone",
			ErrTrailing, total, len(b)-total)
	}
	body := b[:total-sumSize]
	if got, want := crc32.Checksum(body, castagnoli), binary.BigEndian.Uint32(b[total-sumSize:]); got != want {
		return 0, nil, fmt.Errorf("%w: its checksum is %08x, its content has %08x; copy it again, unedited",
			ErrChecksum, want, got)
	}
	if !kind.known() {
		return 0, nil, fmt.Errorf("%w: this release does not know %v; run the same release of Verbena on both ends", ErrKind, kind)
	}
	return kind, body[headerSize:], nil
}

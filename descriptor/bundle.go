package descriptor

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/verbena-rdma/verbena/internal/wirecode"
)

// maxName is the largest length of a program's name in a Bundle, in bytes.
const maxName = 255

// Bundle is what one program sends another as a single descriptor: any number of descriptors,
// in order, and bytes of the program's own. All of it together takes at most MaxPayload bytes.
type Bundle struct {
	From string // name of the sending program: 1 to maxName bytes of printable UTF-8
	To   string // name of the receiving program, likewise

	// Connections are descriptors of connections. In this and the other lists, Encode
	// takes either form, and DecodeBundle returns the binary form.
	Connections [][]byte
	Maps        [][]byte // of memory maps
	Events      [][]byte // of sync events
	Endpoints   [][]byte // of datagrams
	Data        []byte   // the program's own
}

// lists are the lists of descriptors, in the order in which they are encoded.
func (b *Bundle) lists() [4]struct {
	kind Kind
	list *[][]byte
} {
	return [4]struct {
		kind Kind
		list *[][]byte
	}{{Connection, &b.Connections}, {MemoryMap, &b.Maps}, {SyncEvent, &b.Events}, {Endpoint, &b.Endpoints}}
}

// Encode makes the descriptor of a bundle, in binary form. It fails with ErrFormat for an
// invalid name, with the errors of Decode for an invalid descriptor or one of another kind,
// and with ErrTooBig.
func (b *Bundle) Encode() ([]byte, error) {
	desc, err := b.encode()
	if err != nil {
		return nil, fmt.Errorf("make bundle: %w", err)
	}
	return desc, nil
}

func (b *Bundle) encode() ([]byte, error) {
	var c wirecode.Coder
	for _, name := range []string{b.From, b.To} {
		if err := checkName(name); err != nil {
			return nil, err
		}
		text := []byte(name)
		c.Counted(&text)
	}
	for _, l := range b.lists() {
		// The count has 16 bits; more descriptors than MaxPayload never fit.
		n := min(len(*l.list), MaxPayload)
		wirecode.Int(&c, &n, 2)
		for i, desc := range *l.list {
			payload, err := Decode(l.kind, desc)
			if err != nil {
				return nil, fmt.Errorf("%v %d: %w", l.kind, i, err)
			}
			if desc, err = Encode(l.kind, payload); err != nil {
				return nil, err
			}
			c.Counted(&desc)
		}
	}
	c.Counted(&b.Data)
	payload, err := c.Payload()
	if err != nil {
		return nil, err
	}
	return Encode(Bundled, payload)
}

// DecodeBundle decodes a bundle, binary or armored. It checks that the descriptors are whole
// and of their kinds, and that the names are printable; their importers check the rest. The
// result shares no memory with desc. Errors match those of this package.
func DecodeBundle(desc []byte) (*Bundle, error) {
	payload, err := Decode(Bundled, desc)
	if err != nil {
		return nil, err
	}
	b := new(Bundle)
	if err := b.decode(wirecode.ReadFrom(payload)); err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	return b, nil
}

func (b *Bundle) decode(c *wirecode.Coder) error {
	for _, name := range []*string{&b.From, &b.To} {
		var text []byte
		c.Counted(&text)
		*name = string(text)
		if c.Err() == nil {
			if err := checkName(*name); err != nil {
				return err
			}
		}
	}
	for _, l := range b.lists() {
		// The count is not trusted: memory is allocated only for descriptors that are there.
		var n uint16
		c.Uint16(&n)
		for range n {
			var desc []byte
			if c.Counted(&desc); c.Err() != nil {
				return c.Err()
			}
			kind, _, err := parseBinary(desc)
			if err != nil {
				return fmt.Errorf("%v %d: %w", l.kind, len(*l.list), err)
			}
			if kind != l.kind {
				return fmt.Errorf("%v %d: %w: it is a %v descriptor", l.kind, len(*l.list), ErrKind, kind)
			}
			*l.list = append(*l.list, append([]byte(nil), desc...))
		}
	}
	c.Counted(&b.Data)
	b.Data = append([]byte(nil), b.Data...)
	return c.Done()
}

// checkName refuses unprintable names, because names appear in errors and logs.
func checkName(name string) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) {
		return fmt.Errorf("%w: %.40q is not a valid program name; use 1 to %d bytes of UTF-8", ErrFormat, name, maxName)
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%w: the name %.40q has characters that cannot be printed", ErrFormat, name)
		}
	}
	return nil
}

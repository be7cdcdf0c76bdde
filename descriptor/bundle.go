package descriptor

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxName is how long the name of a program in a Bundle may be, in bytes.
const MaxName = 255

// Bundle is what one program gives to another, as one descriptor: any number of
// descriptors, in order, and bytes of the program's own. All of it together takes at
// most MaxPayload bytes.
type Bundle struct {
	From string // the program that made it: 1 to MaxName bytes of printable UTF-8
	To   string // the program that it is for, likewise

	// Connections are descriptors, in either form when encoded, and in binary form when
	// decoded; so are the other lists.
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

// Encode makes the descriptor of a bundle, in binary form. It fails with ErrFormat
// for a name that is none, with the errors of Decode for a descriptor that is none
// or of another kind, and with ErrTooBig.
func (b *Bundle) Encode() ([]byte, error) {
	desc, err := b.encode()
	if err != nil {
		return nil, fmt.Errorf("make bundle: %w", err)
	}
	return desc, nil
}

func (b *Bundle) encode() ([]byte, error) {
	var w Writer
	for _, name := range []string{b.From, b.To} {
		if err := checkName(name); err != nil {
			return nil, err
		}
		w.Counted([]byte(name))
	}
	for _, l := range b.lists() {
		// Writer counts in 16 bits; more descriptors than that never fit.
		w.Uint16(uint16(min(len(*l.list), MaxPayload)))
		for i, desc := range *l.list {
			payload, err := Decode(l.kind, desc)
			if err != nil {
				return nil, fmt.Errorf("%v %d: %w", l.kind, i, err)
			}
			if desc, err = Encode(l.kind, payload); err != nil {
				return nil, err
			}
			w.Counted(desc)
		}
	}
	w.Counted(b.Data)
	return w.Encode(Bundled)
}

// DecodeBundle takes a bundle apart, binary or armored. Its descriptors are whole
// and of their kinds, and its names printable; what they say is for others to
// check. Nothing of it shares memory with desc. Errors match those of this package.
func DecodeBundle(desc []byte) (*Bundle, error) {
	payload, err := Decode(Bundled, desc)
	if err != nil {
		return nil, err
	}
	b := new(Bundle)
	if err := b.decode(NewReader(payload)); err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	return b, nil
}

func (b *Bundle) decode(r *Reader) error {
	for _, name := range []*string{&b.From, &b.To} {
		*name = string(r.Counted())
		if r.Err() == nil {
			if err := checkName(*name); err != nil {
				return err
			}
		}
	}
	for _, l := range b.lists() {
		// The number claims nothing: memory is taken for those that are there.
		for range r.Uint16() {
			desc := r.Counted()
			if r.Err() != nil {
				return r.Err()
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
	if data := r.Counted(); len(data) > 0 {
		b.Data = append([]byte(nil), data...)
	}
	return r.Done()
}

// checkName refuses what cannot be printed: names appear in errors and logs.
func checkName(name string) error {
	if name == "" || len(name) > MaxName || !utf8.ValidString(name) {
		return fmt.Errorf("%w: %.40q is no name of a program; use 1 to %d bytes of UTF-8", ErrFormat, name, MaxName)
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%w: the name %.40q has characters that cannot be printed", ErrFormat, name)
		}
	}
	return nil
}

package proto

import (
	"errors"
	"fmt"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/verbena-rdma/verbena/internal/wirecode"
)

// Encode encodes a message. It fails with ErrTooBig if the result would be longer than
// MaxMessage, or if a part of the message exceeds its limit.
func Encode(m Message) ([]byte, error) {
	var c coder
	k := kinds[reflect.TypeOf(m)]
	wirecode.Int(&c.Coder, &k, 1)
	m.fields(&c)
	b, err := c.Payload()
	if c.wrong == "" && (err != nil || len(b) > MaxMessage) {
		c.wrong = fmt.Sprintf("more than %d bytes", MaxMessage)
	}
	if c.wrong != "" {
		return nil, fmt.Errorf("%w: %T: %s", ErrTooBig, m, c.wrong)
	}
	return b, nil
}

// Decode decodes a message. The result shares no memory with b. The error matches
// ErrMalformed.
func Decode(b []byte) (Message, error) {
	if len(b) == 0 || len(b) > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	if b[0] == 0 || int(b[0]) >= len(messages) {
		return nil, fmt.Errorf("%w: kind %d", ErrMalformed, b[0])
	}
	m := reflect.New(reflect.TypeOf(messages[b[0]]).Elem()).Interface().(Message)
	c := coder{Coder: *wirecode.ReadFrom(b[1:])}
	m.fields(&c)
	switch err := c.Done(); {
	case c.wrong != "":
	case err == nil:
		return m, nil
	case errors.Is(err, wirecode.ErrTruncated):
		c.wrong = "truncated"
	case errors.Is(err, wirecode.ErrTrailing):
		c.wrong = "bytes behind its end"
	default:
		c.wrong = "a boolean that is neither 0 nor 1"
	}
	return nil, fmt.Errorf("%w: %T: %s", ErrMalformed, m, c.wrong)
}

// kind is the first byte of a message: its place in messages.
type kind uint8

var kinds = func() map[reflect.Type]kind {
	list := map[reflect.Type]kind{}
	for k, m := range messages {
		list[reflect.TypeOf(m)] = kind(k)
	}
	return list
}()

// IsPing reports whether b is an encoded Ping.
func IsPing(b []byte) bool { return len(b) == 1 && kind(b[0]) == kinds[reflect.TypeFor[*Ping]()] }

// Cut shortens a text to at most n bytes, without splitting a character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// coder codes the fields of a message in one direction. It checks limits of lengths in both, and
// values when it reads.
type coder struct {
	wirecode.Coder
	wrong string // the first thing that is wrong; what is read after it is of no use
}

// limit notes an excess over a limit.
func (c *coder) limit(within bool, format string, args ...any) bool {
	if !within && c.wrong == "" && (!c.Reading() || c.Err() == nil) {
		c.wrong = fmt.Sprintf(format, args...)
	}
	return c.wrong == ""
}

// check notes a value that no sender sends.
func (c *coder) check(legal bool, format string, args ...any) {
	if c.Reading() {
		c.limit(legal, format, args...)
	}
}

func (c *coder) text(s *string, limit int) {
	b := []byte(*s)
	fits := func() bool {
		return c.limit(len(b) <= limit, "a text of %d bytes, longer than the limit of %d", len(b), limit)
	}
	if !c.Reading() {
		if fits() {
			c.Counted(&b)
		}
		return
	}
	if c.Counted(&b); fits() {
		*s = string(b)
	}
}

func (c *coder) utf8(s *string, limit int) {
	c.text(s, limit)
	c.check(utf8.ValidString(*s), "a text that is not UTF-8")
}

// list codes a list of 1 to limit elements, each of at least size bytes.
func list[E any](c *coder, elements *[]E, limit, size int, fields func(*E)) {
	n := uint16(min(len(*elements), limit+1))
	c.Uint16(&n)
	if !c.limit(n >= 1 && int(n) <= limit, "%d elements, want 1 to %d", n, limit) {
		return
	}
	if c.Reading() {
		if c.check(int(n)*size <= c.Left(), "truncated"); c.wrong != "" || c.Err() != nil {
			return
		}
		*elements = make([]E, n)
	}
	for i := range *elements {
		fields(&(*elements)[i])
	}
}

func (c *coder) slot(v *uint16) {
	c.Uint16(v)
	c.check(*v < MaxSlots, "slot %d", *v)
}

func (c *coder) mode(v *uint16) {
	c.Uint16(v)
	c.check(*v <= 0o777, "mode %#o", *v)
}

// maxSeconds bounds times to years that every system can represent, about -999 to 9999.
const maxSeconds = 1 << 38

func (c *coder) time(t *time.Time) {
	sec, nsec := uint64(t.Unix()), uint32(t.Nanosecond())
	c.Uint64(&sec)
	c.Uint32(&nsec)
	if c.Reading() {
		s := int64(sec)
		c.check(s >= -maxSeconds && s <= maxSeconds && nsec <= 999_999_999, "time %d.%d", s, nsec)
		*t = time.Unix(s, int64(nsec))
	}
}

func (c *coder) code(v *Code) {
	c.Uint8((*uint8)(v))
	c.check(*v < codes, "code %d", *v)
}

func (c *coder) failure(v *Code) {
	c.code(v)
	c.check(*v != OK, "a failure without a code")
}

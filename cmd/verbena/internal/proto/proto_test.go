package proto

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var when = time.Unix(1_700_000_000, 123_456_789)

// examples has at least one of each kind.
var examples = []Message{
	&Hello{Version: 1, Transfer: [16]byte{1, 2}, Nonce: Token{3}, Secret: true},
	&Challenge{Version: 1, Nonce: Token{4}},
	&Proof{MAC: Token{5}},
	&Welcome{MAC: Token{6}, Addr: 1 << 40, Length: 16 * BlockSize, RKey: 7},
	&Refuse{Code: NeedSecret, Text: "no"},
	&Entries{First: 7, Entries: []Entry{
		{Type: File, Mode: 0o644, Size: 1 << 40, Modified: when, Path: "a/b"},
		{Type: Directory, Mode: 0o755, Modified: time.Unix(-5, 0), Path: "a"},
		{Type: Symlink, Mode: 0o777, Modified: when, Path: "l", Target: "a/b"},
	}},
	&Plan{First: 7, Items: []Item{{}, {Decision: Resume, Length: 3, Hash: Sum{8}}, {Decision: Have}, {Decision: Made}, {Decision: Refused, Code: Exists, Text: "x"}}},
	&Block{Slot: 3, Segments: []Segment{{Entry: 1, Length: 5, Last: true}, {Entry: 2, Offset: BlockSize, Length: 6, Last: true, Hash: Sum{1}}, {Entry: 3, Length: 7}}},
	&Results{Results: []Result{{Entry: 1}, {Entry: 2, Code: NoSpace, Text: "full"}}},
	&Ack{Slot: MaxSlots - 1},
	&Discard{Entry: 4, Code: Changed},
	&Dirs{Dirs: []DirEntry{{Entry: 5, Mode: 0o700, Modified: when, Path: "a"}}},
	&Text{Text: "hello"}, &End{Entries: 6}, &Verdict{Good: true, Stored: 1, Failed: 2, Bytes: 3},
	&ID{Text: "me"}, &Key{Text: "k"}, &Ping{},
}

func TestRoundTrip(t *testing.T) {
	seen := map[kind]bool{}
	for _, m := range examples {
		seen[kinds[reflect.TypeOf(m)]] = true
		b, err := Encode(m)
		require.NoError(t, err, "%T", m)
		again, err := Decode(b)
		require.NoError(t, err, "%T", m)
		assert.Equal(t, m, again)
		for n := range b {
			_, err := Decode(b[:n])
			assert.ErrorIs(t, err, ErrMalformed, "%T cut to %d bytes", m, n)
		}
		_, err = Decode(append(b, 0))
		assert.ErrorIs(t, err, ErrMalformed, "%T with a byte too many", m)
		_, ping := m.(*Ping)
		assert.Equal(t, ping, IsPing(b))
	}
	assert.Len(t, seen, len(messages)-1, "a kind is missing")
}

// TestLimits: what is too much for a message is refused, at both ends.
func TestLimits(t *testing.T) {
	for name, m := range map[string]Message{
		"text":     &Text{Text: strings.Repeat("x", MaxText+1)},
		"note":     &Refuse{Code: Failed, Text: strings.Repeat("x", MaxNote+1)},
		"nothing":  &Results{},
		"segments": &Block{Segments: make([]Segment, MaxSegments+1)},
		"entries":  &Entries{Entries: make([]Entry, MaxEntries+1)},
		"path":     &Entries{Entries: []Entry{{Path: strings.Repeat("x", MaxPath+1)}}},
		"all":      &Entries{Entries: []Entry{{Path: strings.Repeat("x", MaxPath)}, {Path: strings.Repeat("x", MaxPath)}, {Path: strings.Repeat("x", MaxPath)}, {Path: strings.Repeat("x", MaxPath)}}},
	} {
		_, err := Encode(m)
		assert.ErrorIs(t, err, ErrTooBig, name)
	}
	// Encode leaves these to the types; Decode must not take them.
	for name, m := range map[string]Message{
		"slot":        &Ack{Slot: MaxSlots},
		"block slot":  &Block{Slot: MaxSlots, Segments: []Segment{{Length: 1}}},
		"empty":       &Block{Segments: []Segment{{Length: 0}}},
		"large":       &Block{Segments: []Segment{{Length: BlockSize + 1}}},
		"together":    &Block{Segments: []Segment{{Length: BlockSize}, {Length: 1}}},
		"mode":        &Entries{Entries: []Entry{{Mode: 0o1000, Modified: when}}},
		"size":        &Entries{Entries: []Entry{{Size: 1 << 63, Modified: when}}},
		"type":        &Entries{Entries: []Entry{{Type: entryTypes, Modified: when}}},
		"time":        &Entries{Entries: []Entry{{Modified: time.Unix(1<<40, 0)}}},
		"decision":    &Plan{Items: []Item{{Decision: decisions}}},
		"no code":     &Refuse{},
		"code":        &Refuse{Code: codes},
		"not UTF-8":   &ID{Text: "\xff"},
		"window":      &Welcome{},
		"half a slot": &Welcome{Length: BlockSize + 1},
		"windows":     &Welcome{Length: (MaxSlots + 1) * BlockSize},
	} {
		b, err := Encode(m)
		require.NoError(t, err, name)
		_, err = Decode(b)
		assert.ErrorIs(t, err, ErrMalformed, name)
	}
	_, err := Decode(make([]byte, MaxMessage+1))
	require.ErrorIs(t, err, ErrMalformed)
	_, err = Decode([]byte{0xff})
	require.ErrorIs(t, err, ErrMalformed)
}

func TestDigest(t *testing.T) {
	var a, b Digest
	assert.Equal(t, a.Sum(), b.Sum())
	a.Add([]byte("x"))
	assert.NotEqual(t, a.Sum(), b.Sum())
	a.Add([]byte("y"))
	assert.Equal(t, SumOf([]byte("xy")), a.Sum())
	b.Add([]byte("y"))
	b.Add([]byte("x"))
	assert.NotEqual(t, a.Sum(), b.Sum(), "the order does not count")
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for c := range codes {
		assert.NotEmpty(t, c.String())
		assert.False(t, seen[c.String()], c.String())
		seen[c.String()] = true
	}
	assert.Equal(t, "Code(99)", Code(99).String())
	assert.Equal(t, "a", Cut("aä", 2))
	assert.Equal(t, "aä", Cut("aä", 3))
}

// FuzzDecode: whatever is decoded is what Encode writes, byte for byte.
func FuzzDecode(f *testing.F) {
	for _, m := range examples {
		b, err := Encode(m)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		again, err := Encode(m)
		require.NoError(t, err)
		require.Equal(t, b, again)
	})
}

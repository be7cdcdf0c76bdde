package descriptor

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// crc32c is the checksum bit by bit, from its polynomial (RFC 3720, 12.1).
func crc32c(b []byte) uint32 {
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0x82F63B78&-(crc&1)
		}
	}
	return ^crc
}

func mustEncode(t testing.TB, kind Kind, payload []byte) []byte {
	t.Helper()
	b, err := Encode(kind, payload)
	require.NoError(t, err)
	return b
}

// withSum makes a binary descriptor of any header, with a right checksum.
func withSum(version byte, kind Kind, size int, payload string) []byte {
	b := append([]byte("VRBN"), version, byte(kind))
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = append(b, payload...)
	return binary.BigEndian.AppendUint32(b, crc32c(b))
}

func TestEncodeLayout(t *testing.T) {
	require.Equal(t, uint32(0xE3069283), crc32c([]byte("123456789")), "the check value of CRC-32C")

	b := mustEncode(t, MemoryMap, []byte("Verbena"))
	assert.Equal(t, "5652424e"+"02"+"02"+"00000007"+"56657262656e61", hex.EncodeToString(b[:len(b)-4]))
	assert.Equal(t, crc32c(b[:len(b)-4]), binary.BigEndian.Uint32(b[len(b)-4:]))
}

func TestEncodeRefuses(t *testing.T) {
	for _, kind := range []Kind{0, 6, 255} {
		_, err := Encode(kind, nil)
		assert.ErrorIs(t, err, ErrKind)
	}
	_, err := Encode(Connection, make([]byte, MaxPayload+1))
	assert.ErrorIs(t, err, ErrTooBig)
	b, err := Encode(Connection, make([]byte, MaxPayload))
	require.NoError(t, err)
	text := Armor(b)
	assert.Less(t, len(text), MaxFile, "the largest descriptor fits into a file in both forms")
	_, err = Decode(Connection, []byte(text))
	assert.NoError(t, err)
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]Kind{Connection, MemoryMap, SyncEvent, Bundled}).Draw(t, "kind")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
		b, err := Encode(kind, payload)
		require.NoError(t, err)
		for _, form := range [][]byte{b, []byte(Armor(b)), []byte(Armor([]byte(Armor(b))))} {
			got, err := Decode(kind, form)
			require.NoError(t, err)
			require.True(t, bytes.Equal(payload, got))
			other := kind%4 + 1
			_, err = Decode(other, form)
			require.ErrorIs(t, err, ErrKind)
		}
	})
}

func TestDecodeErrors(t *testing.T) {
	whole := string(mustEncode(t, Connection, []byte("hello")))
	text := Armor([]byte(whole))
	lines := strings.Split(text, "\n")
	for name, c := range map[string]struct {
		in   string
		want error
	}{
		"empty":                     {"", ErrTruncated},
		"blank":                     {" \r\n\t", ErrTruncated},
		"magic cut short":           {"VR", ErrTruncated},
		"header cut short":          {whole[:8], ErrTruncated},
		"checksum cut short":        {whole[:len(whole)-1], ErrTruncated},
		"one byte more":             {whole + "\x00", ErrTrailing},
		"a line end after binary":   {whole + "\n", ErrTrailing},
		"two binary ones":           {whole + whole, ErrTrailing},
		"other content":             {"ELF and so on", ErrFormat},
		"other short content":       {"x", ErrFormat},
		"newer version":             {string(withSum(formatVersion+1, Connection, 5, "hello")), ErrVersion},
		"version zero":              {string(withSum(0, Connection, 5, "hello")), ErrVersion},
		"kind zero":                 {string(withSum(formatVersion, 0, 5, "hello")), ErrKind},
		"unknown kind":              {string(withSum(formatVersion, 77, 5, "hello")), ErrKind},
		"another kind":              {string(withSum(formatVersion, MemoryMap, 5, "hello")), ErrKind},
		"length too big":            {string(withSum(formatVersion, Connection, MaxPayload+1, "hello")), ErrTooBig},
		"length of all ones":        {string(withSum(formatVersion, Connection, -1, "hello")), ErrTooBig},
		"length above what follows": {string(withSum(formatVersion, Connection, 6, "hello")), ErrTruncated},
		"length below what follows": {string(withSum(formatVersion, Connection, 4, "hello")), ErrTrailing},
		"payload changed":           {strings.Replace(whole, "hello", "jello", 1), ErrChecksum},
		"no END line":               {lines[0] + "\n" + lines[1], ErrTruncated},
		"BEGIN line alone":          {lines[0], ErrTruncated},
		"nothing inside":            {lines[0] + "\n" + lines[2], ErrTruncated},
		"END first":                 {lines[2] + "\n" + text, ErrFormat},
		"foreign block":             {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", ErrFormat},
		"dashes missing":            {strings.Replace(text, "CONNECTION-----", "CONNECTION----", 1), ErrFormat},
		"other END line":            {strings.Replace(text, "END VERBENA CONNECTION", "END VERBENA MEMORY MAP", 1), ErrFormat},
		"label of another kind":     {strings.ReplaceAll(text, "CONNECTION", "MEMORY MAP"), ErrFormat},
		"unknown label":             {strings.ReplaceAll(text, "CONNECTION", "TELEPORT"), ErrKind},
		"no base64":                 {lines[0] + "\n" + "!" + lines[1] + "\n" + lines[2], ErrFormat},
		"blank inside a line":       {lines[0] + "\n" + lines[1][:3] + " " + lines[1][3:] + "\n" + lines[2], ErrFormat},
		"padding in the middle":     {lines[0] + "\nVg==\n" + lines[1] + "\n" + lines[2], ErrFormat},
		"a line missing":            {lines[0] + "\n" + lines[1][:4] + "\n" + lines[2], ErrTruncated},
		"two armored ones":          {text + text, ErrTrailing},
		"one begins in another":     {lines[0] + "\n" + text, ErrTruncated},
		"text behind":               {text + "thanks\n", ErrTrailing},
		"huge text":                 {lines[0] + strings.Repeat("\n", MaxFile) + "AAAA", ErrTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			payload, err := Decode(Connection, []byte(c.in))
			require.ErrorIs(t, err, c.want)
			assert.Nil(t, payload)
			assert.Contains(t, err.Error(), "connection descriptor")
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
		})
	}
}

func TestEveryPrefixIsTruncated(t *testing.T) {
	b := mustEncode(t, MemoryMap, []byte("some payload"))
	for n := range len(b) {
		_, err := Decode(MemoryMap, b[:n])
		require.ErrorIs(t, err, ErrTruncated, "%d bytes", n)
	}
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	b := mustEncode(t, MemoryMap, []byte("some payload"))
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		_, _, err := Parse(b)
		require.Error(t, err, "bit %d", bit)
		b[bit/8] ^= 1 << (bit % 8)
	}
	_, _, err := Parse(b)
	require.NoError(t, err)
}

func TestArmorLayout(t *testing.T) {
	b := mustEncode(t, MemoryMap, bytes.Repeat([]byte("0123456789"), 10))
	lines := strings.Split(Armor(b), "\n")
	require.Len(t, lines, 6)
	assert.Equal(t, "-----BEGIN VERBENA MEMORY MAP-----", lines[0])
	assert.Len(t, lines[1], 64)
	assert.Len(t, lines[2], 64)
	assert.Len(t, lines[3], 24)
	assert.Equal(t, "-----END VERBENA MEMORY MAP-----", lines[4])
	assert.Empty(t, lines[5])
}

func TestArmorSurvivesPasting(t *testing.T) {
	payload := bytes.Repeat([]byte("payload "), 40)
	text := Armor(mustEncode(t, Connection, payload))
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	inside := strings.Join(lines[1:len(lines)-1], "")
	for name, in := range map[string]string{
		"no last line end": strings.TrimSuffix(text, "\n"),
		"CRLF":             strings.ReplaceAll(text, "\n", "\r\n"),
		"indented":         "\t" + strings.ReplaceAll(text, "\n", " \n    "),
		"blank lines":      "\n\n" + strings.ReplaceAll(text, "\n", "\n\n"),
		"one line":         lines[0] + "\n" + inside + "\n" + lines[len(lines)-1],
		"narrow lines":     lines[0] + "\n" + inside[:7] + "\n" + inside[7:] + "\n" + lines[len(lines)-1],
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Decode(Connection, []byte(in))
			require.NoError(t, err)
			assert.Equal(t, payload, got)
			assert.Equal(t, text, Armor([]byte(in)), "Armor gives the standard layout back")
		})
	}
}

func TestArmorOfOtherBytesIsRefused(t *testing.T) {
	for _, b := range [][]byte{nil, []byte("not one"), withSum(formatVersion+1, Connection, 0, ""), withSum(formatVersion, 99, 0, "")} {
		_, _, err := Parse([]byte(Armor(b)))
		assert.ErrorIs(t, err, ErrKind)
	}
}

func TestKindNames(t *testing.T) {
	assert.Equal(t, "connection", Connection.String())
	assert.Equal(t, "memory map", MemoryMap.String())
	assert.Equal(t, "sync event", SyncEvent.String())
	assert.Equal(t, "kind 0", Kind(0).String())
	assert.Equal(t, "kind 200", Kind(200).String())
}

func FuzzParse(f *testing.F) {
	for _, kind := range []Kind{Connection, MemoryMap, SyncEvent, Bundled} {
		b := mustEncode(f, kind, []byte("a payload of a few bytes, enough for more than a line of base64"))
		f.Add(b)
		f.Add([]byte(Armor(b)))
		f.Add([]byte(strings.ReplaceAll(Armor(b), "\n", " \r\n\r\n ")))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		kind, payload, err := Parse(in)
		if err != nil {
			require.Nil(t, payload)
			return
		}
		b, err := Encode(kind, payload)
		require.NoError(t, err)
		if !bytes.HasPrefix(bytes.TrimSpace(in), []byte("-----")) {
			require.Equal(t, in, b, "there is one binary form")
		}
		require.Equal(t, Armor(b), Armor(in))
		again, err := Decode(kind, []byte(Armor(in)))
		require.NoError(t, err)
		require.True(t, bytes.Equal(payload, again))
	})
}

package greeting

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/descriptor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	aRequest    = Request{Token: Token{1, 2, 3}, Connections: 8, Landing: Landing{Addr: 1 << 40, RKey: 77, Size: 4096}, Length: 300}
	aFurther    = Further{Token: Token{4, 5}, Index: 7}
	anAccept    = Acceptance{Landing: Landing{Addr: 1<<63 + 1, RKey: 1, Size: 9}, Reports: true}
	aRefusal    = Refusal{Busy: true, Text: "später"}
	aReport     = Report{Token: Token{9}, OK: true}
	private     = [][]byte{aRequest.Encode(), aFurther.Encode(), anAccept.Encode(), FurtherAcceptance(), aRefusal.Encode(), aReport.Encode(), Acknowledgement()}
	readPrivate = []func(b []byte) ([]byte, error){
		func(b []byte) ([]byte, error) {
			q, f, err := ReadRequest(b)
			switch {
			case err != nil:
				return nil, err
			case q != nil:
				return q.Encode(), nil
			}
			return f.Encode(), nil
		},
		nil,
		func(b []byte) ([]byte, error) {
			a, err := ReadAcceptance(b)
			if err != nil {
				return nil, err
			}
			return a.Encode(), nil
		},
		func(b []byte) ([]byte, error) { return FurtherAcceptance(), CheckFurtherAcceptance(b) },
		func(b []byte) ([]byte, error) {
			r, err := ReadRefusal(b)
			if err != nil {
				return nil, err
			}
			return r.Encode(), nil
		},
		func(b []byte) ([]byte, error) {
			r, err := ReadReport(b)
			if err != nil {
				return nil, err
			}
			return r.Encode(), nil
		},
		func(b []byte) ([]byte, error) { return Acknowledgement(), CheckAcknowledgement(b) },
	}
)

func init() { readPrivate[1] = readPrivate[0] }

func TestRoundTrip(t *testing.T) {
	assert.LessOrEqual(t, len(private[0]), maxRequest)
	for i, b := range private {
		for j, f := range readPrivate {
			got, err := f(append(bytes.Clone(b), make([]byte, 60)...))
			if i == j || i+j == 1 {
				require.NoError(t, err)
				assert.Equal(t, b, got)
			} else {
				require.ErrorIs(t, err, descriptor.ErrFormat, "%d as %d", i, j)
			}
		}
	}
	q, _, err := ReadRequest(private[0])
	require.NoError(t, err)
	assert.Equal(t, &aRequest, q)
}

func TestStrict(t *testing.T) {
	for i, b := range private {
		read := readPrivate[i]
		for n := range len(b) {
			_, err := read(b[:n])
			require.Error(t, err, "%d of %d bytes", n, len(b))
		}
		_, err := read(append(bytes.Clone(b), 0, 0, 1))
		require.ErrorIs(t, err, descriptor.ErrFormat)
		_, err = read(append([]byte("VBNX"), b[4:]...))
		require.ErrorIs(t, err, descriptor.ErrFormat)
		other := bytes.Clone(b)
		other[4]++
		_, err = read(other)
		require.ErrorIs(t, err, descriptor.ErrVersion)
	}
	for _, b := range [][]byte{(&Request{}).Encode(), (&Further{}).Encode()} {
		_, _, err := ReadRequest(b)
		require.ErrorIs(t, err, descriptor.ErrFormat)
	}
	flag := aReport.Encode()
	flag[len(flag)-1] = 2
	_, err := ReadReport(flag)
	require.ErrorIs(t, err, descriptor.ErrFormat)
}

func TestRefusalIsCut(t *testing.T) {
	b := (&Refusal{Text: strings.Repeat("ü", 200)}).Encode()
	require.LessOrEqual(t, len(b), maxRefusal)
	r, err := ReadRefusal(b)
	require.NoError(t, err)
	assert.True(t, utf8.ValidString(r.Text))
	assert.Len(t, r.Text, MaxText-MaxText%2)
	long := (&Refusal{Text: strings.Repeat("x", MaxText)}).Encode()
	long[header+2]++
	_, err = ReadRefusal(append(long, 'x'))
	require.ErrorIs(t, err, descriptor.ErrFormat)
}

func TestWords(t *testing.T) {
	var b [WordSize]byte
	w, err := ReadWord(b)
	require.NoError(t, err)
	assert.Zero(t, w)
	for _, want := range []Word{{Complete, 7}, {Refused, 1}, {Names, 1 << 31}, {Kind: Confirmed}} {
		want.Encode(b[:])
		got, err := ReadWord(b)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		b[2]++
		_, err = ReadWord(b)
		require.ErrorIs(t, err, descriptor.ErrFormat)
	}
	for _, bad := range []Word{{Complete, 0}, {Confirmed, 1}, {9, 1}, {0, 1}} {
		bad.Encode(b[:])
		_, err := ReadWord(b)
		require.ErrorIs(t, err, descriptor.ErrFormat, "%v", bad)
	}
}

func FuzzPrivateData(f *testing.F) {
	for _, b := range private {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, read := range readPrivate {
			got, err := read(b)
			if err == nil {
				rest, ok := bytes.CutPrefix(b, got)
				require.True(t, ok, "it has one form")
				require.Equal(t, make([]byte, len(rest)), rest)
			}
		}
	})
}

func FuzzWord(f *testing.F) {
	f.Add([]byte{1, 'V', 'B', 'N', 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != WordSize {
			return
		}
		w, err := ReadWord([WordSize]byte(b))
		if err != nil || w == (Word{}) {
			return
		}
		var again [WordSize]byte
		w.Encode(again[:])
		require.Equal(t, b, again[:])
	})
}

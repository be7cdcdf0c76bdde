package frame

import (
	"bufio"
	"bytes"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/descriptor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var examples = []Frame{
	{From: "asker", To: "answerer"},
	{From: "a", To: "b", Responder: true, Run: "run", Seen: "seen", Outcome: Failed, Body: []byte("body")},
}

func encode(t testing.TB, f Frame) []byte {
	t.Helper()
	b, err := f.Encode()
	require.NoError(t, err)
	return b
}

func TestRoundTrip(t *testing.T) {
	var stream []byte
	for _, f := range examples {
		b := encode(t, f)
		got, err := Decode(b)
		require.NoError(t, err)
		assert.Equal(t, f, got)
		stream = append(stream, b...)
	}
	r := bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(stream)), MaxSize)
	for _, f := range examples {
		got, err := Read(r)
		require.NoError(t, err)
		assert.Equal(t, f, got)
	}
	_, err := Read(r)
	require.ErrorIs(t, err, io.EOF)
}

func TestReadRefuses(t *testing.T) {
	whole := encode(t, examples[1])
	read := func(b []byte) error {
		_, err := Read(bufio.NewReaderSize(bytes.NewReader(b), MaxSize))
		return err
	}
	for n := 1; n < len(whole); n++ {
		require.ErrorIs(t, read(whole[:n]), io.ErrUnexpectedEOF, "%d bytes", n)
	}
	require.ErrorIs(t, read([]byte("GET / HTTP/1.1\r\n\r\n")), descriptor.ErrFormat)
	require.ErrorIs(t, read([]byte("V\n")), descriptor.ErrFormat, "a line is refused at once")
	huge := bytes.Clone(whole)
	huge[6] = 0xff
	require.ErrorIs(t, read(huge), descriptor.ErrTooBig)
	damaged := bytes.Clone(whole)
	damaged[20]++
	require.ErrorIs(t, read(damaged), descriptor.ErrChecksum)

	for _, f := range []Frame{{From: "a"}, {From: "a", To: "b", Body: make([]byte, descriptor.MaxPayload)}} {
		_, err := f.Encode()
		require.Error(t, err)
	}
	for _, f := range []Frame{{From: "a", To: "b", Outcome: 3}, {From: "a", To: "b", Run: string(make([]byte, MaxToken+1))}} {
		_, err := Decode(encode(t, f))
		require.ErrorIs(t, err, descriptor.ErrFormat)
	}
	c, err := descriptor.Encode(descriptor.Connection, nil)
	require.NoError(t, err)
	b, err := (&descriptor.Bundle{From: "a", To: "b", Connections: [][]byte{c}}).Encode()
	require.NoError(t, err)
	_, err = Decode(b)
	require.ErrorIs(t, err, descriptor.ErrFormat)
}

// A frame that is cut off by a deadline can be read when the rest has come.
func TestReadAgain(t *testing.T) {
	whole := encode(t, examples[1])
	in, out := io.Pipe()
	go func() {
		_, _ = out.Write(whole[:20])
		_, _ = out.Write(whole[20:])
	}()
	r := bufio.NewReaderSize(iotest.TimeoutReader(in), MaxSize) // the second read fails
	_, err := Read(r)
	require.ErrorIs(t, err, iotest.ErrTimeout)
	got, err := Read(r)
	require.NoError(t, err)
	assert.Equal(t, examples[1], got)
}

func FuzzDecode(f *testing.F) {
	for _, e := range examples {
		b := encode(f, e)
		bundle, err := descriptor.DecodeBundle(b)
		require.NoError(f, err)
		f.Add(bundle.Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := (&descriptor.Bundle{From: "a", To: "b", Data: data}).Encode()
		if err != nil {
			return
		}
		got, err := Decode(b)
		if err != nil {
			return
		}
		require.Equal(t, b, encode(t, got), "a frame has one form")
	})
}

func FuzzRead(f *testing.F) {
	for _, e := range examples {
		f.Add(encode(f, e))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Read(bufio.NewReaderSize(bytes.NewReader(b), MaxSize))
		if err == nil {
			require.True(t, bytes.HasPrefix(b, encode(t, got)))
		}
	})
}

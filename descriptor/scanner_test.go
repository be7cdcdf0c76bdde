package descriptor

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestScannerTakesOneAfterTheOther(t *testing.T) {
	conn := mustEncode(t, Connection, []byte("first"))
	memory := mustEncode(t, MemoryMap, bytes.Repeat([]byte("second"), 30))
	in := "Here they are:\r\n\r\n  " + strings.ReplaceAll(Armor(conn), "\n", "\r\n") +
		"and\n" + strings.Repeat("long ", MaxFile) + "\n" + strings.TrimSuffix(Armor(memory), "\n")
	for name, r := range map[string]io.Reader{
		"at once":      strings.NewReader(in),
		"byte by byte": iotest.OneByteReader(strings.NewReader(in)),
		"data and EOF": iotest.DataErrReader(strings.NewReader(in)),
	} {
		t.Run(name, func(t *testing.T) {
			s := NewScanner(r)
			kind, b, err := s.Next()
			require.NoError(t, err)
			assert.Equal(t, Connection, kind)
			assert.Equal(t, conn, b)
			kind, b, err = s.Next()
			require.NoError(t, err)
			assert.Equal(t, MemoryMap, kind)
			assert.Equal(t, memory, b)
			for range 2 {
				_, _, err = s.Next()
				require.Equal(t, io.EOF, err)
			}
		})
	}
}

// A person who has pasted a descriptor waits for the answer before pasting more.
func TestScannerNeedsNothingBehindTheEndLine(t *testing.T) {
	r, w := io.Pipe()
	conn := mustEncode(t, Connection, []byte("first"))
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(w, Armor(conn))
		written <- err
	}()
	_, b, err := NewScanner(r).Next()
	require.NoError(t, err)
	assert.Equal(t, conn, b)
	require.NoError(t, <-written)
	require.NoError(t, w.Close())
}

func TestScannerGoesOnBehindBadBlocks(t *testing.T) {
	good := mustEncode(t, Connection, []byte("good"))
	text := Armor(good)
	lines := strings.Split(text, "\n")
	for name, c := range map[string]struct {
		bad  string
		want error
	}{
		"damaged":     {lines[0] + "\n????\n" + lines[2] + "\n", ErrFormat},
		"no END line": {lines[0] + "\n" + lines[1] + "\n", ErrTruncated},
		"other label": {strings.ReplaceAll(text, "CONNECTION", "SYNC EVENT"), ErrFormat},
		"too long":    {lines[0] + "\n" + strings.Repeat(strings.Repeat("A", 1000)+"\n", 100) + lines[2] + "\n", ErrTooBig},
		"long line":   {lines[0] + "\n" + strings.Repeat("A", 3*MaxFile) + "\n" + lines[2] + "\n", ErrTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewScanner(strings.NewReader(c.bad + text))
			_, b, err := s.Next()
			require.ErrorIs(t, err, c.want)
			assert.Nil(t, b)
			_, b, err = s.Next()
			require.NoError(t, err)
			assert.Equal(t, good, b)
			_, _, err = s.Next()
			require.Equal(t, io.EOF, err)
		})
	}
}

func TestScannerEnds(t *testing.T) {
	_, _, err := NewScanner(strings.NewReader("nothing\nhere")).Next()
	require.Equal(t, io.EOF, err)

	begun := "-----BEGIN VERBENA CONNECTION-----\nVlJC"
	s := NewScanner(strings.NewReader(begun))
	_, _, err = s.Next()
	require.ErrorIs(t, err, ErrTruncated)
	_, _, err = s.Next()
	require.Equal(t, io.EOF, err)

	broken := errors.New("broken")
	_, _, err = NewScanner(io.MultiReader(strings.NewReader(begun+"\n"), iotest.ErrReader(broken))).Next()
	require.ErrorIs(t, err, broken)
	_, _, err = NewScanner(iotest.ErrReader(broken)).Next()
	require.ErrorIs(t, err, broken)
}

func FuzzScanner(f *testing.F) {
	b := mustEncode(f, Connection, []byte("a payload"))
	f.Add([]byte(Armor(b) + Armor(b)))
	f.Add([]byte("x\r\n" + Armor(b)[:60] + "\n" + Armor(b)))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := NewScanner(bytes.NewReader(in))
		// Each call takes at least a line, so it ends.
		for range bytes.Count(in, []byte("\n")) + 2 {
			kind, b, err := s.Next()
			if err == io.EOF {
				return
			}
			if err == nil {
				_, err = Decode(kind, b)
				require.NoError(t, err)
			}
		}
		t.Fatal("no end")
	})
}

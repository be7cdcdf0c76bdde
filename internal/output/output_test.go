package output

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type full struct{ room int }

var errFull = errors.New("full")

func (f *full) Write(b []byte) (int, error) {
	if len(b) > f.room {
		return 0, errFull
	}
	f.room -= len(b)
	return len(b), nil
}

func TestWriter(t *testing.T) {
	o := New(&full{room: 3})
	assert.Same(t, o, New(o))
	_, err := io.WriteString(o, "abc")
	require.NoError(t, err)
	require.NoError(t, o.Err())
	_, err = io.WriteString(o, "d")
	require.ErrorIs(t, err, errFull)
	_, err = o.Write(nil)
	require.NoError(t, err)
	require.ErrorIs(t, o.Err(), errFull, "the first error stays")
}

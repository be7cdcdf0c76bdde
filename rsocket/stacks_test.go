package rsocket

import (
	"bytes"
	"errors"
	"strconv"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// Stacks like those of Listen and Dial log where they are told to.
func TestSetLogger(t *testing.T) {
	known := defaults
	defaults = newStacks("", Config{}, false) // those of another test may be open
	defer func() { defaults = known }()
	var record bytes.Buffer
	SetLogger(zerolog.New(zerolog.SyncWriter(&record)))
	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, errors.Join(l.Close(), defaults.Close()))
	require.Contains(t, record.String(), `"context":"rsocket"`)
	require.Contains(t, record.String(), `"message":"state changed"`)
}

// Of devices that are used no longer, the last 64 have totals of their own, and the others have them
// together.
func TestFormerDevices(t *testing.T) {
	set := NewStacks("", Config{})
	l, err := set.Listen("127.0.0.1:0")
	require.NoError(t, err)
	c, err := set.Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	stack := c.stack
	require.NoError(t, errors.Join(c.Close(), l.Close(), set.Close()))
	require.EqualValues(t, 1, stack.Counters().Dialled)
	const n = 1000
	var counted counted
	for i := range n {
		counted.add(strconv.Itoa(i), stack)
		counted.remove(stack)
	}
	list, sum := counted.all()
	require.Len(t, list, maxUnused)
	for _, d := range list {
		i, err := strconv.Atoi(d.device)
		require.NoError(t, err)
		require.GreaterOrEqual(t, i, n-maxUnused)
		sum.Dialled += d.closed.Dialled
	}
	require.EqualValues(t, n, sum.Dialled)
}

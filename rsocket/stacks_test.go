package rsocket

import (
	"bytes"
	"errors"
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

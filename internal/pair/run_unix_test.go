//go:build unix

package pair

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripts makes programs of shell scripts, in a folder.
func scripts(t *testing.T, texts map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range texts {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+text), 0o700))
	}
	return folder
}

// Each program reads what the other prints, and ends with it.
func TestStdio(t *testing.T) {
	p := Pair{Requester: "a", Responder: "b"}
	r, err := Run(t.Context(), p, Options{Way: Stdio, Bin: scripts(t, map[string]string{
		"a": "echo from a; read word; echo a read $word >&2; cat >&2",
		"b": "read word; echo b read $word >&2; echo $word back; exit 3",
	})})
	require.NoError(t, err)
	assert.Equal(t, "from a\n", r.Requester.Stdout)
	assert.Equal(t, "a read from a back\n", r.Requester.Stderr)
	assert.Equal(t, "b read from a\n", r.Responder.Stderr)
	assert.Equal(t, [2]int{0, 3}, [2]int{r.Requester.Code, r.Responder.Code})
}

// When the context ends, both are asked to stop.
func TestStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := Pair{Requester: "a", Responder: "b"}
	bin := scripts(t, map[string]string{"a": "sleep infinity", "b": "sleep infinity"})
	_, err := Run(ctx, p, Options{Way: Group, Bin: bin})
	require.ErrorIs(t, err, context.Canceled)
	_, err = Run(t.Context(), Pair{Requester: "a", Responder: "none"}, Options{Way: Group, Bin: bin})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The client of an example gets the address that the server prints.
func TestExamplePrints(t *testing.T) {
	bin := scripts(t, map[string]string{
		"server": "echo 1.2.3.4:5; sleep infinity", "client": "echo $@; exit 2", "silent": "exit 1",
	})
	r, err := Example{Server: "server", Client: "client", Printed: true}.Run(t.Context(), Options{Bin: bin, Address: "x"})
	require.ErrorContains(t, err, "client ended with code 2")
	assert.Equal(t, "1.2.3.4:5\n", r.Requester.Stdout)
	assert.Equal(t, -1, r.Responder.Code)
	_, err = Example{Server: "silent", Client: "client", Printed: true}.Run(t.Context(), Options{Bin: bin, Address: "x"})
	require.ErrorContains(t, err, "it ended, and did not print its address")
}

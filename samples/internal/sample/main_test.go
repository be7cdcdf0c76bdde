package sample

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var requesterProgram = Program{Name: "asker", Role: Requester, Peer: "answerer", Memory: ImportsMemory}

// newSession parses a command line; input is the standard input.
func newSession(t *testing.T, p Program, input io.Reader, args ...string) (*Session, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	s, err := parse(p, append([]string{"-l", "error"}, args...), stdio{in: input, out: &out, err: io.Discard})
	require.NoError(t, err)
	return s, &out
}

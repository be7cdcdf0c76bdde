package analyse

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/soft/capture"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const broken = "../../../../soft/capture/testdata/broken.pcap"

func run(args ...string) (code int, stdout, stderr string) {
	var out, errors bytes.Buffer
	code = Main(context.Background(), args, &out, &errors)
	return code, out.String(), errors.String()
}

// TestDocument: the document shows what the program prints.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/software-device.md")
	require.NoError(t, err)
	code, out, stderr := run(broken)
	require.Equal(t, exit.OK, code, stderr)
	_, shown, found := strings.Cut(string(text), "$ bin/verbena analyse soft/capture/testdata/broken.pcap\n")
	require.True(t, found)
	shown, _, _ = strings.Cut(shown, "```")
	for _, part := range strings.Split(shown, "...\n") { // what is left out
		assert.Contains(t, out, part)
	}
}

func TestJSON(t *testing.T) {
	code, out, _ := run("-json", broken)
	require.Equal(t, exit.OK, code)
	var r capture.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Connections, 3)
	assert.EqualValues(t, 7, r.Connections[1].Sent[0].LostAfter)
	assert.Equal(t, "REJ", r.Connections[0].Events[1].Message)
}

// TestVerbose: with -v there are details of connections without a problem.
func TestVerbose(t *testing.T) {
	const healthy = "../../../../soft/internal/roce/wire/testdata/rxe.pcap"
	code, out, _ := run(healthy)
	require.Equal(t, exit.OK, code)
	assert.NotContains(t, out, "outcome")
	_, out, _ = run("-v", healthy)
	assert.Contains(t, out, "outcome")
}

func TestTruncated(t *testing.T) {
	b, err := os.ReadFile(broken)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "cut.pcap")
	require.NoError(t, os.WriteFile(path, b[:len(b)-100], 0o600))
	code, out, stderr := run(path)
	require.Equal(t, exit.Failed, code)
	assert.Contains(t, out, "3 connections")
	assert.Contains(t, stderr, "truncated")
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"a", "b"}, {"-nothing", "a"}} {
		code, _, stderr := run(args...)
		require.Equal(t, exit.Usage, code)
		require.Contains(t, stderr, "verbena analyse:")
	}
	code, _, stderr := run("-help")
	require.Equal(t, exit.OK, code)
	require.Contains(t, stderr, "usage: verbena analyse")
	code, _, stderr = run("/nonexistent")
	require.Equal(t, exit.Failed, code)
	require.Contains(t, stderr, "nonexistent")
}

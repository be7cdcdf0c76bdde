package analyse

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/exit"
	"github.com/verbena-rdma/verbena/internal/interrupt"
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

// TestInterrupted: a file is read no further. A pipe is read to its end, which the
// program that writes it has been told to bring.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(interrupt.Error{Signal: syscall.SIGINT})
	var out, errors bytes.Buffer
	require.Equal(t, 130, Main(ctx, []string{broken}, &out, &errors))
	assert.Empty(t, out.String())
	assert.Contains(t, errors.String(), "interrupted by signal")

	input := os.Stdin
	defer func() { os.Stdin = input }()
	var err error
	os.Stdin, err = os.Open(broken)
	require.NoError(t, err)
	defer func() { _ = os.Stdin.Close() }()
	out.Reset()
	errors.Reset()
	require.Equal(t, exit.OK, Main(ctx, []string{"-"}, &out, &errors), errors.String())
	_, whole, _ := run(broken)
	assert.Equal(t, whole, out.String())
	assert.Empty(t, errors.String())
}

// TestUnreadable: the cause is shown, and no table of nothing.
func TestUnreadable(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("these are words, and no capture at all\n"), 0o600))
	for path, want := range map[string]string{t.TempDir(): "directory", text: "pcap"} {
		for _, args := range [][]string{{path}, {"-json", path}} {
			code, out, stderr := run(args...)
			require.Equal(t, exit.Failed, code)
			assert.Empty(t, out)
			assert.Contains(t, stderr, want)
			assert.NotContains(t, stderr, "above")
		}
	}
}

// TestRefusals: the reasons of NAKs are in order.
func TestRefusals(t *testing.T) {
	c := &capture.Connection{}
	c.Sent[0] = capture.Direction{Packets: 1, NAKs: map[string]int64{}}
	var want []string
	for reason := 'a'; reason < 'k'; reason++ {
		c.Sent[0].NAKs[string(reason)] = 1
		want = append(want, "1 NAKs: "+string(reason))
	}
	var out bytes.Buffer
	details(&out, 1, c)
	assert.Contains(t, out.String(), strings.Join(want, ", "))
}

// TestNotes: the table says which packets it lacks.
func TestNotes(t *testing.T) {
	var out bytes.Buffer
	show(&out, &capture.Report{Ignored: capture.Ignored{Blocks: 7}}, false)
	assert.Contains(t, out.String(), "7 packets in Simple or obsolete Packet Blocks")
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"a", "b"}, {"-nothing", "a"}} {
		code, _, stderr := run(args...)
		require.Equal(t, exit.Usage, code)
		require.Contains(t, stderr, "verbena analyse:")
	}
	code, stdout, _ := run("-help")
	require.Equal(t, exit.OK, code)
	require.Contains(t, stdout, "usage: verbena analyse")
	code, _, stderr := run("/nonexistent")
	require.Equal(t, exit.Failed, code)
	require.Contains(t, stderr, "nonexistent")
}

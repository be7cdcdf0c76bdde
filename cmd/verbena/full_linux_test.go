package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/process"
)

// onFull is start for a program whose standard output takes nothing.
func onFull(t *testing.T, command ...string) *process.Process {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = full.Close() })
	return startOn(t, full, command...)
}

// Output that cannot be written is not done; a message is not lost without a word.
func TestFullOutput(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"help"}} {
		p := onFull(t, verbena(t, nil, args...)...)
		assert.Equal(t, 1, p.Code(), args)
		assert.Contains(t, p.Stderr.String(), "no space left on device")
	}
	r := onFull(t, verbena(t, nil, "receive", "-l", "127.0.0.1:0", "-once", t.TempDir())...)
	r.Await("listening on ")
	_, rest, _ := strings.Cut(r.Stderr.String(), "listening on ")
	addr, _, _ := strings.Cut(rest, " ")
	s := start(t, verbena(t, nil, "send", "-m", "hello", addr)...)
	assert.Equal(t, 7, s.Code(), "%s", s.Stderr)
	assert.Contains(t, s.Stderr.String(), "cannot print the message")
	assert.Equal(t, 7, r.Code(), "%s", r.Stderr)
}

// Every command that a signal ends says so by its exit code.
func TestSignals(t *testing.T) {
	for signal, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		for _, c := range []struct {
			args []string
			text string
		}{
			{[]string{"ping", "-s", "-d", "soft-lo", "-p", "7175"}, "interrupt to stop"},
			{[]string{"perf", "-d", "soft-lo", "-bind", "127.0.0.1", "-p", "0"}, "interrupt to stop"},
			{[]string{"receive", "-l", "127.0.0.1:0", t.TempDir()}, "listening on"},
		} {
			p := start(t, verbena(t, nil, c.args...)...)
			p.Await(c.text)
			p.Send(signal)
			assert.Equal(t, code, p.Code(), "%v: %s", c.args, p.Stderr)
		}
	}
	server := start(t, verbena(t, nil, "ping", "-s", "-d", "soft-lo", "-p", "7176")...)
	server.Await("interrupt to stop")
	client := start(t, verbena(t, nil, "ping", "-c", "0", "-d", "soft-lo", "-p", "7176", "127.0.0.1")...)
	client.Await("round")
	client.Send(syscall.SIGINT)
	assert.Equal(t, 130, client.Code(), "%s", client.Stderr)
	assert.NotContains(t, client.Stderr.String(), "FAILED")
}

package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onFull is start for a program whose standard output takes nothing.
func onFull(t *testing.T, command ...string) *process {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = full.Close() })
	return startOn(t, full, command...)
}

// Output that cannot be written is not done; a message is not lost without a word.
func TestFullOutput(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"help"}} {
		p := onFull(t, verbena(nil, args...)...)
		assert.Equal(t, 1, p.code(), args)
		assert.Contains(t, p.out.String(), "no space left on device")
	}
	r := onFull(t, verbena(nil, "receive", "-l", "127.0.0.1:0", "-once", t.TempDir())...)
	r.await("listening on ")
	_, rest, _ := strings.Cut(r.out.String(), "listening on ")
	addr, _, _ := strings.Cut(rest, " ")
	s := start(t, verbena(nil, "send", "-m", "hello", addr)...)
	assert.Equal(t, 7, s.code(), "%s", &s.out)
	assert.Contains(t, s.out.String(), "cannot print the message")
	assert.Equal(t, 7, r.code(), "%s", &r.out)
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
			p := start(t, verbena(nil, c.args...)...)
			p.await(c.text)
			require.NoError(t, p.cmd.Process.Signal(signal))
			assert.Equal(t, code, p.code(), "%v: %s", c.args, &p.out)
		}
	}
	server := start(t, verbena(nil, "ping", "-s", "-d", "soft-lo", "-p", "7176")...)
	server.await("interrupt to stop")
	client := start(t, verbena(nil, "ping", "-c", "0", "-d", "soft-lo", "-p", "7176", "127.0.0.1")...)
	client.await("round")
	require.NoError(t, client.cmd.Process.Signal(syscall.SIGINT))
	assert.Equal(t, 130, client.code(), "%s", &client.out)
	assert.NotContains(t, client.out.String(), "FAILED")
}

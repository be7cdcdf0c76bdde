package samples

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onFull runs a program with a full device as its standard output.
func onFull(t *testing.T, command ...string) *process {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = full.Close() })
	p := &process{t: t, cmd: exec.Command(filepath.Join(bin, command[0]), command[1:]...)}
	p.cmd.Stdout, p.cmd.Stderr = full, &p.stderr
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// A program fails if its output cannot be written.
func TestFullOutput(t *testing.T) {
	for _, command := range [][]string{
		{"device_info"}, {"device_info", "-version"}, {"graph", "-h"}, {"graph"}, {"pe_event"}, {"pe_polling"}, {"pe_reactive"}, {"pe_multi_context"},
		{"pe_async_stop"}, {"pe_task_error"}, {"pe_task_resubmit"}, {"pe_task_try_submit"}, {"pe_single_task_comp_cb"}, {"sync_event_local"},
		{"verbs_rc_pingpong", "-h"}, {"verbs_ud_pingpong", "--version"},
	} {
		p := onFull(t, command...)
		assert.Equal(t, 1, p.code(), command)
		assert.Contains(t, p.lastLine(), "no space left on device", command)
	}

	scratch := t.TempDir()
	receiver := onFull(t, "rdma_receive", "-oob", "dir:"+scratch, "-timeout", patience)
	sender := start(t, "rdma_send", "-oob", "dir:"+scratch, "-timeout", patience)
	assert.Equal(t, 1, receiver.code())
	assert.Contains(t, receiver.lastLine(), "no space left on device")
	assert.Zero(t, sender.code(), sender.stderr.String()) // it has sent

	port := freePort(t)
	server := onFull(t, "verbs_rc_pingpong", "-d", "soft-lo", "-p", port, "-n", "10")
	server.await("waiting for a client")
	client := startPingPong(t, "rc", "-d", "soft-lo", "-p", port, "-n", "10", "localhost")
	assert.Equal(t, 1, server.code())
	assert.Zero(t, client.code(), client.said())
}

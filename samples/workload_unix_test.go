//go:build unix

package samples

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/pair"
)

// The survivor of a pair ends with an error of its own. The responder's device stands
// still when it has filled the pipe into which it writes its packets, so that the
// transfer cannot end before the responder is killed.
func TestPeerKilled(t *testing.T) {
	scratch, pipe := t.TempDir(), filepath.Join(t.TempDir(), "packets")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	require.NoError(t, err)
	defer reader.Close()
	p := workload(t, "write")
	o := pair.Options{Bin: bin, Scratch: scratch, Way: pair.Dir, Size: 4 << 20,
		RequesterArgs: []string{"-timeout", patience}, ResponderArgs: []string{"-timeout", patience, "-d", "soft-lo?capture=" + pipe}}
	requesterCommand, responderCommand, err := o.Commands(p)
	require.NoError(t, err)
	responder, requester := start(t, responderCommand...), start(t, requesterCommand...)
	requester.await("write submitted")
	responder.signal(syscall.SIGKILL)
	assert.Equal(t, -1, responder.code())
	assert.Equal(t, 1, requester.code())
	assert.Contains(t, requester.lastLine(), "transport retry count exceeded")
	assert.Empty(t, requester.stdout.String())
}

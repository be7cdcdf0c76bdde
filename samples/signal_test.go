//go:build unix

package samples

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/samples/internal/pair"
)

// A program that waits, and one that is connected, stop at a signal and leave
// nothing.
func TestInterrupt(t *testing.T) {
	tests := map[string]struct {
		args    []string
		connect bool
		signal  syscall.Signal
		code    int
	}{
		"waiting, dir":     {[]string{"-oob", "dir:."}, false, syscall.SIGINT, 130},
		"waiting, tcp":     {[]string{"-oob", "tcp:127.0.0.1:0"}, false, syscall.SIGINT, 130},
		"waiting, files":   {[]string{"-ld", "./a", "-re", "./b", "-m", "./c"}, false, syscall.SIGINT, 130},
		"waiting, stdio":   {[]string{"-oob", "stdio"}, false, syscall.SIGTERM, 143},
		"connected, dir":   {[]string{"-oob", "dir:."}, true, syscall.SIGTERM, 143},
		"connected, files": {[]string{"-ld", "./a", "-re", "./b", "-m", "./c"}, true, syscall.SIGINT, 130},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			scratch := t.TempDir()
			in := func(args []string) []string {
				var list []string
				for _, a := range args {
					if a == "dir:." {
						a = "dir:" + scratch
					} else if strings.HasPrefix(a, "./") {
						a = filepath.Join(scratch, a)
					}
					list = append(list, a)
				}
				return list
			}
			responder := start(t, append([]string{"rdma_write_responder"}, in(test.args)...)...)
			responder.await("waiting for the descriptors")
			if test.connect {
				// A requester that is stopped in the middle: the responder gets to know.
				args := test.args
				if args[0] == "-ld" {
					args = []string{"-ld", "./b", "-re", "./a", "-m", "./c"}
				}
				requester := start(t, append([]string{"rdma_write_requester", "-size", "4096", "-d", "soft-lo?loss=1"}, in(args)...)...)
				requester.await("waiting for the connection")
				requester.signal(syscall.SIGTERM)
				assert.Equal(t, 143, requester.code())
				assert.Equal(t, "rdma_write_requester: interrupted by signal: terminated", requester.lastLine())
				assert.NotContains(t, requester.stderr.String(), "goroutine")
			}
			responder.signal(test.signal)
			assert.Equal(t, test.code, responder.code())
			assert.Equal(t, "rdma_write_responder: interrupted by signal: "+test.signal.String(), responder.lastLine())
			assert.Empty(t, list(t, scratch))
		})
	}
}

// The survivor of a pair ends with an error of its own.
func TestPeerKilled(t *testing.T) {
	scratch := t.TempDir()
	p := byName(t, "rdma_write_requester")
	o := pair.Options{Bin: bin, Scratch: scratch, Way: pair.Dir, Size: 256 << 20,
		RequesterArgs: []string{"-timeout", patience}, ResponderArgs: []string{"-timeout", patience, "-d", "soft-lo?reorder=0.01"}}
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

// What a killed program has left behind does not mislead the next one.
func TestLeftovers(t *testing.T) {
	for _, requesterFirst := range []bool{false, true} {
		p := byName(t, "rdma_read_requester")
		scratch := t.TempDir()
		o := pair.Options{Bin: bin, Scratch: scratch, Way: pair.Dir, RequesterArgs: []string{"-timeout", patience}, ResponderArgs: []string{"-timeout", patience}}
		requesterCommand, responderCommand, err := o.Commands(p)
		require.NoError(t, err)

		// Both have met when they are killed.
		requester := start(t, append(requesterCommand, "-d", "soft-lo?loss=1")...)
		responder := start(t, responderCommand...)
		requester.await("waiting for the connection")
		responder.await("waiting for the connection")
		for _, p := range []*process{requester, responder} {
			p.signal(syscall.SIGKILL)
			assert.Equal(t, -1, p.code())
		}
		assert.Len(t, list(t, scratch), 2)

		commands := [][]string{responderCommand, requesterCommand}
		if requesterFirst {
			commands[0], commands[1] = commands[1], commands[0]
		}
		first := start(t, commands[0]...)
		first.await("waiting for the descriptors")
		second := start(t, commands[1]...)
		assert.Zero(t, first.code(), "%s", first.stderr.String())
		assert.Zero(t, second.code(), "%s", second.stderr.String())
		assert.Empty(t, list(t, scratch))
	}
}

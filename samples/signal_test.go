//go:build unix

package samples

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/pair"
)

// A program that waits, and one that is connecting, stop at a signal and leave no file.
func TestInterrupt(t *testing.T) {
	files := []string{"-ld", "./a", "-re", "./b", "-m", "./c"}
	for name, test := range map[string]struct {
		args   []string
		signal syscall.Signal
		code   int
	}{
		"dir":   {[]string{"-oob", "dir:."}, syscall.SIGINT, 130},
		"tcp":   {[]string{"-oob", "tcp:127.0.0.1:0"}, syscall.SIGINT, 130},
		"files": {files, syscall.SIGINT, 130},
		"stdio": {[]string{"-oob", "stdio"}, syscall.SIGTERM, 143},
	} {
		t.Run("waiting, "+name, func(t *testing.T) {
			scratch := t.TempDir()
			responder := start(t, append([]string{"rdma_write_responder"}, inFolder(scratch, test.args)...)...)
			responder.await("waiting for the descriptors")
			responder.interrupted(test.signal, test.code)
			assert.Empty(t, list(t, scratch))
		})
	}
	for name, args := range map[string][]string{"dir": {"-oob", "dir:."}, "files": files} {
		for _, first := range []string{"requester", "responder"} {
			t.Run(first+" connecting, "+name, func(t *testing.T) {
				scratch := t.TempDir()
				responder := start(t, append([]string{"rdma_write_responder"}, inFolder(scratch, args)...)...)
				requester := connecting(t, scratch, args)
				responder.await("waiting for the connection")
				stopped, other := requester, responder
				if first == "responder" {
					stopped, other = responder, requester
				}
				stopped.interrupted(syscall.SIGTERM, 143)
				_ = other.cmd.Process.Signal(syscall.SIGTERM) // it may have noticed, and ended
				assert.NotZero(t, other.code())
				assert.Empty(t, list(t, scratch))
			})
		}
	}
}

// inFolder puts the paths among the arguments of a program into a folder.
func inFolder(folder string, args []string) (list []string) {
	for _, a := range args {
		if a == "dir:." {
			a = "dir:" + folder
		} else if strings.HasPrefix(a, "./") {
			a = filepath.Join(folder, a)
		}
		list = append(list, a)
	}
	return list
}

// connecting starts the requester for a responder with these arguments. It has the
// responder's descriptors, but its packets do not reach the responder.
func connecting(t *testing.T, scratch string, args []string) *process {
	t.Helper()
	if args[0] == "-ld" {
		args = []string{"-ld", "./b", "-re", "./a", "-m", "./c"}
	}
	p := start(t, append([]string{"rdma_write_requester", "-d", "soft-lo?loss=1"}, inFolder(scratch, args)...)...)
	p.await("waiting for the connection")
	return p
}

// interrupted sends the program a signal, which must end it.
func (p *process) interrupted(s syscall.Signal, code int) {
	p.t.Helper()
	p.signal(s)
	assert.Equal(p.t, code, p.code())
	assert.Equal(p.t, filepath.Base(p.cmd.Args[0])+": interrupted by signal: "+s.String(), p.lastLine())
	assert.NotContains(p.t, p.stderr.String(), "goroutine")
}

// Files that a killed program left behind do not mislead the next one.
func TestLeftovers(t *testing.T) {
	for _, requesterFirst := range []bool{false, true} {
		p := byName(t, "rdma_read_requester")
		scratch := t.TempDir()
		o := pair.Options{Bin: bin, Scratch: scratch, Way: pair.Dir, RequesterArgs: []string{"-timeout", patience}, ResponderArgs: []string{"-timeout", patience}}
		requesterCommand, responderCommand, err := o.Commands(p)
		require.NoError(t, err)

		// Both have exchanged descriptors when they are killed.
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

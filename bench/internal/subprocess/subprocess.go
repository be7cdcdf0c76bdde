// Package subprocess starts this program again, as another process with pipes to it.
package subprocess

import (
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
)

// Process is another process. Its standard error is that of this one.
type Process struct {
	*exec.Cmd
	In  io.WriteCloser // its standard input
	Out io.Reader      // its standard output, until Wait
}

// Start starts this program with arguments, behind words such as those that enter a network
// namespace. The process has files as descriptor 3 and following. It is killed when ctx ends.
func Start(ctx context.Context, prefix, args []string, files ...*os.File) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	words := slices.Concat(prefix, []string{self}, args)
	p := &Process{Cmd: exec.CommandContext(ctx, words[0], words[1:]...)}
	p.Stderr, p.ExtraFiles = os.Stderr, files
	if p.Out, err = p.StdoutPipe(); err == nil {
		p.In, err = p.StdinPipe()
	}
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Kill kills the process, and waits until it has ended.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

package pair

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Side is the result of one program.
type Side struct {
	Command []string
	Stdout  string
	Stderr  string
	Code    int // -1 if it was killed
}

// Result is the result of a pair.
type Result struct {
	Requester, Responder Side
	Elapsed              time.Duration

	pair Pair
	size int // the requested size
}

// killDelay is how long a program may take to stop after a signal.
const killDelay = 5 * time.Second

// Run runs a pair. When ctx ends, it stops both programs. It returns an error only if
// the programs could not be started; the Result says how they ended.
func Run(ctx context.Context, p Pair, o Options) (Result, error) {
	if o.Way == TCP && o.Address == "" {
		var err error
		if o.Address, err = freeAddress(); err != nil {
			return Result{}, err
		}
	}
	requester, responder, err := o.Commands(p)
	if err != nil {
		return Result{}, err
	}
	a, b := newProcess(ctx, requester), newProcess(ctx, responder)
	if o.Way == Stdio {
		if err := errors.Join(a.pipeTo(b), b.pipeTo(a)); err != nil {
			return Result{}, err
		}
	}
	start := time.Now()
	if err := a.cmd.Start(); err != nil {
		return Result{}, err
	}
	var both sync.WaitGroup
	both.Go(a.wait)
	if err = b.cmd.Start(); err == nil {
		both.Go(b.wait)
	} else {
		_ = a.cmd.Process.Kill()
	}
	both.Wait()
	return Result{Requester: a.side(), Responder: b.side(), Elapsed: time.Since(start), pair: p, size: o.Size}, err
}

// freeAddress returns a TCP address that is free now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

type process struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	pipe           io.WriteCloser // the other program's standard input
}

func newProcess(ctx context.Context, command []string) *process {
	p := &process{cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = killDelay
	return p
}

// pipeTo copies the output of p to the standard input of q.
func (p *process) pipeTo(q *process) error {
	in, err := q.cmd.StdinPipe()
	p.pipe = in
	p.cmd.Stdout = io.MultiWriter(&p.stdout, ignoreErrors{in})
	return err
}

// ignoreErrors ignores write errors: the reader may have ended.
type ignoreErrors struct{ io.Writer }

func (d ignoreErrors) Write(b []byte) (int, error) {
	_, _ = d.Writer.Write(b)
	return len(b), nil
}

func (p *process) wait() {
	_ = p.cmd.Wait() // side reports the exit code
	if p.pipe != nil {
		_ = p.pipe.Close()
	}
}

func (p *process) side() Side {
	s := Side{Command: p.cmd.Args, Stdout: p.stdout.String(), Stderr: p.stderr.String(), Code: -1}
	if p.cmd.ProcessState != nil {
		s.Code = p.cmd.ProcessState.ExitCode()
	}
	return s
}

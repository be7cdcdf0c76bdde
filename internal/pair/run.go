package pair

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/process"
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
	a, b := &program{words: requester}, &program{words: responder}
	if o.Way == Stdio {
		if err := errors.Join(a.pipeTo(b), b.pipeTo(a)); err != nil {
			return Result{}, err
		}
	}
	start := time.Now()
	err = a.start(ctx)
	if err == nil {
		if err = b.start(ctx); err != nil {
			a.process.Kill()
		}
	}
	var both sync.WaitGroup
	for _, p := range []*program{a, b} {
		both.Go(p.wait)
	}
	both.Wait()
	if a.process == nil {
		return Result{}, err
	}
	return Result{Requester: a.side(), Responder: b.side(), Elapsed: time.Since(start), pair: p, size: o.Size}, err
}

// Single runs a program without a peer, which is the requester of the result. When ctx ends, it stops
// the program. It returns an error if the program fails.
func Single(ctx context.Context, command []string) (r Result, err error) {
	p := &program{words: command}
	start := time.Now()
	if err = p.start(ctx); err == nil {
		err = p.process.Explain(p.process.Wait())
	}
	return Result{Requester: p.side(), Elapsed: time.Since(start)}, err
}

// freeAddress returns a TCP address that is free now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

type program struct {
	words   []string
	stdin   *os.File // from the other program; nil: empty
	pipe    *os.File // to the other program's standard input
	stdout  process.Output
	process *process.Process // nil if it was not started
}

// pipeTo copies the output of p to the standard input of q.
func (p *program) pipeTo(q *program) (err error) {
	q.stdin, p.pipe, err = os.Pipe()
	return err
}

func (p *program) start(ctx context.Context) (err error) {
	var out io.Writer = &p.stdout
	if p.pipe != nil {
		out = io.MultiWriter(&p.stdout, ignoreErrors{p.pipe})
	}
	p.process, err = process.Start(ctx, process.Program{Args: p.words, Stdin: p.stdin, Stdout: out, Stop: syscall.SIGTERM, Grace: killDelay})
	return err
}

// ignoreErrors ignores write errors: the reader may have ended.
type ignoreErrors struct{ io.Writer }

func (d ignoreErrors) Write(b []byte) (int, error) {
	_, _ = d.Writer.Write(b)
	return len(b), nil
}

func (p *program) wait() {
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	if p.process != nil {
		_ = p.process.Wait() // side reports the exit code
	}
	if p.pipe != nil {
		_ = p.pipe.Close()
	}
}

func (p *program) side() Side {
	s := Side{Command: p.words, Code: -1}
	if p.process != nil {
		s.Stdout, s.Stderr, s.Code = p.stdout.String(), p.process.Stderr.String(), p.process.Code()
	}
	return s
}

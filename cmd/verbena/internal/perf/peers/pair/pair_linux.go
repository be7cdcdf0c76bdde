package pair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Command is a program with its arguments. Env is added to the environment of this process.
type Command struct {
	Args []string
	Env  []string
}

// Pair is a server and its client.
type Pair struct {
	Server, Client Command
	// Port is the TCP port on which the server listens; the client is started after that. Proc
	// is the folder of a process in the server's network namespace, such as /proc/self.
	Port int
	Proc string
	// Limit bounds the time of the whole run.
	Limit time.Duration
}

// Outcome is the result of a pair.
type Outcome struct {
	Output string        // standard output of the client
	CPU    time.Duration // processor time of both programs
}

var errLimit = errors.New("it exceeded the time limit and was killed")

// Run runs both programs to their end; both must succeed. When it returns, neither runs any
// more, nor does any process of their groups, unless a program ended by itself and left one.
// The caller's goroutine must be locked to its thread: the programs are killed when that
// thread ends.
func Run(ctx context.Context, p *Pair) (o Outcome, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Limit, errLimit)
	defer cancel()
	server := newProcess(ctx, &p.Server)
	if err := server.start(ctx); err != nil {
		return o, err
	}
	defer func() {
		server.end()
		o.CPU += server.cpu()
	}()
	if err := awaitListener(ctx, p.Proc, p.Port, server.ended); err != nil {
		return o, server.failure("server", fmt.Errorf("it does not listen on port %d: %w", p.Port, cause(ctx, err)))
	}
	client := newProcess(ctx, &p.Client)
	if err := client.start(ctx); err != nil {
		return o, err
	}
	<-client.ended
	o.Output, o.CPU = client.stdout.b.String(), client.cpu()
	if client.err != nil {
		server.end()
		return o, errors.Join(client.failure("client", cause(ctx, client.err)), server.output("server"))
	}
	if client.stdout.more {
		return o, fmt.Errorf("%s printed more than %d bytes", p.Client.Args[0], maxOutput)
	}
	<-server.ended
	if server.err != nil {
		return o, server.failure("server", cause(ctx, server.err))
	}
	return o, nil
}

// cause returns why ctx has ended, if it has, or else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// process is one of the two programs.
type process struct {
	cmd            *exec.Cmd
	cancel         context.CancelFunc
	stdout, stderr output
	ended          chan struct{} // closed when the process has ended
	err            error         // valid when ended is closed
}

// stopTimeout is how long pipes may stay open after a process has ended: a process that it
// left in another group may hold them.
const stopTimeout = 2 * time.Second

func newProcess(ctx context.Context, c *Command) *process {
	p := &process{ended: make(chan struct{})}
	ctx, p.cancel = context.WithCancel(ctx)
	p.cmd = exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
	p.cmd.WaitDelay = stopTimeout
	return p
}

func (p *process) start(ctx context.Context) error {
	if err := p.cmd.Start(); err != nil {
		p.cancel()
		return fmt.Errorf("start %s: %w", p.cmd.Args[0], cause(ctx, err))
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	return nil
}

// end kills the process, unless it has ended.
func (p *process) end() {
	p.cancel()
	<-p.ended
}

// cpu returns the processor time of a process that has ended.
func (p *process) cpu() time.Duration {
	s := p.cmd.ProcessState
	if s == nil {
		return 0
	}
	return s.UserTime() + s.SystemTime()
}

// failure ends the process, and returns err with what the process has printed.
func (p *process) failure(role string, err error) error {
	p.end()
	return errors.Join(fmt.Errorf("the %s (%s): %w", role, strings.Join(p.cmd.Args, " "), err), p.output(role))
}

// output returns what a process that has ended has printed, as an error; nil: nothing.
func (p *process) output(role string) error {
	text := strings.TrimSpace(p.stderr.b.String())
	if text == "" {
		text = strings.TrimSpace(p.stdout.b.String())
	}
	if text == "" {
		return nil
	}
	const most = 500 // the reason of a failure is at the end
	if len(text) > most {
		text = "..." + text[len(text)-most:]
	}
	return fmt.Errorf("the %s printed: %q", role, text)
}

// maxOutput is how much of a program's output is kept, in bytes.
const maxOutput = 1 << 20

// output keeps the first maxOutput bytes of what is written.
type output struct {
	b    bytes.Buffer
	more bool
}

var _ io.Writer = (*output)(nil)

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	keep := min(len(p), maxOutput-o.b.Len())
	o.b.Write(p[:keep])
	o.more = o.more || keep < len(p)
	return len(p), nil
}

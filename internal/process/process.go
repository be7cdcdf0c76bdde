// Package process runs other programs. Each program has a process group of its own, which is
// killed whole when the program's context ends, and when its time is over. On Linux, the group is
// also killed when the program ends, and the program itself when this process ends.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Program is a program to run.
type Program struct {
	Args  []string   // the program and its arguments
	Dir   string     // where it runs; empty: where this process runs
	Env   []string   // added to the environment of this process
	Files []*os.File // its file descriptors 3 and following
	Stdin *os.File   // its standard input; nil: empty
	// Stdout and Stderr get what it prints; nil: a new Output. Both may be the same Output.
	Stdout, Stderr io.Writer
	// In and Out make pipes to its standard input and from its standard output, in place of Stdin and
	// Stdout.
	In, Out bool
	// Limit is how long it may run; zero: without limit.
	Limit time.Duration
	// Stop is the signal that the group gets when the context or the Limit ends; nil: it is killed.
	// Grace after that signal it is killed in any case.
	Stop  os.Signal
	Grace time.Duration
}

// Process is a program that was started.
type Process struct {
	In  io.WriteCloser // with Program.In
	Out io.ReadCloser  // with Program.Out; Wait closes it
	// Stdout and Stderr are those of the Program if they are Outputs, or nil with Out or another
	// writer.
	Stdout, Stderr *Output

	cmd    *exec.Cmd
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when the program has ended and its output is complete
	err    error         // valid when ended is closed

	mu     sync.Mutex
	exited bool // another group may have its number
}

var (
	// ErrLimit: a program ran longer than its Limit, and was stopped.
	ErrLimit = errors.New("it exceeded its time limit and was stopped")
	// ErrEnded: a program ended before what was waited for.
	ErrEnded = errors.New("it ended")
)

// pipeDelay is how long a program's output may stay open after its end, or after it was killed: a
// process that left its group may hold it.
const pipeDelay = 2 * time.Second

// Start starts a program. When ctx ends, the program is stopped.
func Start(ctx context.Context, program Program) (*Process, error) {
	p := &Process{ended: make(chan struct{})}
	p.ctx, p.cancel = ctx, func() {}
	if program.Limit > 0 {
		p.ctx, p.cancel = context.WithTimeoutCause(ctx, program.Limit, ErrLimit)
	}
	cmd := exec.CommandContext(p.ctx, program.Args[0], program.Args[1:]...)
	p.cmd = cmd
	cmd.Dir, cmd.Env, cmd.ExtraFiles = program.Dir, append(os.Environ(), program.Env...), program.Files
	cmd.Stdout, cmd.Stderr = program.Stdout, program.Stderr
	cmd.SysProcAttr = ownGroup()
	cmd.Cancel = func() error { return p.SignalGroup(program.Stop) }
	cmd.WaitDelay = pipeDelay
	if program.Stop != nil {
		cmd.WaitDelay = max(program.Grace, pipeDelay)
	}
	theirs, err := p.connect(program)
	if err == nil {
		err = p.start()
	}
	if theirs != nil {
		_ = theirs.Close()
	}
	if err != nil {
		if p.Out != nil {
			_ = p.Out.Close()
		}
		err = fmt.Errorf("start %s: %w", program.Args[0], p.cause(err))
		p.cancel()
		return nil, err
	}
	return p, nil
}

// connect makes the pipes and outputs. It returns the program's end of a pipe, which this process
// closes after the start.
func (p *Process) connect(program Program) (theirs *os.File, err error) {
	if program.In {
		if p.In, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	if program.Stdin != nil {
		p.cmd.Stdin = program.Stdin
	}
	if p.cmd.Stderr == nil {
		p.cmd.Stderr = new(Output)
	}
	p.Stderr, _ = p.cmd.Stderr.(*Output)
	if program.Out {
		if p.Out, theirs, err = os.Pipe(); err == nil {
			p.cmd.Stdout = theirs
		}
		return theirs, err
	}
	if p.cmd.Stdout == nil {
		p.cmd.Stdout = new(Output)
	}
	p.Stdout, _ = p.cmd.Stdout.(*Output)
	return nil, nil
}

// start starts the program on a thread that lives as long as the program: the system kills a
// program when the thread that started it ends.
func (p *Process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if awaitExit(p.cmd.Process.Pid) {
			_ = p.SignalGroup(os.Kill) // what is left of it
			p.exit()
		}
		if p.err = p.cmd.Wait(); p.err != nil {
			p.err = p.cause(p.err)
		}
		p.exit()
		p.cancel()
		close(p.ended)
	}()
	return <-started
}

// exit notes that the program's number is about to be released.
func (p *Process) exit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exited = true
}

// cause returns why the context has ended, if it has, or else err.
func (p *Process) cause(err error) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return err
}

// Ended is closed when the program has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end of the program. It returns nil after success, ErrLimit or the cause of the
// context's end if the program was stopped, and otherwise an *exec.ExitError. Read Out to its end
// before.
func (p *Process) Wait() error {
	<-p.ended
	if p.Out != nil {
		_ = p.Out.Close()
	}
	return p.err
}

// Kill kills the program and its group, unless it has ended, and waits for its end.
func (p *Process) Kill() {
	_ = p.SignalGroup(os.Kill)
	_ = p.Wait()
}

// Close asks the program to end by closing its standard input, and waits for its end.
func (p *Process) Close() error { return errors.Join(p.In.Close(), p.Wait()) }

// Signal sends a signal to the program, but not to other processes of its group.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// SignalGroup sends a signal to the program and to the processes that it has started; nil:
// os.Kill.
func (p *Process) SignalGroup(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited {
		return os.ErrProcessDone
	}
	if s == nil {
		s = os.Kill
	}
	return signalGroup(p.cmd.Process, s)
}

// PID is the program's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Code waits for the end of the program and returns its exit code; -1: a signal has ended it.
func (p *Process) Code() int {
	_ = p.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// State is how a program has ended; nil before.
func (p *Process) State() *os.ProcessState {
	select {
	case <-p.ended:
		return p.cmd.ProcessState
	default:
		return nil
	}
}

// CPU is the processor time of a program that has ended, with its children that have ended.
func (p *Process) CPU() time.Duration {
	if s := p.State(); s != nil {
		return s.UserTime() + s.SystemTime()
	}
	return 0
}

// String is the command line.
func (p *Process) String() string { return strings.Join(p.cmd.Args, " ") }

// Await waits until the program has printed a text.
func (p *Process) Await(ctx context.Context, text string) error {
	return p.AwaitFunc(ctx, fmt.Sprintf("print %q", text), func() bool {
		return p.Stdout.contains(text) || p.Stderr.contains(text)
	})
}

// AwaitFunc waits until done returns true. It calls done again after each output, and when the
// program ends. what completes the sentence "it did not ..." in errors.
func (p *Process) AwaitFunc(ctx context.Context, what string, done func() bool) error {
	for {
		out, err := p.Stdout.changed(), p.Stderr.changed()
		if done() {
			return nil
		}
		select {
		case <-out:
		case <-err:
		case <-p.ended:
			if done() {
				return nil
			}
			return p.Explain(fmt.Errorf("%w, and did not %s", ErrEnded, what))
		case <-ctx.Done():
			return p.Explain(fmt.Errorf("it did not %s: %w", what, context.Cause(ctx)))
		}
	}
}

// Explain adds the command line and the end of the output to an error.
func (p *Process) Explain(err error) error {
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(p.Stderr.String())
	if text == "" {
		text = strings.TrimSpace(p.Stdout.String())
	}
	err = fmt.Errorf("%s: %w", p, err)
	if text == "" {
		return err
	}
	const most = 2000 // the reason of a failure is at the end
	if len(text) > most {
		text = "..." + text[len(text)-most:]
	}
	return fmt.Errorf("%w; it printed: %s", err, text)
}

// Run runs a program to its end, and returns its standard output. Errors are explained.
func Run(ctx context.Context, program Program) (string, error) {
	p, err := Start(ctx, program)
	if err != nil {
		return "", err
	}
	err = p.Explain(p.Wait())
	return p.Stdout.String(), err
}

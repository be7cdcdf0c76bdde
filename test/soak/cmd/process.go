package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// process is the server or a client, as the controller sees it.
type process struct {
	name    string
	service service // of a client
	steady  bool
	cmd     *exec.Cmd
	stderr  tail
	exited  chan struct{} // closed when it has ended, and all that it has said is read
	err     error         // how it has ended; after exited

	sending sync.Mutex
	in      io.WriteCloser

	mu      sync.Mutex
	killed  bool // it is, or is about to be
	dumped  bool // since it hangs
	stopped bool // it is, was or is about to be, and has had no session begun since
	token   int  // of the last stop
	excused int  // sessions before this one may fail
	stats   stats
	rss     int64
	moved   time.Time // when it got on last
	before  stats     // at that time
	idle    bool      // it is not expected to
	leaving bool
	quiet   chan event // answers
	ready   chan event
}

// start starts a process, and has its events handled.
func (c *controller) start(p *process, args ...string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	p.exited, p.quiet, p.ready = make(chan struct{}), make(chan event, 1), make(chan event, 1)
	p.moved = time.Now()
	p.cmd = exec.Command(program, append(args, "-patience", patience.String(), "-seed", strconv.FormatUint(c.o.seed, 10), "-sabotage", sabotage,
		"-services", c.o.services, "-profiles", profiles)...)
	p.cmd.Stderr = &p.stderr
	ownGroup(p.cmd)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	c.say("%s has started: process %d", p.name, p.cmd.Process.Pid)
	c.beside.Go(func() {
		defer close(p.exited)
		list := json.NewDecoder(out)
		for {
			var e event
			if err := list.Decode(&e); err != nil {
				// A process that is killed may have said half of something.
				break
			}
			c.handle(p, e)
		}
		_, _ = io.Copy(io.Discard, out)
		p.err = p.cmd.Wait()
		_ = p.in.Close()
		c.ended(p)
	})
	return nil
}

// tell sends a command. A process that has ended does not get it.
func (p *process) tell(cmd command) {
	b, err := json.Marshal(cmd)
	if err != nil {
		panic(err) // a command can be marshalled
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	_, _ = p.in.Write(append(b, '\n'))
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// kill kills the process.
func (p *process) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	p.signal(os.Kill)
}

// stop stops the process until resume.
func (p *process) stop() {
	p.mu.Lock()
	p.stopped = true
	p.token++
	p.mu.Unlock()
	p.signal(signalStop)
}

// resume has it go on, and end the session that may have suffered.
func (p *process) resume() {
	p.signal(signalContinue)
	p.mu.Lock()
	p.moved = time.Now()
	token := p.token
	p.mu.Unlock()
	p.tell(command{Do: doDisturbed, Token: token})
}

// excuses reports whether a session may have failed because of what was done to the client.
func (p *process) excuses(session int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed || p.stopped || session < p.excused
}

// leave has the process end by itself.
func (p *process) leave() {
	p.mu.Lock()
	p.leaving = true
	p.mu.Unlock()
	p.tell(command{Do: doLeave})
}

// failure is why a process that has ended has failed; nil if it has not.
func (p *process) failure() error {
	p.mu.Lock()
	killed, dumped, leaving := p.killed, p.dumped, p.leaving || !p.steady
	p.mu.Unlock()
	switch {
	case dumped || killed && wasKilled(p.cmd.ProcessState):
		return nil
	case p.err != nil:
		return fmt.Errorf("%s has failed: %w\n%s", p.name, p.err, p.stderr.String())
	case !leaving:
		return fmt.Errorf("%s has ended by itself", p.name)
	}
	return nil
}

// hung says that a process does not get on; nil if it does.
func (p *process) hung() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if since := time.Since(p.moved); since > patience && !p.idle && !p.killed {
		return fmt.Errorf("%s hangs: it has not got on for %v (%d operations, %d verified of its peer, stopped before: %v)",
			p.name, since.Round(time.Second), p.stats.ops(), p.stats.Verified, p.stopped)
	}
	return nil
}

// dump has a process that hangs say what it waits for, and where its goroutines are, and end.
func (c *controller) dump(p *process) {
	p.signal(signalContinue)
	for _, q := range []*process{p, c.server} {
		q.tell(command{Do: doDescribe})
	}
	time.Sleep(2 * time.Second)
	p.mu.Lock()
	p.dumped = true
	p.mu.Unlock()
	if p != c.server {
		c.print("%s", c.server.stderr.String())
	}
	p.signal(signalDump)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
	}
}

var errNoSignals = errors.New("processes cannot be stopped here: it runs on Unix only")

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 256 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if extra := len(t.text) - tailSize; extra > 0 {
		t.text = append(t.text[:0], t.text[extra:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/internal/process"
)

// child is the controller's view of the server or of a client.
type child struct {
	name    string
	service service // of a client
	steady  bool
	run     *process.Process // nil before the start
	exited  chan struct{}    // closed when the process has ended and all its output is read
	err     error            // the result of Wait; valid after exited
	sending sync.Mutex

	mu      sync.Mutex
	killed  bool // the process was killed, or is about to be
	dumped  bool // because it hangs
	stopped bool // it was stopped or is about to be, and has not begun a session since
	token   int  // of the last stop
	excused int  // sessions before this one may fail
	stats   stats
	rss     int64
	moved   time.Time // when it last made progress
	before  stats     // its stats at that time
	idle    bool      // no progress is expected
	leaving bool
	quiet   chan event // answers to doQuiet
	ready   chan event
}

// start starts a process, and handles its events.
func (c *controller) start(p *child, args ...string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	p.exited, p.quiet, p.ready = make(chan struct{}), make(chan event, 1), make(chan event, 1)
	p.moved = time.Now()
	args = append([]string{program}, args...)
	args = append(args, "-patience", patience.String(), "-seed", strconv.FormatUint(c.o.seed, 10), "-sabotage", sabotage,
		"-services", c.o.services, "-profiles", profiles)
	if p.run, err = process.Start(context.Background(), process.Program{Args: args, In: true, Out: true}); err != nil {
		return err
	}
	c.say("%s started: process %d", p.name, p.run.PID())
	c.background.Go(func() {
		defer close(p.exited)
		list := json.NewDecoder(p.run.Out)
		for {
			var e event
			if err := list.Decode(&e); err != nil {
				// A killed process may have written part of an event.
				break
			}
			c.handle(p, e)
		}
		_, _ = io.Copy(io.Discard, p.run.Out)
		p.err = p.run.Wait()
		c.ended(p)
	})
	return nil
}

// send sends a command. A process that has ended ignores it.
func (p *child) send(cmd command) {
	b, err := json.Marshal(cmd)
	if err != nil {
		panic(err) // a command can always be marshalled
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	_, _ = p.run.In.Write(append(b, '\n'))
}

func (p *child) signal(s os.Signal) { _ = p.run.Signal(s) } // fails only after its end

// kill kills the process.
func (p *child) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	p.signal(os.Kill)
}

// stop stops the process until resume.
func (p *child) stop() {
	p.mu.Lock()
	p.stopped = true
	p.token++
	p.mu.Unlock()
	p.signal(signalStop)
}

// resume continues the process, and makes it end the session that may have suffered.
func (p *child) resume() {
	p.signal(signalContinue)
	p.mu.Lock()
	p.moved = time.Now()
	token := p.token
	p.mu.Unlock()
	p.send(command{Do: doDisturbed, Token: token})
}

// excuses reports whether a session may have failed because the client was killed or stopped.
func (p *child) excuses(session int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed || p.stopped || session < p.excused
}

// leave makes the process end by itself.
func (p *child) leave() {
	p.mu.Lock()
	p.leaving = true
	p.mu.Unlock()
	p.send(command{Do: doLeave})
}

// failure returns why an ended process has failed; nil if it has not.
func (p *child) failure() error {
	p.mu.Lock()
	killed, dumped, leaving := p.killed, p.dumped, p.leaving || !p.steady
	p.mu.Unlock()
	switch {
	case dumped || killed && wasKilled(p.run.State()):
		return nil
	case p.err != nil:
		return fmt.Errorf("%s failed: %w\n%s", p.name, p.err, p.run.Stderr.String())
	case !leaving:
		return fmt.Errorf("%s ended by itself", p.name)
	}
	return nil
}

// hung returns an error if the process makes no progress.
func (p *child) hung() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if since := time.Since(p.moved); since > patience && !p.idle && !p.killed {
		return fmt.Errorf("%s hangs: it made no progress for %v (%d operations, %d verified by its peer, stopped before: %v)",
			p.name, since.Round(time.Second), p.stats.Total(), p.stats.Verified, p.stopped)
	}
	return nil
}

// dump makes a hanging process print what it waits for and the stacks of its goroutines, and
// exit.
func (c *controller) dump(p *child) {
	p.signal(signalContinue)
	for _, q := range []*child{p, c.server} {
		q.send(command{Do: doDescribe})
	}
	time.Sleep(2 * time.Second)
	p.mu.Lock()
	p.dumped = true
	p.mu.Unlock()
	if p != c.server {
		c.print("%s", c.server.run.Stderr.String())
	}
	p.signal(signalDump)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
	}
}

var errNoSignals = errors.New("processes cannot be stopped on this system: soak needs Unix")

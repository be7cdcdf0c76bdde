package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"
)

// controller starts the processes, and decides when to kill or stop them and which faults they
// get.
type controller struct {
	o          options
	out        io.Writer
	printing   sync.Mutex
	began      time.Time
	services   []service
	places     map[string]place
	server     *child
	steady     []*child
	background sync.WaitGroup // goroutines

	ctx  context.Context // of the run; its cause is the first failure
	fail context.CancelCauseFunc

	mu             sync.Mutex
	clients        map[string]*child // all that were ever started
	runningClients map[*child]bool   // clients that have not ended, including those that stay
	endedStats     stats             // of all clients that have ended
	started        int
	kills          int
	stops          int
	sessions       int // that have failed because of kills and stops
	faults         int // changes of faults
	failures       []error
	points         []point
}

// control executes the whole run.
func control(ctx context.Context, o options, out io.Writer) error {
	if runtime.GOOS == "windows" {
		return errNoSignals
	}
	ipv6, err := haveIPv6()
	if err != nil {
		return err
	}
	c := &controller{o: o, out: out, began: time.Now(), services: services(ipv6), clients: map[string]*child{}, runningClients: map[*child]bool{}}
	run, fail := context.WithCancelCause(context.Background())
	c.ctx, c.fail = run, fail
	c.print("seed %d: %v, a quiet point every %v, %d clients and %d that stay; services %s",
		o.seed, o.time, o.quiet, o.clients, len(c.services), c.serviceNames())
	if !ipv6 {
		c.print("the loopback interface has no IPv6 address: running without the service udp6 and without corrupted packets")
	}
	if err := c.runAll(ctx); err != nil {
		c.failed(err)
	}
	c.end()
	c.table()
	if errs := c.failures; len(errs) > 0 {
		return fmt.Errorf("failed with seed %d: %w", o.seed, errors.Join(errs...))
	}
	if why := context.Cause(ctx); why != nil {
		return why
	}
	c.print("all is well")
	return nil
}

// runAll executes the run from the server's start to its end.
func (c *controller) runAll(ctx context.Context) error {
	if err := c.serve(); err != nil {
		return err
	}
	watching, stopWatching := context.WithCancel(c.ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { c.watch(watching) })
	defer watcher.Wait()
	defer stopWatching()
	for i, s := range c.services {
		if err := c.startSteady(i, s); err != nil {
			return err
		}
	}
	slots := make([]*clientSlot, c.o.clients)
	for i := range slots {
		slots[i] = &clientSlot{number: i, rng: rand.New(rand.NewPCG(c.o.seed, uint64(i)+1))}
	}
	faults := rand.New(rand.NewPCG(c.o.seed, 0))
	for end := c.began.Add(c.o.time); c.ctx.Err() == nil && ctx.Err() == nil && time.Now().Before(end); {
		phase, cancel := context.WithTimeout(c.ctx, min(c.o.quiet, time.Until(end)))
		stop := context.AfterFunc(ctx, cancel)
		var all sync.WaitGroup
		for _, s := range slots {
			all.Go(func() {
				for phase.Err() == nil {
					c.runPlan(phase, s)
				}
			})
		}
		all.Go(func() { c.changeFaults(phase, faults) })
		all.Wait()
		stop()
		cancel()
		if c.ctx.Err() == nil {
			c.quietPoint()
		}
	}
	if c.ctx.Err() != nil {
		return nil // the failures are recorded
	}
	for _, p := range c.steady {
		p.leave()
	}
	for _, p := range append(c.steady, c.server) {
		if p == c.server {
			p.leave()
		}
		if !c.wait(p.exited) {
			c.failed(fmt.Errorf("%s was told to leave, but did not", p.name))
			c.dump(p)
		}
	}
	return nil
}

// wait waits for done at most for patience.
func (c *controller) wait(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-c.ctx.Done():
		return true // another failure has ended the run
	case <-time.After(patience):
		return false
	}
}

// serve starts the server.
func (c *controller) serve() error {
	c.server = &child{name: "the server", steady: true}
	args := []string{"-child", "server"}
	if err := c.start(c.server, args...); err != nil {
		return err
	}
	select {
	case e := <-c.server.ready:
		c.places = e.Places
		return nil
	case <-c.server.exited:
		return fmt.Errorf("the server did not start: %v\n%s", c.server.err, c.server.run.Stderr.String())
	case <-time.After(patience):
		return errors.New("the server did not start")
	}
}

// startSteady starts a client that stays for the whole run.
func (c *controller) startSteady(number int, s service) error {
	p, err := c.client(clientConfig{Name: fmt.Sprintf("stay%d", number), Service: s.name, Steady: true, ByCM: number%2 == 1, Sessions: 1, Each: 1}, s)
	if err == nil {
		c.steady = append(c.steady, p)
	}
	return err
}

// client starts a client.
func (c *controller) client(cfg clientConfig, s service) (*child, error) {
	cfg.Seed, cfg.Place = c.o.seed, c.places[s.name]
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	p := &child{name: "client " + cfg.Name, service: s, steady: cfg.Steady}
	c.mu.Lock() // handle waits until the client is registered
	defer c.mu.Unlock()
	c.clients[cfg.Name] = p
	if err := c.start(p, "-child", "client", "-config", string(text)); err != nil {
		return nil, err
	}
	c.runningClients[p] = true
	c.started++
	return p, nil
}

// handle handles an event.
func (c *controller) handle(p *child, e event) {
	switch e.Is {
	case isReady:
		p.ready <- e
	case isQuiet:
		p.quiet <- e
	case isBeat:
		p.mu.Lock()
		// The operations of both ends have to make progress.
		if p == c.server || p.before.Total() != e.Stats.Total() && p.before.Verified != e.Stats.Verified {
			p.moved, p.before = time.Now(), *e.Stats
		}
		p.stats = *e.Stats
		if e.Held != nil {
			p.rss = e.Held.RSS
		}
		p.mu.Unlock()
	case isSettled:
		p.mu.Lock()
		if p.token == e.Token {
			p.stopped, p.excused = false, e.Session
		}
		p.mu.Unlock()
		if p.service.datagrams() && p.service.sessions() {
			c.server.send(command{Do: doGone, Service: p.service.name, Client: e.Client})
		}
	case isLost:
		c.judgeLoss(p, e)
	case isWrong:
		c.failed(fmt.Errorf("%s: %s", p.name, e.Text))
	}
}

// judgeLoss decides whether a failed session is an error of the run.
func (c *controller) judgeLoss(p *child, e event) {
	c.mu.Lock()
	client := c.clients[e.Client]
	c.mu.Unlock()
	if client == nil {
		c.failed(fmt.Errorf("%s reports the loss of the unknown client %q", p.name, e.Client))
		return
	}
	if !client.excuses(e.Session) {
		c.failed(fmt.Errorf("%s: session %d of %s failed although its client is alive (%s): %s",
			p.name, e.Session, client.name, client.service.name, e.Text))
		return
	}
	c.mu.Lock()
	c.sessions++
	c.mu.Unlock()
}

// ended is called when a process has ended.
func (c *controller) ended(p *child) {
	c.say("%s has ended: %v", p.name, p.run.State())
	c.mu.Lock()
	delete(c.runningClients, p)
	if p != c.server {
		p.mu.Lock()
		p.stats.Links = 0
		c.endedStats.add(&p.stats)
		p.mu.Unlock()
	}
	c.mu.Unlock()
	if err := p.failure(); err != nil {
		c.failed(err)
	}
}

// failed records a failure, and ends the run.
func (c *controller) failed(err error) {
	const most = 20
	c.mu.Lock()
	if len(c.failures) < most && c.isNewFailure(err) {
		c.failures = append(c.failures, err)
	}
	c.mu.Unlock()
	c.fail(err)
}

// isNewFailure filters out errors that only repeat the first failure.
func (c *controller) isNewFailure(err error) bool {
	why := context.Cause(c.ctx)
	return why == nil || !errors.Is(err, why)
}

// end kills the remaining processes after a failure.
func (c *controller) end() {
	c.mu.Lock()
	left := []*child{c.server}
	for p := range c.runningClients {
		left = append(left, p)
	}
	c.mu.Unlock()
	for _, p := range left {
		if p != nil && p.run != nil {
			p.kill()
		}
	}
	c.background.Wait()
	c.fail(nil)
}

// watch looks for processes that hang, and prints the progress.
func (c *controller) watch(ctx context.Context) {
	every := time.NewTicker(10 * time.Second)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			c.progress()
			for _, p := range c.running() {
				if err := p.hung(); err != nil {
					c.dump(p)
					c.failed(fmt.Errorf("%w\n%s", err, p.run.Stderr.String()))
				}
			}
		}
	}
}

// running returns the processes that have not ended.
func (c *controller) running() []*child {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []*child{c.server}
	for p := range c.runningClients {
		list = append(list, p)
	}
	return list
}

func (c *controller) print(format string, args ...any) {
	c.printing.Lock()
	defer c.printing.Unlock()
	_, _ = fmt.Fprintf(c.out, format+"\n", args...)
}

func (c *controller) say(format string, args ...any) {
	if c.o.verbose {
		c.print("%v %s", time.Since(c.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
	}
}

func (c *controller) serviceNames() string {
	var names []string
	for _, s := range c.services {
		names = append(names, s.name)
	}
	return fmt.Sprint(names)
}

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/rdma"
)

// client is a process that visits a service of the server in one or more sessions.
type client struct {
	cfg     clientConfig
	service service
	events  *eventWriter
	rng     *rand.Rand

	mu        sync.Mutex
	e         *end // nil between two contexts
	faults    command
	leaving   bool
	disturbed bool
	token     int
	number    int   // of the current session
	past      stats // of earlier contexts
	welcomed  chan command
}

// clientPlaces is the greatest number of connections that a client has at the same time.
const clientPlaces = 3

// sessionInfo describes a session to the server.
type sessionInfo struct {
	Steady, Abrupt bool
	Index          int // of the connection
}

// encode encodes it in two bytes, since the private data of the connection manager is short.
func (a sessionInfo) encode() []byte {
	b := []byte{0, byte(a.Index)}
	if a.Steady {
		b[0] |= 1
	}
	if a.Abrupt {
		b[0] |= 2
	}
	return b
}

func decodeSessionInfo(b []byte) (sessionInfo, error) {
	if len(b) != 2 || b[0] > 3 {
		return sessionInfo{}, fmt.Errorf("%x is not the encoding of a session", b)
	}
	return sessionInfo{Steady: b[0]&1 != 0, Abrupt: b[0]&2 != 0, Index: int(b[1])}, nil
}

func runClient(cfg clientConfig, w *eventWriter) error {
	s, err := serviceByName(cfg.Service)
	if err != nil {
		return err
	}
	c := &client{cfg: cfg, service: s, events: w, rng: rand.New(rand.NewPCG(cfg.Seed, key(cfg.Seed, cfg.Name))), welcomed: make(chan command, 1)}
	c.faults.Faults = cfg.Faults
	go listen(os.Stdin, c.handle)
	go sendStats(w, c.stats)
	if err := warmUp(); err != nil {
		return err
	}
	base := processResources()
	for !c.finished() {
		if err := c.runContext(); err != nil {
			return err
		}
	}
	w.send(event{Is: isBeat, Stats: c.stats()})
	return settled(base)
}

// warmUp makes the runtime open the files that it keeps open.
func warmUp() error {
	_, err := haveIPv6()
	return err
}

// settled waits until the process holds no more than before.
func settled(base resources) error {
	for limit := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		h := processResources()
		err := h.counts(&base)
		if err == nil {
			return nil
		}
		if time.Now().After(limit) {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			return fmt.Errorf("resources remain although everything is closed: %w", err)
		}
	}
}

// handle executes a command.
func (c *client) handle(cmd command) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.e
	switch cmd.Do {
	case doFaults:
		c.faults = cmd
		if e != nil {
			c.check(e.dev.SetFaults(cmd.Faults))
		}
	case doLeave:
		if sabotage == sabotageHang && !c.cfg.Steady {
			return
		}
		c.leaving = true
		if e != nil {
			e.do(func() { c.leave(e, false) })
		}
	case doDisturbed:
		c.disturbed, c.token = true, cmd.Token
		if e != nil {
			e.do(func() { c.leave(e, c.service.datagrams()) })
		}
	case doQuiet:
		go c.quiet(cmd)
	case doResume:
		if e != nil {
			e.do(e.resume)
		}
	case doWelcome:
		c.welcomed <- cmd
	case doDescribe:
		if e != nil {
			e.do(func() { fmt.Fprintf(os.Stderr, "soak: session %d: %v\n", c.number, e.describe()) })
		}
	}
}

// leave ends the current session.
func (c *client) leave(e *end, atOnce bool) {
	for l := range e.links {
		if atOnce {
			l.abandon()
		} else {
			l.finish()
		}
	}
	if e.pinger != nil {
		e.pinger.finish()
	}
}

// quiet stops the work of a client that stays, and reports what it holds.
func (c *client) quiet(cmd command) {
	c.mu.Lock()
	e := c.e
	c.mu.Unlock()
	e.do(e.pause)
	h, err := settle([]*end{e}, cmd, []int{cmd.Steady})
	c.events.send(event{Is: isQuiet, Held: h, Text: text(err)})
}

func (c *client) check(err error) {
	if err != nil {
		c.events.send(event{Is: isWrong, Text: err.Error()})
	}
}

// finished reports whether the last session is over.
func (c *client) finished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving || c.cfg.Sessions > 0 && c.number >= c.cfg.Sessions
}

func (c *client) stats() *stats {
	c.mu.Lock()
	s, e := c.past, c.e
	c.mu.Unlock()
	if e != nil {
		e.ask(func() { s.add(e.statsNow()) })
	}
	return &s
}

// runContext runs one context, with one session after the other.
func (c *client) runContext() error {
	e, err := openEnd(c.service, c.cfg.Name, clientPlaces, c.cfg.Seed, rand.New(rand.NewPCG(c.rng.Uint64(), 0)))
	if err != nil {
		return err
	}
	e.wrong = c.check
	e.lost = func(l *link, err error) {
		c.events.send(event{Is: isLost, Client: l.client, Session: l.session, Text: err.Error()})
	}
	c.mu.Lock()
	if c.faults.Faults != (command{}).Faults {
		c.check(e.dev.SetFaults(c.faults.Faults))
	}
	c.mu.Unlock()
	if err := e.start(); err != nil {
		return errors.Join(err, e.stop())
	}
	c.mu.Lock()
	c.e = e
	c.mu.Unlock()
	each := c.cfg.Each
	if c.service.datagrams() {
		each = 1 // the server knows an endpoint by only one name
	}
	for i := 0; i < each && !c.finished(); i++ {
		if err = c.session(e); err != nil {
			break
		}
	}
	var last *stats
	e.ask(func() { last = e.statsNow() })
	c.mu.Lock()
	c.e = nil
	c.past.add(last)
	c.past.Links = 0
	c.mu.Unlock()
	return errors.Join(err, e.stop())
}

// begin assigns a number to the next session.
func (c *client) begin() (name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	if c.disturbed {
		c.disturbed = false
		c.events.send(event{Is: isSettled, Token: c.token, Session: c.number})
	}
	return sessionName(c.cfg.Name, c.number)
}

// endsAtOnce reports whether a session should end as soon as it begins.
func (c *client) endsAtOnce() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving || c.disturbed
}

// session runs one session.
func (c *client) session(e *end) error {
	name := c.begin()
	ended := make(chan struct{})
	budget := size(c.rng, 400)
	if c.cfg.Steady {
		budget = 0
	}
	switch {
	case !c.service.sessions():
		return c.ping(e, 4*budget, ended)
	case c.service.datagrams():
		return c.endpoint(e, budget, ended)
	}
	n, abrupt := 1, !c.cfg.Steady && c.rng.IntN(8) == 0
	if !c.cfg.Steady && c.rng.IntN(4) == 0 {
		n += c.rng.IntN(clientPlaces)
	}
	// A listening server decides how many connections it makes with each client, which is one.
	// So the client connects as n clients of the same name.
	left := n
	over := func(*link) {
		if left--; left == 0 {
			close(ended)
		}
	}
	e.changed = over
	e.leaving = func(*link) bool { return c.endsAtOnce() }
	var peers []*oob.Peer
	for i := range n {
		peer, err := c.exchange(e, name, sessionInfo{Steady: c.cfg.Steady, Abrupt: abrupt, Index: i}, budget, over)
		if err != nil {
			return err
		}
		peers = append(peers, peer)
	}
	<-ended
	var err error
	for _, peer := range peers {
		err = errors.Join(err, peer.Close(nil))
	}
	return err
}

// exchange makes one connection by an exchange of descriptors.
func (c *client) exchange(e *end, name string, about sessionInfo, budget int, over func(*link)) (*oob.Peer, error) {
	way := "tcp:" + c.cfg.Place.TCP
	if c.cfg.ByCM {
		way = "cm:" + c.cfg.Place.CM
	}
	peer, err := oob.Open(way, oob.Config{Name: name, Peer: "server", Notify: func(string) {}})
	if err != nil {
		return nil, err
	}
	offer := oob.Offer{Maps: []*mmap.Map{e.mem}, Data: about.encode()}
	e.do(func() {
		peer.Exchange(context.Background(), e.ctx, offer, func(a *oob.Answer, err error) {
			var l *link
			if err == nil {
				l, err = e.newLink(c.cfg.Name, c.number, about.Index, true)
			}
			if err != nil {
				c.events.send(event{Is: isLost, Client: c.cfg.Name, Session: c.number, Text: err.Error()})
				over(nil)
				return
			}
			l.steady, l.abrupt, l.budget = about.Steady, about.Abrupt, budget
			l.setConnection(a.Connections[0], a.Maps[0])
		})
	})
	return peer, nil
}

// endpoint is a session with SRD: the controller carries the descriptors.
func (c *client) endpoint(e *end, budget int, ended chan struct{}) error {
	var desc []byte
	var err error
	e.ask(func() { desc, err = e.datagrams.ExportEndpoint() })
	if err != nil {
		return err
	}
	memory, err := e.mem.Export(e.dev)
	if err != nil {
		return err
	}
	c.events.send(event{Is: isEndpoint, Client: c.cfg.Name, Session: c.number, Endpoint: desc, Memory: memory})
	welcome := <-c.welcomed
	remote, err := mmap.Import(e.dev, welcome.Memory)
	if err != nil {
		return err
	}
	e.changed = func(*link) { close(ended) }
	e.leaving = func(*link) bool { return c.endsAtOnce() }
	e.do(func() {
		var peer *rdma.Peer
		var l *link
		if peer, err = e.datagrams.NewPeer(welcome.Endpoint); err == nil {
			l, err = e.newLink(c.cfg.Name, c.number, 0, true)
		}
		if err != nil {
			close(ended)
			return
		}
		l.steady, l.budget = c.cfg.Steady, budget
		l.setPeer(peer, remote)
		if c.endsAtOnce() {
			l.abandon()
			return
		}
		l.sendHello()
	})
	<-ended
	return err
}

// ping is a session with UD.
func (c *client) ping(e *end, budget int, ended chan struct{}) error {
	meet := func(peer *rdma.Peer, err error) {
		if err != nil {
			c.events.send(event{Is: isLost, Client: c.cfg.Name, Session: c.number, Text: err.Error()})
			close(ended)
			return
		}
		p := e.newPinger(peer, c.cfg.Name)
		p.steady, p.budget, p.onFinished = c.cfg.Steady, budget, func() { close(ended) }
		if c.endsAtOnce() {
			p.finish()
		}
		p.work()
	}
	e.do(func() {
		if !c.cfg.ByCM {
			meet(e.datagrams.NewPeer(c.cfg.Place.Memo))
			return
		}
		err := e.datagrams.ResolvePeer(c.cfg.Place.CM, rdma.DialConfig{}, func(peer *rdma.Peer, _ []byte, err error) { meet(peer, err) })
		if err != nil {
			meet(nil, err)
		}
	})
	<-ended
	return nil
}

// statsNow returns what the end has done so far, on the engine's goroutine.
func (e *end) statsNow() *stats {
	s := e.stats
	s.Links = len(e.links)
	if e.pinger != nil {
		s.Links = 1
	}
	return &s
}

// sendStats reports to the controller what has been done so far, once per interval.
func sendStats(w *eventWriter, now func() *stats) {
	for range time.Tick(beatEvery) {
		h := resources{Goroutines: runtime.NumGoroutine(), RSS: residentMemory()}
		w.send(event{Is: isBeat, Stats: now(), Held: &h})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

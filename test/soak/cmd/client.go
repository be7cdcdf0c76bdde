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

	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/footprint"
	"github.com/verbena-rdma/verbena/test/traffic"
	"github.com/verbena-rdma/verbena/verbs"
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
}

// clientPlaces is the greatest number of connections that a client has at the same time.
const clientPlaces = 3

func runClient(cfg clientConfig, w *eventWriter) error {
	s, err := serviceByName(cfg.Service)
	if err != nil {
		return err
	}
	c := &client{cfg: cfg, service: s, events: w, rng: rng(cfg.Seed, pattern.Key(cfg.Seed, cfg.Name))}
	c.faults.Faults = cfg.Faults
	go listen(os.Stdin, c.handle)
	go sendStats(w, c.stats)
	if _, err := haveIPv6(); err != nil { // has the runtime open the files that it keeps open
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
			e.Do(func() { e.Leave(false) })
		}
	case doDisturbed:
		c.disturbed, c.token = true, cmd.Token
		if e != nil {
			e.Do(func() { e.Leave(c.service.datagrams()) })
		}
	case doQuiet:
		go c.quiet(cmd)
	case doResume:
		if e != nil {
			e.Do(e.Resume)
		}
	case doDescribe:
		if e != nil {
			e.Do(func() { fmt.Fprintf(os.Stderr, "soak: session %d: %v\n", c.number, e.Describe()) })
		}
	}
}

// quiet stops the work of a client that stays, and reports what it holds.
func (c *client) quiet(cmd command) {
	c.mu.Lock()
	e := c.e
	c.mu.Unlock()
	e.Do(e.Pause)
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
		e.Ask(func() { s.add(e.stats()) })
	}
	return &s
}

// runContext runs one context, with one session after the other.
func (c *client) runContext() error {
	e, err := c.service.open(traffic.Config{
		Name: c.cfg.Name, Places: clientPlaces, Seed: c.cfg.Seed, Rand: rng(c.rng.Uint64(), 0), Leaving: c.endsAtOnce, Wrong: c.check,
		Lost: func(l *traffic.Link, err error) { c.lost(l.Number, err) },
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	if c.faults.Faults != (command{}).Faults {
		c.check(e.dev.SetFaults(c.faults.Faults))
	}
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
	e.Ask(func() { last = e.stats() })
	c.mu.Lock()
	c.e = nil
	c.past.add(last)
	c.past.Links = 0
	c.mu.Unlock()
	return errors.Join(err, e.stop())
}

// lost reports that a session has failed.
func (c *client) lost(session int, err error) {
	c.events.send(event{Is: isLost, Client: c.cfg.Name, Session: session, Text: err.Error()})
}

// begin assigns a number to the next session.
func (c *client) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	if c.disturbed {
		c.disturbed = false
		c.events.send(event{Is: isSettled, Token: c.token, Session: c.number})
	}
}

// endsAtOnce reports whether a session should end as soon as it begins.
func (c *client) endsAtOnce() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving || c.disturbed
}

// session runs one session, of one link or several.
func (c *client) session(e *end) error {
	c.begin()
	links, about := 1, session{client: c.cfg.Name, number: c.number, steady: c.cfg.Steady}
	cfg := traffic.LinkConfig{Client: c.cfg.Name, Number: c.number, First: true, Stays: c.cfg.Steady, Budget: traffic.Size(c.rng, 400)}
	switch {
	case c.cfg.Steady:
		cfg.Budget, cfg.Pause = 0, maxPause
	case !c.service.sessions():
		cfg.Budget *= 4
	case !c.service.datagrams():
		about.abrupt = c.rng.IntN(8) == 0
		if c.rng.IntN(4) == 0 {
			links += c.rng.IntN(clientPlaces)
		}
	}
	cfg.Abrupt = about.abrupt
	ended := make(chan struct{})
	left := links
	over := func() {
		if left--; left == 0 {
			close(ended)
		}
	}
	e.Do(func() { e.Ended = func(*traffic.Link) { over() } })
	if c.service.transport == verbs.UD && c.cfg.ByCM {
		c.resolve(e, cfg, over)
		<-ended
		return nil
	}
	// A listening server decides how many connections it makes with each client, which is one.
	// So the client connects as several clients.
	var peers []*oob.Peer
	for about.index = range links {
		peer, err := c.exchange(e, about.String(), cfg, over)
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

// resolve finds the UD server by connection manager, and sends datagrams to it.
func (c *client) resolve(e *end, cfg traffic.LinkConfig, over func()) {
	e.Do(func() {
		failed := func(err error) {
			c.lost(cfg.Number, err)
			over()
		}
		err := e.Datagrams.ResolvePeer(c.cfg.Place.CM, rdma.DialConfig{}, func(peer *rdma.Peer, _ []byte, err error) {
			if err != nil {
				failed(err)
				return
			}
			e.Ping(peer, cfg, over)
		})
		if err != nil {
			failed(err)
		}
	})
}

// exchange makes one link by an exchange of descriptors.
func (c *client) exchange(e *end, name string, cfg traffic.LinkConfig, over func()) (*oob.Peer, error) {
	way := "tcp:" + c.cfg.Place.TCP
	if c.cfg.ByCM && !c.service.datagrams() {
		way = "cm:" + c.cfg.Place.CM
	}
	peer, err := oob.Open(way, oob.Config{Name: name, Peer: "server", Notify: func(string) {}})
	if err != nil {
		return nil, err
	}
	cfg.Name = linkName(name)
	offer := oob.Offer{Maps: []*mmap.Map{e.Mem}[:c.service.maps()]}
	e.Do(func() {
		peer.Exchange(context.Background(), e.Ctx, offer, func(a *oob.Answer, err error) {
			if err == nil {
				err = c.meet(e, a, cfg, over)
			}
			if err != nil {
				c.lost(cfg.Number, err)
				over()
			}
		})
	})
	return peer, nil
}

// meet begins the work with the server.
func (c *client) meet(e *end, a *oob.Answer, cfg traffic.LinkConfig, over func()) error {
	switch c.service.transport {
	case verbs.UD:
		e.Ping(a.Peer, cfg, over)
	case verbs.SRD:
		l, err := e.Meet(a.Peer, cfg)
		if err != nil {
			return err
		}
		if c.endsAtOnce() {
			l.Abandon()
			return nil
		}
		l.Hello()
	default:
		_, err := e.Connect(a.Connections[0], a.Maps[0], cfg)
		return err
	}
	return nil
}

// linkName is the name of a link of a session, by which both ends know its data.
func linkName(name string) []any { return []any{name} }

// sendStats reports to the controller what has been done so far, once per interval.
func sendStats(w *eventWriter, now func() *stats) {
	for range time.Tick(beatEvery) {
		h := resources{Goroutines: runtime.NumGoroutine(), RSS: int64(footprint.Resident())}
		w.send(event{Is: isBeat, Stats: now(), Held: &h})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

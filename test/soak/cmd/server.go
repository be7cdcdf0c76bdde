package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/pattern"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/test/traffic"
	"github.com/verbena-rdma/verbena/verbs"
)

// server is the server process.
type server struct {
	wire      *eventWriter
	seed      uint64
	ends      []*end
	listeners []*oob.Listener
	left      chan struct{}
	leave     sync.Once
	points    int
	last      atomic.Pointer[stats] // final; set at the end
}

// serverPlaces is the greatest number of connections of each context. While all places are
// taken, even by dead clients, new clients wait.
const serverPlaces = 32

func runServer(seed uint64, w *eventWriter) (err error) {
	s := &server{wire: w, seed: seed, left: make(chan struct{})}
	ipv6, err := haveIPv6() // also has the runtime open the files that it keeps open
	if err != nil {
		return err
	}
	base := processResources()
	places := map[string]place{}
	for _, v := range services(ipv6) {
		if places[v.name], err = s.open(v); err != nil {
			return fmt.Errorf("serve %s: %w", v.name, err)
		}
	}
	w.send(event{Is: isReady, Places: places})
	go listen(os.Stdin, s.handle)
	go sendStats(w, s.stats)
	<-s.left
	for _, l := range s.listeners {
		err = errors.Join(err, l.Close())
	}
	last := s.stats()
	w.send(event{Is: isBeat, Stats: last})
	s.last.Store(last)
	for _, e := range s.ends {
		err = errors.Join(err, e.stop())
	}
	if err == nil {
		base.Goroutines += 2 // one listens to the controller, one sends beats
		err = settled(base)
	}
	return err
}

// open opens a service, and returns its address.
func (s *server) open(v service) (p place, err error) {
	e, err := v.open(traffic.Config{
		Name: "server of " + v.name, Places: serverPlaces, Seed: s.seed, Rand: rng(s.seed, pattern.Key(s.seed, v.name)),
		Wrong: func(err error) { s.wire.send(event{Is: isWrong, Service: v.name, Text: err.Error()}) },
		Lost: func(l *traffic.Link, err error) {
			s.wire.send(event{Is: isLost, Service: v.name, Client: l.Client, Session: l.Number, Text: err.Error()})
		},
	})
	if err != nil {
		return p, err
	}
	s.ends = append(s.ends, e)
	host := "127.0.0.1"
	if v.ipv6 {
		host = "[::1]"
	}
	if p.TCP, err = s.listen(e, "tcp:127.0.0.1:0"); err != nil {
		return p, err
	}
	switch v.transport {
	case verbs.UD:
		e.Ask(func() {
			e.AnswerPings()
			var l *rdma.Listener
			if l, err = e.Ctx.Listen(host+":0", rdma.ListenConfig{}); err == nil {
				p.CM = l.Addr().String()
			}
		})
	case verbs.RC:
		p.CM, err = s.listen(e, "cm:"+host+":0")
	}
	return p, err
}

// listen makes a service reachable for clients.
func (s *server) listen(e *end, way string) (string, error) {
	l, err := oob.Listen(way, oob.Config{Name: "server", Expect: &oob.Expect{Maps: e.service.maps()}})
	if err != nil {
		return "", err
	}
	s.listeners = append(s.listeners, l)
	if err := l.Serve(e.Ctx, oob.Offer{Maps: []*mmap.Map{e.Mem}[:e.service.maps()]}, func(name string, a *oob.Answer) error { return s.accept(e, name, a) }); err != nil {
		return "", err
	}
	for limit := time.Now().Add(patience); strings.HasSuffix(l.Addr(), ":0"); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			return "", fmt.Errorf("listen on %s: no port was available within %v", way, patience)
		}
	}
	return l.Addr(), nil
}

// accept accepts a client, on the engine's goroutine.
func (s *server) accept(e *end, name string, a *oob.Answer) error {
	about, err := parseSession(name)
	if err != nil {
		return err
	}
	cfg := traffic.LinkConfig{Name: linkName(name), Client: about.client, Number: about.number, Abrupt: about.abrupt, Stays: about.steady}
	if about.steady {
		cfg.Pause = maxPause
	}
	switch e.service.transport {
	case verbs.UD:
		err = a.Peer.Forget() // it is known by its messages
	case verbs.SRD:
		_, err = e.Meet(a.Peer, cfg)
	default:
		_, err = e.Connect(a.Connections[0], a.Maps[0], cfg)
	}
	e.Check(err)
	e.admitted()
	return err
}

// handle executes a command.
func (s *server) handle(cmd command) {
	switch cmd.Do {
	case doFaults:
		e := s.end(cmd.Service)
		if err := e.dev.SetFaults(cmd.Faults); err != nil {
			e.Wrong(err)
		}
	case doGone:
		e := s.end(cmd.Service)
		e.Do(func() {
			for l := range e.Links {
				if l.Client == cmd.Client {
					l.GiveUp(errors.New("the client has disconnected"))
				}
			}
		})
	case doQuiet:
		go s.quiet(cmd)
	case doResume:
		for _, e := range s.ends {
			e.Do(e.Resume)
		}
	case doDescribe:
		for _, e := range s.ends {
			e.Do(func() { fmt.Fprintf(os.Stderr, "soak: %s: %v\n", e.service.name, e.Describe()) })
		}
	case doLeave:
		s.leave.Do(func() { close(s.left) })
	}
}

func (s *server) end(name string) *end {
	for _, e := range s.ends {
		if e.service.name == name {
			return e
		}
	}
	panic("no service " + name)
}

// quiet stops all work, and reports what is held once only the clients that stay are left.
func (s *server) quiet(cmd command) {
	links := make([]int, len(s.ends))
	for i, e := range s.ends {
		e.Do(e.Pause)
		if e.service.sessions() {
			links[i] = cmd.Steady
		}
	}
	h, err := settle(s.ends, cmd, links)
	if profiles != "" {
		s.points++
		err = errors.Join(err, writeProfile(s.points))
	}
	s.wire.send(event{Is: isQuiet, Held: h, Text: text(err)})
}

// abandonHalfMade ends the links that are not connected.
func (e *end) abandonHalfMade() {
	for l := range e.Links {
		if l.Conn != nil && l.Conn.State() != rdma.Ready {
			l.Abandon()
		}
	}
}

// settle waits until the ends are idle and the process holds no more than at earlier quiet
// points. At the first quiet point it waits until the process holds no more than at the
// previous check.
func settle(ends []*end, cmd command, links []int) (*resources, error) {
	var h resources
	var err error
	total := 0
	for _, n := range links {
		total += n
	}
	for limit := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		before := h
		h = processResources()
		quiet := true
		for i, e := range ends {
			e.Ask(func() {
				if cmd.Hasty {
					e.abandonHalfMade() // again: the request of a dead client can arrive late
				}
				quiet = quiet && e.Quiet(links[i])
				e.addResources(&h)
			})
		}
		switch {
		case !quiet:
			err = h.leftOver(total)
			if err == nil {
				err = errors.New("operations are in progress, or a connection does not belong to the program")
			}
		case cmd.Base != nil:
			err = h.counts(cmd.Base)
		default:
			if err = h.leftOver(total); err == nil {
				err = h.counts(&before)
			}
		}
		if err == nil {
			return &h, nil
		}
		if time.Now().After(limit) {
			for _, e := range ends {
				e.Ask(func() { err = errors.Join(err, e.Describe()) })
			}
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			return &h, fmt.Errorf("%v after the last client left: %w", patience, err)
		}
	}
}

func (s *server) stats() *stats {
	if last := s.last.Load(); last != nil {
		return last // the engines are closed, or will be at once
	}
	var sum stats
	for _, e := range s.ends {
		e.Ask(func() { sum.add(e.stats()) })
	}
	return &sum
}

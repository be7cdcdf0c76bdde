package oob_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestCMInvalid(t *testing.T) {
	for _, text := range []string{"cm", "cm:", "cm:host", "cm:host:service", "cm:host:65536", "cm:fe80::1:7"} {
		_, err := oob.Parse(text)
		assert.ErrorIs(t, err, oob.ErrInvalid, text)
	}
	for text, why := range map[string]string{"cm::7471": "give the host that reader runs on", "cm:localhost:0": "give the port that reader listens on"} {
		_, err := oob.Open(text, writer(nil))
		assert.ErrorIs(t, err, oob.ErrInvalid)
		assert.ErrorContains(t, err, why)
		_, err = oob.Open(text, reader())
		assert.NoError(t, err)
	}
	_, err := oob.Open("cm:no-such-host.invalid:7471", reader())
	assert.ErrorContains(t, err, "no-such-host.invalid")
	_, err = oob.Listen("cm:no-such-host.invalid:7471", oob.Config{Name: "server"})
	assert.ErrorContains(t, err, "no-such-host.invalid")
}

// What the private data has no room for is refused at once, and the error names other ways.
func TestCMOffersTooMuch(t *testing.T) {
	offers := func(p *program) map[string]oob.Offer {
		m := made(mmap.Alloc(p.dev, 64, mmap.LocalReadWrite|mmap.RemoteWrite))
		e := made(syncevent.New(p.dev, syncevent.Config{Publishers: syncevent.PublishRemote}))
		return map[string]oob.Offer{
			"0 are offered":         {Connections: -1},
			"256 are offered":       {Connections: 256},
			"2 memory maps":         {Maps: []*mmap.Map{m, m}},
			"1 memory maps and 1 s": {Maps: []*mmap.Map{m}, Events: []*syncevent.Event{e}},
			"room for 10 bytes":     {Maps: []*mmap.Map{m}, Data: make([]byte, 11)},
			"room for 31 bytes":     {Data: make([]byte, 1000)},
			"room for 183 bytes":    {Data: make([]byte, 184)},
		}
	}
	for text := range offers(newProgram(t, oob.Carried(&fakeWay{}), writer(nil), rdma.Config{})) {
		cfg := writer(nil)
		if text == "room for 183 bytes" {
			cfg = reader()
		}
		p := newProgram(t, must(oob.CM(freeCM())), cfg, rdma.Config{MaxConnections: 300})
		offer := offers(p)[text]
		p.rdma.OnStateChange(func(_, next pe.State) {
			assert.NotEqual(t, pe.Running, next)
			if next == pe.Starting {
				p.peer.Exchange(t.Context(), p.rdma, offer, nil)
			}
		})
		err := p.run(forever(t))
		assert.ErrorIs(t, err, oob.ErrInvalid, text)
		assert.ErrorContains(t, err, text)
		assert.ErrorContains(t, err, "exchange through a folder (dir:PATH), TCP (tcp:HOST:PORT), standard input (stdio) or files")
	}
	p := newProgram(t, must(oob.CM(freeCM())), oob.Config{Name: "writer" + strings.Repeat("r", 50), Peer: "reader"}, rdma.Config{})
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Connect(p.rdma, nil)
		}
	})
	assert.ErrorContains(t, p.run(forever(t)), "shorten the name")

	server := newProgram(t, oob.Carried(&fakeWay{}), writer(nil), rdma.Config{MaxConnections: 300})
	for text, offer := range offers(server) {
		l, err := oob.Listen("cm:"+freeCM(), oob.Config{Name: "server"})
		require.NoError(t, err)
		if err := l.Serve(server.rdma, offer, func(string, *oob.Answer) error { return nil }); strings.HasPrefix(text, "room for") {
			assert.NoError(t, err)
		} else {
			assert.ErrorIs(t, err, oob.ErrInvalid)
		}
		assert.NoError(t, l.Close())
	}
}

// A sync event fits, and so does all the room that there is.
func TestCMCarries(t *testing.T) {
	address := freeCM()
	w := newProgram(t, must(oob.CM(address)), writer(&oob.Expect{Events: 1}), rdma.Config{})
	r := newProgram(t, must(oob.CM(address)), reader(), rdma.Config{})
	m := made(mmap.Alloc(w.dev, 123, mmap.LocalReadWrite|mmap.RemoteWrite|mmap.RemoteAtomic))
	e := made(syncevent.New(r.dev, syncevent.Config{Publishers: syncevent.PublishRemote}))
	ours, theirs := append(make([]byte, 9), 'w'), append(make([]byte, 166), 0)
	done := make(chan error)
	exchange := func(p *program, offer oob.Offer, check func(a *oob.Answer)) {
		p.rdma.OnStateChange(func(_, next pe.State) {
			switch next {
			case pe.Starting:
				p.peer.Exchange(t.Context(), p.rdma, offer, func(a *oob.Answer, err error) {
					p.rdma.Fail(err)
					if err == nil {
						check(a)
					}
				})
			case pe.Running:
				for _, conn := range p.rdma.List() {
					assert.Equal(t, rdma.Ready, conn.State())
				}
				p.rdma.Stop()
			}
		})
	}
	exchange(w, oob.Offer{Maps: []*mmap.Map{m}, Data: ours}, func(a *oob.Answer) {
		assert.Equal(t, theirs, a.Data)
		assert.Equal(t, e.Friends(friend.Package{}).Addr(), a.Events[0].Friends(friend.Package{}).Addr())
	})
	exchange(r, oob.Offer{Events: []*syncevent.Event{e}, Data: theirs}, func(a *oob.Answer) {
		assert.Equal(t, ours, a.Data)
		assert.Equal(t, 123, a.Maps[0].Len())
		assert.Equal(t, m.Addr(), a.Maps[0].Addr())
		assert.Equal(t, mmap.RemoteWrite|mmap.RemoteAtomic, a.Maps[0].Permissions())
	})
	go func() { done <- r.run(forever(t)) }()
	require.NoError(t, w.run(forever(t)))
	require.NoError(t, <-done)
}

// A server that needs a number of clients is Running when they are there.
func TestCMListenerAwaits(t *testing.T) {
	server := newProgram(t, oob.Carried(&fakeWay{}), oob.Config{Name: "unused", Peer: "nobody"}, rdma.Config{MaxConnections: 2})
	l, err := oob.Listen("cm::0", oob.Config{Name: "server", Await: 2})
	require.NoError(t, err)
	clients := 0
	require.NoError(t, l.Serve(server.rdma, oob.Offer{}, func(string, *oob.Answer) error { clients++; return nil }))
	server.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			assert.Equal(t, 2, clients)
			for _, conn := range server.rdma.List() {
				assert.Equal(t, rdma.Ready, conn.State())
			}
		}
	})
	ended := make(chan error)
	go func() { ended <- server.run(forever(t)) }()
	way := wayTo(t, "cm:", l)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			client := newProgram(t, must(oob.Parse(way)), oob.Config{Name: "client", Peer: "server"}, rdma.Config{EndWithLastConnection: true})
			client.rdma.OnStateChange(func(_, next pe.State) {
				if next == pe.Starting {
					client.peer.Connect(client.rdma, nil)
				}
			})
			client.run(forever(t))
		})
	}
	require.Eventually(t, func() bool { return server.rdma.State() == pe.Running }, 5*time.Minute, time.Millisecond)
	_ = server.engine.Do(func() { server.rdma.Stop() })
	require.NoError(t, <-ended)
	wg.Wait()
	require.NoError(t, l.Close())
}

// Where the context listens is known when it is Running.
func TestCMListenerAddr(t *testing.T) {
	server := newProgram(t, must(oob.Parse(waysToTest[0])), oob.Config{Name: "unused", Peer: "nobody"}, rdma.Config{})
	l, err := oob.Listen("cm::0", oob.Config{Name: "server"})
	require.NoError(t, err)
	assert.Equal(t, ":0", l.Addr())
	require.NoError(t, l.Serve(server.rdma, oob.Offer{Data: []byte("welcome")}, func(string, *oob.Answer) error { return nil }))
	address := make(chan string, 1)
	server.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			address <- l.Addr()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.run(ctx) }()
	at := netip.MustParseAddrPort(<-address)
	assert.Equal(t, server.rdma.GID().GID.Addr(), at.Addr())
	assert.NotZero(t, at.Port())

	// A context that cannot listen there fails.
	other := newProgram(t, must(oob.CM(fmt.Sprintf("localhost:%d", at.Port()))), reader(), rdma.Config{})
	other.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			other.peer.Connect(other.rdma, nil)
		}
	})
	assert.ErrorIs(t, other.run(forever(t)), verbs.ErrInUse)
	foreign := newProgram(t, must(oob.CM("192.0.2.1:7471")), reader(), rdma.Config{})
	foreign.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			foreign.peer.Connect(foreign.rdma, nil)
		}
	})
	assert.Error(t, foreign.run(forever(t)), "it is no address of the device")
	cancel()
	assert.ErrorIs(t, <-ended, context.Canceled)
	assert.NoError(t, l.Close())
}

// Whatever ends the wait, the callback runs once, and the context does not run.
func TestCMCancel(t *testing.T) {
	reason := errors.New("enough")
	for name, test := range map[string]struct {
		cancel func(p *program, ctx context.CancelCauseFunc)
		want   error // of the callback
	}{
		"context.Context":    {func(_ *program, cancel context.CancelCauseFunc) { cancel(reason) }, reason},
		"the context stops":  {func(p *program, _ context.CancelCauseFunc) { _ = p.engine.Do(func() { p.rdma.Stop() }) }, oob.ErrFlushed},
		"the peer is closed": {func(p *program, _ context.CancelCauseFunc) { assert.NoError(p.t, p.peer.Close(reason)) }, oob.ErrClosed},
	} {
		for _, cfg := range []oob.Config{writer(nil), reader()} {
			for _, wait := range []time.Duration{0, 30 * time.Millisecond} {
				t.Run(fmt.Sprintf("%s, %s, %v", name, cfg.Name, wait), func(t *testing.T) {
					p := newProgram(t, must(oob.CM(freeCM())), cfg, rdma.Config{})
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					called := 0
					p.rdma.OnStateChange(func(_, next pe.State) {
						assert.NotEqual(t, pe.Running, next)
						if next != pe.Starting {
							return
						}
						p.peer.Exchange(ctx, p.rdma, oob.Offer{}, func(a *oob.Answer, err error) {
							called++
							assert.Nil(t, a)
							assert.ErrorIs(t, err, test.want)
							p.rdma.Fail(err)
						})
						assert.Contains(t, p.peer.Waiting(), cfg.Peer+", through cm:localhost:")
						time.AfterFunc(wait, func() { test.cancel(p, cancel) })
					})
					err := p.run(forever(t))
					if !errors.Is(test.want, oob.ErrFlushed) {
						require.ErrorIs(t, err, test.want)
					}
					assert.Equal(t, 1, called)
					require.NoError(t, p.peer.Close(nil))
				})
			}
		}
	}
}

// How the requester has ended goes with the end of its connection.
func TestCMReports(t *testing.T) { simulate(t, 3, testCMReports) }

func testCMReports(t *sim.Sim) {
	reason := errors.New("on purpose")
	for _, test := range []struct {
		name  string
		ready func(p *program, cancel func()) // is called when the requester's connection is Ready
		want  error                           // of the requester
	}{
		{"success", func(*program, func()) {}, nil},
		{"failure", func(p *program, _ func()) { p.rdma.Fail(reason) }, reason},
		{"the engine has to end", func(_ *program, cancel func()) { cancel() }, context.Canceled},
	} {
		w := newWriter(t, must(oob.CM(simCM(t, "reader"))), "over the wire")
		seen := false
		r := newReader(t, must(oob.CM(simCM(t, "reader"))), func([]byte) { seen = true })
		ctx, cancel := context.WithCancel(forever(t))
		w.rdma.OnConnection(func(_ *rdma.Connection, s rdma.ConnectionState, _ error) {
			if s == rdma.Ready {
				test.ready(w, cancel)
			}
		})
		done := make(chan error)
		go func() { done <- w.run(ctx) }()
		err := r.run(forever(t))
		if test.want != nil {
			assert.ErrorIs(t, err, oob.ErrPeerFailed, test.name)
		} else {
			assert.NoError(t, err, test.name)
		}
		assert.Equal(t, test.want == nil, seen, test.name)
		require.ErrorIs(t, <-done, test.want, test.name)
		cancel()
	}
}

// What is no report is none, whatever the requester sends with the end of its connection.
func TestCMHostileReports(t *testing.T) {
	for name, test := range map[string]struct {
		data []byte
		want error
		text string
	}{
		"success":       {oob.EncodeReport(true), nil, ""},
		"failure":       {oob.EncodeReport(false), oob.ErrPeerFailed, ""},
		"none":          {nil, nil, ""}, // as by an adapter
		"garbage":       {[]byte("I am well"), descriptor.ErrFormat, "wrong report"},
		"full":          {bytes.Repeat([]byte{0xff}, 220), descriptor.ErrFormat, "wrong report"},
		"another kind":  {oob.EncodeReply("reader", nil), descriptor.ErrKind, "wrong report"},
		"more than one": {append(oob.EncodeReport(true), oob.EncodeReport(false)...), descriptor.ErrTrailing, "wrong report"},
	} {
		t.Run(name, func(t *testing.T) {
			address := freeCM()
			r := newReader(t, must(oob.CM(address)), func([]byte) {})
			done := make(chan error, 1)
			go func() { done <- r.run(forever(t)) }()
			s := newForeignProgram(t)
			conn, err := s.rdma.Dial(address, rdma.DialConfig{
				PrivateData:    oob.EncodeRequest("writer", "reader", testToken, 0, 1),
				DisconnectData: func(*rdma.Connection) []byte { return test.data },
			})
			require.NoError(t, err)
			s.until(func() bool { return conn.State() == rdma.Ready })
			require.NoError(t, conn.Close())
			err = s.wait(done)
			require.ErrorIs(t, err, test.want)
			if test.text != "" {
				require.ErrorContains(t, err, test.text)
			}
			s.stop()
		})
	}
}

// A responder that ends the connection itself gets no report.
func TestCMReportAfterOwnClose(t *testing.T) { simulate(t, 3, testCMReportAfterOwnClose) }

func testCMReportAfterOwnClose(t *sim.Sim) {
	r := newProgram(t, must(oob.CM(simCM(t, "reader"))), reader(), rdma.Config{})
	var reported error
	r.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			r.peer.Connect(r.rdma, nil)
		case pe.Running:
			r.peer.Done(func(err error) { reported = err; r.rdma.Stop() })
			assert.NoError(t, r.rdma.List()[0].Close())
		}
	})
	w := newProgram(t, must(oob.CM(simCM(t, "reader"))), writer(nil), rdma.Config{EndWithLastConnection: true})
	w.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			w.peer.Connect(w.rdma, nil)
		}
	})
	done := make(chan error)
	go func() { done <- w.run(forever(t)) }()
	require.NoError(t, r.run(forever(t)))
	require.NoError(t, <-done)
	require.ErrorContains(t, reported, "could not report whether it succeeded")
}

// Programs that do not belong together say so, and the responder goes on.
func TestCMWrongPeer(t *testing.T) {
	address := freeCM()
	cfg := reader()
	var mu sync.Mutex
	var lines []string
	cfg.Notify = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}
	r := newReaderAs(t, must(oob.CM(address)), cfg, func([]byte) {})
	done := make(chan error)
	go func() { done <- r.run(forever(t)) }()
	for _, wrong := range []struct {
		cfg         oob.Config
		connections int
		want        error
		text        string
	}{
		{oob.Config{Name: "burglar", Peer: "reader"}, 1, oob.ErrWrongPeer, `reader waits for "writer", but this program is burglar`},
		{oob.Config{Name: "writer", Peer: "library"}, 1, oob.ErrWrongPeer, `it is from "reader", but this program waits for library`},
		{oob.Config{Name: "writer", Peer: "reader"}, 2, oob.ErrRejected, "offers 2 connections, but this program offers 1"},
	} {
		p := newProgram(t, must(oob.CM(address)), wrong.cfg, rdma.Config{MaxConnections: 2})
		p.rdma.OnStateChange(func(_, next pe.State) {
			if next == pe.Starting {
				p.peer.Exchange(t.Context(), p.rdma, oob.Offer{Connections: wrong.connections}, nil)
			}
		})
		err := p.run(forever(t))
		assert.ErrorIs(t, err, wrong.want)
		assert.ErrorContains(t, err, wrong.text)
	}
	require.NoError(t, newWriter(t, must(oob.CM(address)), "it is me").run(forever(t)))
	require.NoError(t, <-done)
	mu.Lock()
	defer mu.Unlock()
	assert.Len(t, lines, 3)
	for _, line := range lines {
		assert.Contains(t, line, "a connection from 127.")
	}
}

// What a responder gets is not what it expects: both ends learn it.
func TestCMExpect(t *testing.T) {
	address := freeCM()
	cfg := reader()
	cfg.Expect = &oob.Expect{Events: 1}
	r := newReaderAs(t, must(oob.CM(address)), cfg, func([]byte) {})
	done := make(chan error)
	go func() { done <- r.run(forever(t)) }()
	err := newWriter(t, must(oob.CM(address)), "x").run(forever(t))
	assert.ErrorIs(t, err, oob.ErrRejected)
	assert.ErrorContains(t, err, "writer offers neither memory maps nor sync events, but this program expects a sync event")
	assert.ErrorIs(t, <-done, oob.ErrWrongPeer)
}

// foreignProgram is a program that sends messages of its own. The test drives its engine.
type foreignProgram struct {
	*program
}

func newForeignProgram(t testing.TB) *foreignProgram {
	s := &foreignProgram{newProgram(t, oob.Carried(&fakeWay{}), oob.Config{Name: "unused", Peer: "nobody"}, rdma.Config{MaxConnections: 200})}
	s.rdma.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
		if state == rdma.Failed {
			assert.NoError(t, conn.Close())
		}
	})
	require.NoError(t, s.rdma.Start())
	s.until(func() bool { return s.rdma.State() == pe.Running })
	return s
}

func (s *foreignProgram) until(done func() bool) {
	s.t.Helper()
	for ctx := forever(s.t); !done(); {
		require.NoError(s.t, ctx.Err())
		if n, _ := s.engine.Progress(); n > 0 {
			continue
		}
		if simulation, ok := s.t.(*sim.Sim); ok {
			simulation.Run(10 * time.Millisecond)
		} else {
			time.Sleep(time.Millisecond)
		}
	}
}

// wait drives the engine until a program has ended.
func (s *foreignProgram) wait(done chan error) (err error) {
	s.until(func() bool {
		select {
		case err = <-done:
			return true
		default:
			return false
		}
	})
	return err
}

func (s *foreignProgram) stop() {
	s.rdma.Stop()
	s.until(func() bool { return s.rdma.State() == pe.Idle })
}

// dial requests a connection with private data.
func (s *foreignProgram) dial(address string, data []byte) *rdma.Connection {
	conn, err := s.rdma.Dial(address, rdma.DialConfig{PrivateData: data, OnResponse: func(*rdma.Connection) {}})
	require.NoError(s.t, err)
	return conn
}

// rejected waits for the rejection of a connection, and returns what came with it.
func (s *foreignProgram) rejected(conn *rdma.Connection) []byte {
	s.t.Helper()
	s.until(func() bool { return conn.State() == rdma.Closed })
	var failure *verbs.CMError
	require.ErrorAs(s.t, conn.Err(), &failure)
	return failure.PrivateData
}

// lines are what a responder has noted.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.list, "\n")
}

var testToken = [8]byte{1, 2, 3, 4, 5, 6, 7, 8}

// A responder accepts its requester, whatever other programs request.
func TestCMHostileRequesters(t *testing.T) {
	defer oob.SetConfirmTimeout(2 * time.Second)()
	address := freeCM()
	cfg := reader()
	var noted lines
	cfg.Notify = noted.add
	r := newReaderAs(t, must(oob.CM(address)), cfg, func([]byte) {})
	done := make(chan error)
	go func() { done <- r.run(forever(t)) }()
	s := newForeignProgram(t)
	good := oob.EncodeRequest("writer", "reader", testToken, 0, 1)
	changed := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	for text, data := range map[string][]byte{
		"does not come from package oob":                  nil,
		"has version 9":                                   changed(2, 9),
		"kind 3 is not expected":                          oob.EncodeRejection(true, ""),
		"kind 6 is not expected":                          oob.EncodeReport(true),
		"kind 77 is not expected":                         changed(3, 77),
		"a field of 200 bytes":                            changed(16, 200), // the length of the name
		"has invalid values":                              append(bytes.Clone(good), 1),
		"offers 2 connections, but this program offers 1": oob.EncodeRequest("writer", "reader", testToken, 0, 2),
		"is for connection 1 of 1":                        oob.EncodeRequest("writer", "reader", testToken, 1, 1),
	} {
		busy, got, err := oob.DecodeRejection(s.rejected(s.dial(address, data)))
		require.NoError(t, err)
		assert.False(t, busy)
		assert.Contains(t, got, text)
	}
	for _, names := range [][2]string{{"burglar", "reader"}, {"writer", "library"}, {"../x", "reader"}, {"", "reader"}} {
		name, peer, err := oob.DecodeOtherNames(s.rejected(s.dial(address, oob.EncodeRequest(names[0], names[1], testToken, 0, 1))))
		require.NoError(t, err)
		assert.Equal(t, "reader for writer", name+" for "+peer)
	}
	var flood []*rdma.Connection
	for range 100 {
		flood = append(flood, s.dial(address, nil))
	}
	for _, conn := range flood {
		s.rejected(conn)
	}

	// One that never confirms leaves its place after a while, and so does one that goes.
	silent := s.dial(address, good)
	s.until(func() bool { return silent.State() == rdma.Closed })
	left := s.dial(address, good)
	s.until(func() bool { return left.AcceptData() != nil })
	require.NoError(t, left.Close())
	s.until(func() bool { return left.State() == rdma.Closed })
	last := s.dial(address, good) // which is there when the requester comes, and has the only place

	w := newWriter(t, must(oob.CM(address)), "it is me")
	written := make(chan error)
	go func() { written <- w.run(forever(t)) }()
	require.NoError(t, s.wait(written))
	require.NoError(t, <-done)
	s.until(func() bool { return last.State() == rdma.Closed })
	assert.Equal(t, 8, strings.Count(noted.String(), "was rejected"), "the rest is not worth a line")
	s.stop()
}

// The requests of an exchange of several connections come together, or give way to others.
func TestCMIncompleteRequesters(t *testing.T) {
	address := freeCM()
	offer := oob.Offer{Connections: 2}
	r := newProgram(t, must(oob.CM(address)), reader(), rdma.Config{MaxConnections: 2})
	w := newProgram(t, must(oob.CM(address)), writer(nil), rdma.Config{MaxConnections: 2})
	for _, p := range []*program{r, w} {
		p.rdma.OnStateChange(func(_, next pe.State) {
			switch next {
			case pe.Starting:
				p.peer.Exchange(t.Context(), p.rdma, offer, nil)
			case pe.Running:
				p.rdma.Stop()
			}
		})
	}
	done := make(chan error)
	go func() { done <- r.run(forever(t)) }()
	s := newForeignProgram(t)
	// One asks twice for the same connection, and one gives up.
	first := s.dial(address, oob.EncodeRequest("writer", "reader", testToken, 0, 2))
	s.until(func() bool { return first.State() == rdma.Connecting })
	second := s.dial(address, oob.EncodeRequest("writer", "reader", testToken, 0, 2))
	s.until(func() bool { return first.State() == rdma.Closed || second.State() == rdma.Closed })
	assert.NoError(t, errors.Join(first.Close(), second.Close()))
	var flood []*rdma.Connection
	for i := range 100 {
		flood = append(flood, s.dial(address, oob.EncodeRequest("writer", "reader", [8]byte{byte(i), 1}, uint8(i%2), 2)))
	}
	given := func() (n int) {
		for _, conn := range flood {
			if conn.State() == rdma.Closed {
				n++
			}
		}
		return n
	}
	s.until(func() bool { return given() >= 36 })
	written := make(chan error)
	go func() { written <- w.run(forever(t)) }()
	require.NoError(t, s.wait(written))
	require.NoError(t, s.wait(done))
	s.until(func() bool { return given() == 100 })
	s.stop()
}

// A responder that has met its requester has no time for others.
func TestCMAfterTheExchange(t *testing.T) {
	address := freeCM()
	r := newReader(t, must(oob.CM(address)), func([]byte) {})
	done, written, running := make(chan error), make(chan error), make(chan struct{})
	go func() { done <- r.run(forever(t)) }()
	w := newProgram(t, must(oob.CM(address)), writer(nil), rdma.Config{})
	w.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			w.peer.Connect(w.rdma, nil)
		case pe.Running:
			close(running)
		}
	})
	go func() { written <- w.run(forever(t)) }()
	<-running
	s := newForeignProgram(t)
	busy, text, err := oob.DecodeRejection(s.rejected(s.dial(address, oob.EncodeRequest("writer", "reader", testToken, 0, 1))))
	require.NoError(t, err)
	assert.True(t, busy)
	assert.Contains(t, text, "cannot accept this program")
	_ = w.engine.Do(func() { w.rdma.Stop() })
	require.NoError(t, <-written)
	require.NoError(t, <-done)
	s.stop()
}

// A requester does not believe what answers.
func TestCMHostileResponders(t *testing.T) {
	m, err := descriptor.Encode(descriptor.MemoryMap, append(make([]byte, 23), byte(mmap.RemoteWrite))) // of no length
	require.NoError(t, err)
	reply := oob.EncodeReply("reader", m)
	accepts := func(data []byte) func(q *rdma.ConnectRequest) error {
		return func(q *rdma.ConnectRequest) error {
			_, err := q.Accept(rdma.AcceptConfig{PrivateData: data})
			return err
		}
	}
	rejects := func(data []byte) func(q *rdma.ConnectRequest) error {
		return func(q *rdma.ConnectRequest) error { return q.Reject(data) }
	}
	for name, test := range map[string]struct {
		answer func(q *rdma.ConnectRequest) error
		want   error
		text   string
	}{
		"accepts without a word":   {accepts(nil), descriptor.ErrFormat, "does not come from package oob"},
		"another version":          {accepts(append([]byte("VC\x07"), reply[3:]...)), descriptor.ErrVersion, "version 7"},
		"another kind":             {accepts(oob.EncodeReport(true)), descriptor.ErrKind, "not expected"},
		"an unknown kind":          {accepts([]byte("VC\x02\xff")), descriptor.ErrKind, "kind 255"},
		"truncated":                {accepts([]byte("VC\x02\x02\xff")), descriptor.ErrTruncated, ""},
		"trailing":                 {accepts(append(bytes.Clone(reply), 1)), descriptor.ErrTrailing, ""},
		"a resource of a bad kind": {accepts([]byte("VC\x02\x02\x01a\x01")), descriptor.ErrTrailing, ""},
		"a lying map":              {accepts(reply), descriptor.ErrFormat, "its length is 0"},
		"another":                  {accepts(oob.EncodeReply("other", m)), oob.ErrWrongPeer, `it is from "other"`},
		"without a map":            {accepts(oob.EncodeReply("reader", nil)), oob.ErrWrongPeer, "expects a memory map"},
		"rejects with garbage":     {rejects([]byte("go away")), rdma.ErrRejected, "does not come from package oob"},
		"rejects with a reply":     {rejects(oob.EncodeReply("reader", nil)), descriptor.ErrKind, "not expected"},
		"rejects with a reason":    {rejects(oob.EncodeRejection(false, "no \x1b[2J")), oob.ErrRejected, `"no \x1b[2J"`},
		"rejects with names":       {rejects(oob.EncodeOtherNames("ot\x1bher", "writer")), oob.ErrWrongPeer, `it is from "ot\x1bher"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newForeignProgram(t)
			l, err := s.rdma.Listen(":0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { assert.NoError(t, test.answer(q)) }})
			require.NoError(t, err)
			p := newProgram(t, must(oob.CM(fmt.Sprintf("localhost:%d", l.Addr().Port()))), writer(&oob.Expect{Maps: 1}), rdma.Config{})
			p.rdma.OnStateChange(func(_, next pe.State) {
				assert.NotEqual(t, pe.Running, next)
				if next == pe.Starting {
					p.peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) })
				}
			})
			p.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) { assert.NotEqual(t, rdma.Ready, state) })
			done := make(chan error, 1)
			go func() { done <- p.run(forever(t)) }()
			err = s.wait(done)
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.text)
			assert.NotContains(t, err.Error(), "\n")
			s.stop()
		})
	}
}

// The requester's note, and its error when it is given up, say that nobody listens.
func TestCMSaysWhyNobodyAnswers(t *testing.T) { simulate(t, 3, testCMSaysWhyNobodyAnswers) }

func testCMSaysWhyNobodyAnswers(s *sim.Sim) {
	t := s
	cfg := writer(nil)
	lines := make(chan string, 100)
	cfg.Notify = func(line string) { lines <- line }
	p := newProgram(t, must(oob.CM(simCM(s, "writer"))), cfg, rdma.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Exchange(ctx, p.rdma, oob.Offer{}, nil)
		}
	})
	done := make(chan error, 1)
	go func() { done <- p.run(forever(t)) }()
	assert.Contains(t, <-lines, rdma.ErrNotListening.Error())
	cancel()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, rdma.ErrNotListening)
}

// A responder that goes before it has answered is waited for, and so is one that has no room.
func TestCMTriesAgain(t *testing.T) { simulate(t, 3, testCMTriesAgain) }

func testCMTriesAgain(t *sim.Sim) {
	s := newForeignProgram(t)
	requests := 0
	_, err := s.rdma.Listen(":7471", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		switch requests++; requests % 3 {
		case 0:
			assert.NoError(t, q.Reject(nil))
		case 1:
			assert.NoError(t, q.Reject(oob.EncodeRejection(true, "later")))
		default:
			conn, err := q.Prepare()
			assert.NoError(t, err)
			assert.NoError(t, conn.Close()) // before it accepts, which sends the acceptance at once
			_, err = q.Accept(rdma.AcceptConfig{PrivateData: oob.EncodeReply("reader", nil)})
			assert.ErrorIs(t, err, rdma.ErrNotReady)
			assert.NoError(t, q.Reject(nil))
		}
	}})
	require.NoError(t, err)
	cfg := writer(nil)
	lines := make(chan string, 100)
	cfg.Notify = func(line string) { lines <- line }
	p := newProgram(t, must(oob.CM(simCM(t, "unused"))), cfg, rdma.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Exchange(ctx, p.rdma, oob.Offer{}, nil)
		}
	})
	done := make(chan error, 1)
	go func() { done <- p.run(forever(t)) }()
	s.until(func() bool { return requests >= 6 && len(lines) > 0 })
	cancel()
	err = s.wait(done)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "the last attempt")
	assert.Contains(t, <-lines, "reader does not answer at cm:"+simCM(t, "unused"))
	s.stop()
}

// A Listener has its places for those whose requests are complete, and for those that come.
func TestCMListenerHostile(t *testing.T) {
	var log bytes.Buffer
	s := newForeignProgram(t)
	server := newProgram(t, oob.Carried(&fakeWay{}), oob.Config{Name: "unused", Peer: "nobody"}, rdma.Config{MaxConnections: 2})
	l, err := oob.Listen("cm::0", oob.Config{Name: "server", Log: zerolog.New(&log)})
	require.NoError(t, err)
	require.NoError(t, l.Serve(server.rdma, oob.Offer{Connections: 2}, func(string, *oob.Answer) error { return nil }))
	ended := make(chan error)
	go func() { ended <- server.run(forever(t)) }()
	way := wayTo(t, "cm:", l)
	var conns []*rdma.Connection
	for i := range 79 { // more than may be incomplete
		conns = append(conns, s.dial(l.Addr(), oob.EncodeRequest("client", "server", [8]byte{byte(i), 1}, 0, 2)))
	}
	s.until(func() bool {
		closed := 0
		for _, conn := range conns {
			if conn.State() == rdma.Closed {
				closed++
			}
		}
		return closed >= 15
	})
	for range 2 { // both of whom are admitted; the first leaves before the second
		client := newProgram(t, must(oob.Parse(way)), oob.Config{Name: "client", Peer: "server"}, rdma.Config{MaxConnections: 2})
		client.rdma.OnStateChange(func(_, next pe.State) {
			switch next {
			case pe.Starting:
				client.peer.Exchange(t.Context(), client.rdma, oob.Offer{Connections: 2}, nil)
			case pe.Running:
				client.rdma.Stop()
			}
		})
		done := make(chan error)
		go func() { done <- client.run(forever(t)) }()
		require.NoError(t, s.wait(done))
	}
	_ = server.engine.Do(func() { server.rdma.Stop() })
	require.NoError(t, <-ended)
	require.NoError(t, l.Close())
	for _, conn := range conns {
		s.until(func() bool { return conn.State() == rdma.Closed })
	}
	s.stop()
	assert.Equal(t, 2, strings.Count(log.String(), ` connected"`))
}

// A requester that is killed when it has been admitted, and before its connection is Ready, leaves
// its place to the next.
func TestCMListenerOfOneThatNeverEstablishes(t *testing.T) {
	s := newForeignProgram(t)
	server := newProgram(t, oob.Carried(&fakeWay{}), oob.Config{Name: "unused", Peer: "nobody"}, rdma.Config{ConnectTimeout: 200 * time.Millisecond})
	l, err := oob.Listen("cm::0", oob.Config{Name: "server"})
	require.NoError(t, err)
	names := make(chan string, 10)
	require.NoError(t, l.Serve(server.rdma, oob.Offer{}, func(client string, _ *oob.Answer) error { names <- client; return nil }))
	ended := make(chan error)
	go func() { ended <- server.run(forever(t)) }()
	way := wayTo(t, "cm:", l)
	silent := s.dial(l.Addr(), oob.EncodeRequest("silent", "server", testToken, 0, 1))
	s.until(func() bool { return silent.AcceptData() != nil })
	client := newProgram(t, must(oob.Parse(way)), oob.Config{Name: "client", Peer: "server"}, rdma.Config{})
	client.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			client.peer.Connect(client.rdma, nil)
		case pe.Running:
			client.rdma.Stop()
		}
	})
	require.NoError(t, client.run(forever(t)))
	assert.Equal(t, "silent", <-names)
	assert.Equal(t, "client", <-names)
	_ = server.engine.Do(func() { server.rdma.Stop() })
	require.NoError(t, <-ended)
	require.NoError(t, l.Close())
	s.stop()
}

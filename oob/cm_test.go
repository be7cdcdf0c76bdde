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
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/oob/internal/greeting"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestCMInvalid(t *testing.T) {
	for _, text := range []string{"cm", "cm:", "cm:host", "cm:host:service", "cm:host:65536", "cm:fe80::1:7"} {
		_, err := oob.Parse(text)
		assert.ErrorIs(t, err, oob.ErrInvalid, text)
	}
	for text, why := range map[string]string{"cm::7471": "name the host that reader runs on", "cm:host:0": "name the port that reader listens on"} {
		_, err := oob.Open(text, writer(nil))
		assert.ErrorIs(t, err, oob.ErrInvalid)
		assert.ErrorContains(t, err, why)
		_, err = oob.Open(text, reader())
		assert.NoError(t, err)
	}
	way := must(oob.CM("host:7471"))
	_, err := way.Exchange(t.Context(), oob.Ends{}, nil)
	assert.ErrorIs(t, err, oob.ErrInvalid)
	assert.NoError(t, way.Close(true))

	// It makes at least one connection.
	p := newProgram(t, way, writer(nil), rdma.Config{})
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Exchange(t.Context(), p.rdma, oob.Offer{Connections: -1}, nil)
		}
	})
	assert.ErrorIs(t, p.run(forever(t)), oob.ErrInvalid)
}

// Where the context listens is known when it is Running.
func TestCMListenerAddr(t *testing.T) {
	server := newProgram(t, must(oob.Parse(places[0])), oob.Config{Name: "unused", Peer: "nobody"}, rdma.Config{})
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

// How the requester has ended, the responder learns from Close, or from the closing of the
// device, whichever comes first.
func TestCMReports(t *testing.T) {
	reason := errors.New("on purpose")
	for name, test := range map[string]struct {
		end  func(p *program) error // of a requester that runs
		fail bool
	}{
		"success": {func(p *program) error { return errors.Join(p.engine.Run(forever(t)), p.peer.Close(nil)) }, false},
		"failure": {func(p *program) error { return errors.Join(p.engine.Run(forever(t)), p.peer.Close(reason)) }, true},
		"device closed after success": {func(p *program) error {
			return errors.Join(p.engine.Run(forever(t)), p.engine.Close(), p.dev.Close(), p.peer.Close(reason))
		}, false},
		"device closed after failure": {func(p *program) error {
			p.rdma.OnConnection(func(_ *rdma.Connection, s rdma.ConnectionState, _ error) {
				if s == rdma.Ready {
					p.rdma.Fail(reason)
				}
			})
			assert.ErrorIs(t, p.engine.Run(forever(t)), reason)
			return errors.Join(p.engine.Close(), p.dev.Close())
		}, true},
		"device closed after the end of the engine": {func(p *program) error {
			ctx, cancel := context.WithCancel(forever(t))
			p.rdma.OnConnection(func(_ *rdma.Connection, s rdma.ConnectionState, _ error) {
				if s == rdma.Ready {
					cancel()
				}
			})
			assert.ErrorIs(t, p.engine.Run(ctx), context.Canceled)
			return errors.Join(p.engine.Close(), p.dev.Close())
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			address := freeCM()
			w := newWriter(t, must(oob.CM(address)), "over the wire")
			seen := false
			r := newReader(t, must(oob.CM(address)), func([]byte) { seen = true })
			done := make(chan error)
			go func() {
				if err := w.rdma.Start(); err != nil {
					done <- err
					return
				}
				done <- test.end(w)
			}()
			err := r.run(forever(t))
			if test.fail {
				assert.ErrorIs(t, err, oob.ErrPeerFailed)
			} else {
				assert.NoError(t, err)
			}
			assert.Equal(t, !test.fail, seen)
			require.NoError(t, <-done)
		})
	}
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
		{oob.Config{Name: "burglar", Peer: "reader"}, 1, oob.ErrWrongPeer, `reader waits for "writer", and this is burglar`},
		{oob.Config{Name: "writer", Peer: "library"}, 1, oob.ErrWrongPeer, `it is from "reader", expected was library`},
		{oob.Config{Name: "writer", Peer: "reader"}, 2, oob.ErrRejected, "offers 2 connections, this program 1"},
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
	assert.ErrorContains(t, err, "writer offers neither memory maps nor sync events, this program needs a sync event")
	assert.ErrorIs(t, <-done, oob.ErrWrongPeer)
}

// stranger is a program that speaks for itself. The test drives its engine.
type stranger struct {
	*program
	held map[*rdma.Connection]*strangersConnection
}

type strangersConnection struct {
	states []rdma.ConnectionState
	err    error
}

func newStranger(t *testing.T) *stranger {
	s := &stranger{program: newProgram(t, must(oob.Parse(places[0])), oob.Config{Name: "unused", Peer: "nobody"}, rdma.Config{MaxConnections: 200}),
		held: make(map[*rdma.Connection]*strangersConnection)}
	require.NoError(t, s.rdma.Start())
	s.until(func() bool { return s.rdma.State() == pe.Running })
	return s
}

func (s *stranger) until(done func() bool) {
	s.t.Helper()
	for ctx := forever(s.t); !done(); {
		require.NoError(s.t, ctx.Err())
		if n, _ := s.engine.Progress(); n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func (s *stranger) changed(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	c := s.held[conn]
	if c == nil {
		c = &strangersConnection{}
		s.held[conn] = c
	}
	c.states = append(c.states, state)
	if err != nil {
		c.err = err
	}
	if state == rdma.Failed {
		_ = conn.Close()
	}
}

// last is what has become of a connection.
func (s *stranger) last(conn *rdma.Connection) rdma.ConnectionState {
	if c := s.held[conn]; c != nil {
		return c.states[len(c.states)-1]
	}
	return rdma.Connecting
}

// dial asks with private data, and waits for the outcome.
func (s *stranger) dial(address string, data []byte) *rdma.Connection {
	conn, err := s.rdma.Dial(address, rdma.DialConfig{PrivateData: data, Held: s.changed})
	require.NoError(s.t, err)
	s.until(func() bool { return s.last(conn) == rdma.Ready || s.last(conn) == rdma.Closed })
	return conn
}

func (s *stranger) closed(conn *rdma.Connection) {
	s.t.Helper()
	s.until(func() bool { return s.last(conn) == rdma.Closed })
}

// land writes to memory of the peer.
func (s *stranger) land(conn *rdma.Connection, content []byte, addr uint64, key uint32) (err error) {
	m, err := mmap.New(s.dev, mmap.Config{Memory: content, Permissions: mmap.LocalReadWrite})
	require.NoError(s.t, err)
	defer func() { assert.NoError(s.t, m.Close()) }()
	done := false
	require.NoError(s.t, conn.WriteHeld(m, 0, len(content), addr, key, func(e error) { done, err = true, e }))
	s.until(func() bool { return done })
	return err
}

func word(kind greeting.WordKind, n int) []byte {
	b := make([]byte, greeting.WordSize)
	greeting.Word{Kind: kind, Length: uint32(n)}.Encode(b)
	return b
}

// Whatever strangers do to a responder, its requester gets through.
func TestCMHostileRequesters(t *testing.T) {
	defer oob.SetGuestTimeout(200 * time.Millisecond)()
	address := freeCM()
	cfg := reader()
	var mu sync.Mutex
	var lines []string
	cfg.Notify = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}
	noted := func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(lines, "\n")
	}
	r := newReaderWith(t, must(oob.CM(address)), cfg, rdma.Config{MaxConnections: 2}, func([]byte) {})
	done := make(chan error)
	go func() { done <- r.run(forever(t)) }()
	s := newStranger(t)
	request := func() *greeting.Request {
		return &greeting.Request{Token: greeting.NewToken(), Connections: 1, Landing: greeting.Landing{Addr: 4096, RKey: 1, Size: 4096}, Length: 100}
	}

	// Requests that make no sense.
	long := request()
	long.Length = 1 << 30
	for text, data := range map[string][]byte{
		"not of a program":                  nil,
		"of kind 5 is not expected":         (&greeting.Refusal{}).Encode(),
		"unknown version":                   append([]byte("VBNC\x09"), make([]byte, 40)...),
		"announces a bundle of 1073741824":  long.Encode(),
		"nobody has announced the connecti": (&greeting.Further{Token: greeting.NewToken(), Index: 1}).Encode(),
	} {
		conn := s.dial(address, data)
		s.closed(conn)
		var failure *verbs.CMError
		require.ErrorAs(t, s.held[conn].err, &failure, text)
		refusal, err := greeting.ReadRefusal(failure.PrivateData)
		require.NoError(t, err)
		assert.False(t, refusal.Busy)
		assert.Contains(t, refusal.Text, text)
	}

	// One that is silent leaves its place after a while.
	silent := s.dial(address, request().Encode())
	require.Equal(t, rdma.Ready, s.last(silent))
	s.closed(silent)
	assert.Contains(t, noted(), "it has not introduced itself within")

	// One that ends without a word is not waited for, and another may come.
	left := s.dial(address, request().Encode())
	require.Equal(t, rdma.Ready, s.last(left))
	require.NoError(t, left.Close())
	s.closed(left)
	s.until(func() bool {
		return strings.Contains(noted(), "it has ended before it introduced itself; waiting for another")
	})

	// What lands is garbage; the place for the reason does not exist either.
	for _, writes := range [][][]byte{
		{nil, word(greeting.Complete, 100)},
		{bytes.Repeat([]byte{0xff}, 100), word(greeting.Complete, 100)},
		{[]byte("x"), word(greeting.Complete, 1<<31-1)},
		{[]byte("x"), word(greeting.Refused, 1)},
		{[]byte("x"), []byte("garbage!")},
	} {
		conn := s.dial(address, request().Encode())
		require.Equal(t, rdma.Ready, s.last(conn))
		a, err := greeting.ReadAcceptance(conn.AcceptData())
		require.NoError(t, err)
		if writes[0] != nil {
			require.NoError(t, s.land(conn, writes[0], a.Landing.Addr+greeting.Words, a.Landing.RKey))
		}
		require.NoError(t, s.land(conn, writes[1], a.Landing.Addr, a.Landing.RKey))
		s.closed(conn)
	}

	// It cannot write behind its landing.
	conn := s.dial(address, request().Encode())
	a, err := greeting.ReadAcceptance(conn.AcceptData())
	require.NoError(t, err)
	assert.EqualValues(t, 100, a.Landing.Size)
	assert.Error(t, s.land(conn, make([]byte, 101), a.Landing.Addr+greeting.Words, a.Landing.RKey))
	s.closed(conn)

	// A connection that nobody has announced, and more at a time than there are places.
	first := request()
	conn = s.dial(address, first.Encode())
	require.Equal(t, rdma.Ready, s.last(conn))
	for _, index := range []uint16{1, 9} {
		extra := s.dial(address, (&greeting.Further{Token: first.Token, Index: index}).Encode())
		s.closed(extra)
		require.ErrorIs(t, s.held[extra].err, rdma.ErrRejected)
	}
	var flood []*rdma.Connection
	for range 100 {
		conn, err := s.rdma.Dial(address, rdma.DialConfig{PrivateData: request().Encode(), Held: s.changed})
		require.NoError(t, err)
		flood = append(flood, conn)
	}
	s.until(func() bool {
		n := 0
		for _, conn := range flood {
			if s.last(conn) == rdma.Closed {
				n++
			}
		}
		return n >= 90
	})

	// A report of somebody else, before there is one to wait for.
	w := newWriter(t, must(oob.CM(address)), "it is me")
	written := make(chan error)
	go func() { written <- w.run(forever(t)) }()
	s.until(func() bool {
		select {
		case err := <-written:
			require.NoError(t, err)
			return true
		default:
			return false
		}
	})
	require.NoError(t, <-done)
	assert.LessOrEqual(t, strings.Count(noted(), "was rejected"), 8, "the rest is not worth a line")
	s.rdma.Stop()
	s.until(func() bool { return s.rdma.State() == pe.Idle })
}

// A requester does not believe what answers.
func TestCMHostileResponders(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(s *stranger, q *rdma.ConnectRequest)
		want   error
		text   string
	}{
		"accepts without a word": {func(s *stranger, q *rdma.ConnectRequest) { s.accept(q, nil) },
			descriptor.ErrFormat, "not of a program that exchanges by connection manager"},
		"no room in its landing": {func(s *stranger, q *rdma.ConnectRequest) {
			s.accept(q, (&greeting.Acceptance{Landing: greeting.Landing{Addr: 4096, RKey: 1, Size: 8}}).Encode())
		}, descriptor.ErrTooBig, "room for 8"},
		"no landing": {func(s *stranger, q *rdma.ConnectRequest) {
			s.accept(q, (&greeting.Acceptance{Landing: greeting.Landing{Addr: 4096, RKey: 1, Size: 1 << 20}}).Encode())
		}, rdma.ErrRemoteAccess, ""},
		"rejects with garbage": {func(_ *stranger, q *rdma.ConnectRequest) { _ = q.Reject([]byte("go away")) }, rdma.ErrRejected, "not of a program"},
		"rejects with a reason": {func(_ *stranger, q *rdma.ConnectRequest) {
			_ = q.Reject((&greeting.Refusal{Text: "no \x1b[2J"}).Encode())
		}, oob.ErrRejected, `"no \x1b[2J"`},
		"garbage":       answers([]byte("garbage"), greeting.Complete, 0, descriptor.ErrFormat, ""),
		"too long":      answers([]byte("x"), greeting.Complete, 1<<31-1, descriptor.ErrTooBig, ""),
		"a wrong word":  answers([]byte("x"), greeting.Confirmed, -1, descriptor.ErrFormat, "not expected"),
		"refused":       answers([]byte("no \x1b[2J room"), greeting.Refused, 0, oob.ErrRejected, `"no \x1b[2J room"`),
		"lying names":   answers([]byte("x"), greeting.Names, 0, descriptor.ErrFormat, ""),
		"another":       answers(bundleOf("other", "writer"), greeting.Complete, 0, oob.ErrWrongPeer, `it is from "other"`),
		"other names":   answers(bundleOf("other", "writer"), greeting.Names, 0, oob.ErrWrongPeer, `it is from "other"`),
		"without a map": answers(bundleOf("reader", "writer"), greeting.Complete, 0, oob.ErrWrongPeer, "needs a memory map"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t)
			l, err := s.rdma.Listen(":0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { test.answer(s, q) }})
			require.NoError(t, err)
			p := newProgram(t, must(oob.CM(fmt.Sprintf("localhost:%d", l.Addr().Port()))), writer(&oob.Expect{Maps: 1}), rdma.Config{})
			p.rdma.OnStateChange(func(_, next pe.State) {
				assert.NotEqual(t, pe.Running, next)
				if next == pe.Starting {
					p.peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) })
				}
			})
			p.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
				assert.Fail(t, "a connection was reported", "%v", state)
			})
			done := make(chan error, 1)
			go func() { done <- p.run(forever(t)) }()
			s.until(func() bool {
				select {
				case err = <-done:
					return true
				default:
					return false
				}
			})
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.text)
			assert.NotContains(t, err.Error(), "\n")
			s.rdma.Stop()
			s.until(func() bool { return s.rdma.State() == pe.Idle })
		})
	}
}

// accept accepts a request for a connection that is held.
func (s *stranger) accept(q *rdma.ConnectRequest, data []byte) *rdma.Connection {
	conn, err := q.Accept(rdma.AcceptConfig{PrivateData: data, Held: s.changed})
	assert.NoError(s.t, err)
	return conn
}

func bundleOf(from, to string) []byte {
	b, err := (&descriptor.Bundle{From: from, To: to}).Encode()
	if err != nil {
		panic(err)
	}
	return b
}

type hostileResponder = struct {
	answer func(s *stranger, q *rdma.ConnectRequest)
	want   error
	text   string
}

// answers accepts and writes an answer, of which the word says that it has claimed bytes; 0
// is as many as it has, less than that none.
func answers(content []byte, kind greeting.WordKind, claimed int, want error, text string) hostileResponder {
	switch {
	case claimed == 0:
		claimed = len(content)
	case claimed < 0:
		claimed = 0
	}
	return hostileResponder{func(s *stranger, q *rdma.ConnectRequest) {
		first, _, err := greeting.ReadRequest(q.PrivateData())
		if !assert.NoError(s.t, err) {
			return
		}
		landing := made(mmap.Alloc(s.dev, 1<<16, mmap.LocalReadWrite|mmap.RemoteWrite))
		conn := s.accept(q, (&greeting.Acceptance{
			Landing: greeting.Landing{Addr: landing.Addr(), RKey: made(landing.ExportKey(s.rdma.PD())), Size: 1 << 15},
		}).Encode())
		out := made(mmap.Alloc(s.dev, 1<<16, mmap.LocalReadWrite))
		copy(out.Bytes(), word(kind, claimed))
		copy(out.Bytes()[64:], content)
		up := func() bool { return s.last(conn) == rdma.Ready }
		var try func()
		try = func() {
			if !up() {
				_ = s.engine.Do(try)
				return
			}
			_ = conn.WriteHeld(out, 64, len(content), first.Landing.Addr+greeting.Words, first.Landing.RKey, func(error) {
				_ = conn.WriteHeld(out, 0, greeting.WordSize, first.Landing.Addr, first.Landing.RKey, func(error) {})
			})
		}
		_ = s.engine.Do(try)
	}, want, text}
}

// The requester's note, and its error when it is given up, say that nobody listens.
func TestCMSaysWhyNobodyAnswers(t *testing.T) {
	cfg := writer(nil)
	lines := make(chan string, 100)
	cfg.Notify = func(line string) { lines <- line }
	p := newProgram(t, must(oob.CM(freeCM())), cfg, rdma.Config{})
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
func TestCMTriesAgain(t *testing.T) {
	s := newStranger(t)
	requests := 0
	l, err := s.rdma.Listen(":0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
		requests++
		switch requests % 3 {
		case 0:
			_ = q.Reject(nil)
			return
		case 1:
			_ = q.Reject((&greeting.Refusal{Busy: true, Text: "later"}).Encode())
			return
		}
		conn := s.accept(q, (&greeting.Acceptance{Landing: greeting.Landing{Addr: 4096, RKey: 1, Size: 1 << 20}}).Encode())
		_ = conn.Close()
	}})
	require.NoError(t, err)
	cfg := writer(nil)
	lines := make(chan string, 100)
	cfg.Notify = func(line string) { lines <- line }
	p := newProgram(t, must(oob.CM(fmt.Sprintf("localhost:%d", l.Addr().Port()))), cfg, rdma.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Exchange(ctx, p.rdma, oob.Offer{}, nil)
		}
	})
	done := make(chan error, 1)
	go func() { done <- p.run(forever(t)) }()
	s.until(func() bool { return requests >= 6 })
	cancel()
	s.until(func() bool { return len(done) > 0 })
	err = <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "the last attempt")
	require.NotEmpty(t, lines)
	assert.Contains(t, <-lines, "reader does not answer at cm:localhost:")
	s.rdma.Stop()
	s.until(func() bool { return s.rdma.State() == pe.Idle })
}

// A Listener has its memory and its places for those that introduce themselves.
func TestCMListenerHostile(t *testing.T) {
	defer oob.SetGuestTimeout(time.Hour)()
	var log bytes.Buffer
	at := "cm:" + freeCM()
	way, _, stop := newServerWith(t, at, 80, oob.Config{Name: "server", Log: zerolog.New(&log)}, func(string, *oob.Answer) error { return nil })
	defer stop()
	s := newStranger(t)
	var conns []*rdma.Connection
	for range 79 { // more than may be introducing themselves
		conns = append(conns, s.dial(at[3:], (&greeting.Request{
			Token: greeting.NewToken(), Connections: 1, Landing: greeting.Landing{Addr: 4096, RKey: 1, Size: 4096}, Length: 100,
		}).Encode()))
	}
	s.until(func() bool { return s.last(conns[14]) == rdma.Closed })
	for _, conn := range conns[15:] {
		assert.Equal(t, rdma.Ready, s.last(conn))
	}
	assert.NoError(t, visit(t, way, "client", 0))
	stop()
	for _, conn := range conns {
		s.closed(conn)
	}
	s.rdma.Stop()
	s.until(func() bool { return s.rdma.State() == pe.Idle })
}

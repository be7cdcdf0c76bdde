package oob_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/internal/friend"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/syncevent"
	"github.com/verbena-rdma/verbena/verbs"
)

// program is one end, with an engine of its own.
type program struct {
	t      testing.TB
	name   string
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	peer   *oob.Peer
}

// openDevice opens the device of a program. If t is a simulation, that is the device of the
// host with the program's name.
func openDevice(t testing.TB, name string) (dev verbs.Device, close func() error) {
	t.Helper()
	if s, simulated := t.(*sim.Sim); simulated {
		return s.Host(name).Device(), func() error { return nil }
	}
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	return dev, dev.Close
}

// simulate runs a test in simulations. Unlike sim.Check it does not compare two runs of a seed:
// those of an exchange by connection manager differ in the order of goroutines.
func simulate(t *testing.T, seeds uint64, test func(s *sim.Sim)) {
	sim.Check(t, int(seeds), test)
}

// simCM is the address of a host in a simulation.
func simCM(s *sim.Sim, host string) string {
	return netip.AddrPortFrom(s.Host(host).Addr(), 7471).String()
}

func newProgram(t testing.TB, way oob.Way, cfg oob.Config, rcfg rdma.Config) *program {
	t.Helper()
	p := &program{t: t, name: cfg.Name}
	dev, closeDevice := openDevice(t, cfg.Name)
	p.dev = dev
	t.Cleanup(func() { require.NoError(t, closeDevice()) })
	var err error
	p.engine = pe.New(pe.Config{})
	t.Cleanup(func() { require.NoError(t, p.engine.Close()) })
	rcfg.Engine = p.engine
	p.rdma, err = rdma.New(p.dev, rcfg)
	require.NoError(t, err)
	if cfg.Notify == nil {
		cfg.Notify = func(string) {}
	}
	p.peer, err = oob.New(way, cfg)
	require.NoError(t, err)
	return p
}

// run runs the program until its context is Idle, and ends the exchange.
func (p *program) run(ctx context.Context) error {
	p.takeTurn()
	if err := p.rdma.Start(); err != nil {
		return err
	}
	err := p.engine.Run(ctx)
	return errors.Join(err, p.peer.Close(err))
}

// takeTurn makes a simulated program start when no other goroutine runs.
func (p *program) takeTurn() {
	if s, simulated := p.t.(*sim.Sim); simulated {
		s.Host(p.name).Sleep(0)
	}
}

func writer(e *oob.Expect) oob.Config {
	return oob.Config{Name: "writer", Peer: "reader", Expect: e}
}

func reader() oob.Config {
	return oob.Config{Name: "reader", Peer: "writer", Role: oob.Responder}
}

func forever(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newWriter writes text to the memory of its peer, as the design's program does.
func newWriter(t testing.TB, way oob.Way, text string) *program {
	p := newProgram(t, way, writer(&oob.Expect{Maps: 1}), rdma.Config{EndWithLastConnection: true})
	local, err := mmap.Alloc(p.dev, 4096, mmap.LocalReadWrite)
	require.NoError(t, err)
	copy(local.Bytes(), text)
	var bufs bufinv.Inventory
	writes, err := p.rdma.Pool(1, pe.TaskDone, pe.TaskFailed)
	require.NoError(t, err)
	var conn *rdma.Connection
	var remote *mmap.Map
	p.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			p.peer.Connect(p.rdma, func(c *rdma.Connection, m *mmap.Map, err error) { conn, remote = c, m; p.rdma.Fail(err) })
		case pe.Running:
			task, err := writes.Write(conn, bufs.Source(local, 0, len(text)), bufs.Target(remote, 0, len(text)))
			if err == nil {
				err = pe.SubmitOrFree(task, nil, func(task *rdma.Task, err error) {
					p.rdma.Fail(errors.Join(err, task.Free()))
					p.rdma.Stop()
				})
			}
			p.rdma.Fail(err)
		case pe.Idle:
			if remote != nil {
				assert.NoError(t, remote.Friends(friend.Package{}).Hold(), "it is closed after the callback")
				assert.NoError(t, remote.Friends(friend.Package{}).Release())
			}
		}
	})
	t.Cleanup(func() {
		if remote != nil {
			assert.ErrorIs(t, remote.Friends(friend.Package{}).Hold(), mmap.ErrClosed, "it belongs to the context")
		}
	})
	return p
}

// newReader waits until the peer has ended, and calls seen with its memory.
func newReader(t testing.TB, way oob.Way, seen func(mem []byte)) *program {
	return newReaderAs(t, way, reader(), seen)
}

func newReaderAs(t testing.TB, way oob.Way, cfg oob.Config, seen func(mem []byte)) *program {
	return newReaderWith(t, way, cfg, rdma.Config{}, seen)
}

func newReaderWith(t testing.TB, way oob.Way, cfg oob.Config, rcfg rdma.Config, seen func(mem []byte)) *program {
	p := newProgram(t, way, cfg, rcfg)
	local, err := mmap.Alloc(p.dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
	require.NoError(t, err)
	p.peer.EndWith(p.rdma)
	p.rdma.OnStateChange(func(_, next pe.State) {
		switch next {
		case pe.Starting:
			p.peer.Connect(p.rdma, func(_ *rdma.Connection, m *mmap.Map, err error) {
				assert.Nil(t, m)
				p.rdma.Fail(err)
			}, local)
		case pe.Running:
			p.peer.Done(func(err error) {
				if err == nil {
					seen(local.Bytes())
				}
				p.rdma.Fail(err)
				p.rdma.Stop()
			})
		}
	})
	return p
}

func freeTCP(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// freeCM is an address where nobody listens, in all likelihood.
func freeCM() string { return fmt.Sprintf("localhost:%d", 20_000+rand.IntN(40_000)) }

// pairs makes both ends of every way.
func pairs(t *testing.T) map[string]func() (a, b oob.Way) {
	return map[string]func() (a, b oob.Way){
		"dir": func() (a, b oob.Way) { d := t.TempDir(); return oob.Dir(d), oob.Dir(d) },
		"tcp": func() (a, b oob.Way) {
			address := freeTCP(t)
			a, err := oob.TCP(address)
			require.NoError(t, err)
			b, err = oob.TCP(address)
			require.NoError(t, err)
			return a, b
		},
		"cm": func() (a, b oob.Way) {
			address := freeCM()
			return must(oob.CM(address)), must(oob.CM(address))
		},
		"stdio": func() (a, b oob.Way) {
			in, out, err := os.Pipe()
			require.NoError(t, err)
			in2, out2, err := os.Pipe()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, errors.Join(out.Close(), out2.Close())) })
			return oob.Stdio(in, out2), oob.Stdio(in2, out)
		},
		"files": func() (a, b oob.Way) {
			d := t.TempDir()
			x, y, m := filepath.Join(d, "x"), filepath.Join(d, "y"), filepath.Join(d, "m")
			a, err := oob.Files{Local: x, Remote: y, Resource: m}.Way()
			require.NoError(t, err)
			b, err = oob.Files{Local: y, Remote: x, Resource: m}.Way()
			require.NoError(t, err)
			return a, b
		},
	}
}

// Two programs find each other by every way, whoever starts first.
func TestConnect(t *testing.T) {
	for name, newPair := range pairs(t) {
		for _, first := range []string{"writer", "reader"} {
			t.Run(name+", "+first+" first", func(t *testing.T) {
				a, b := newPair()
				var got string
				w := newWriter(t, a, "over the wire")
				r := newReader(t, b, func(mem []byte) { got = string(mem[:13]) })
				one, two := w, r
				if first == "reader" {
					one, two = r, w
				}
				done := make(chan error)
				go func() { done <- one.run(forever(t)) }()
				time.Sleep(20 * time.Millisecond)
				require.NoError(t, two.run(forever(t)))
				require.NoError(t, <-done)
				assert.Equal(t, "over the wire", got)
				assert.Empty(t, w.peer.Waiting())
				assert.Empty(t, r.peer.Waiting())
			})
		}
	}
}

// Several connections, maps and events, and bytes, in order. The connection manager has room for
// one map.
func TestExchange(t *testing.T) {
	for name, most := range map[string][2]int{"dir": {3, 2}, "cm": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			a, b := pairs(t)[name]()
			testExchange(t, a, b, most[0], most[1])
		})
	}
}

func testExchange(t *testing.T, a, b oob.Way, maps, events int) {
	const n = 5
	ours := newProgram(t, a, writer(&oob.Expect{Maps: maps, Events: events}), rdma.Config{MaxConnections: n})
	theirs := newProgram(t, b, reader(), rdma.Config{MaxConnections: n})
	offer := oob.Offer{Connections: n, Data: []byte("of reader")}
	for i := range maps {
		m, err := mmap.Alloc(theirs.dev, 4096*(i+1), mmap.LocalReadWrite|mmap.RemoteRead)
		require.NoError(t, err)
		offer.Maps = append(offer.Maps, m)
	}
	for range events {
		e, err := syncevent.New(theirs.dev, syncevent.Config{Publishers: syncevent.PublishRemote})
		require.NoError(t, err)
		offer.Events = append(offer.Events, e)
	}
	offers := map[*program]oob.Offer{ours: {Connections: n, Data: []byte("of writer")}, theirs: offer}
	answers := map[*program]*oob.Answer{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, p := range []*program{ours, theirs} {
		p.rdma.OnStateChange(func(_, next pe.State) {
			switch next {
			case pe.Starting:
				p.peer.Exchange(context.Background(), p.rdma, offers[p], func(a *oob.Answer, err error) {
					p.rdma.Fail(err)
					mu.Lock()
					answers[p] = a
					mu.Unlock()
				})
			case pe.Running:
				mu.Lock()
				a := answers[p]
				mu.Unlock()
				assert.Len(t, a.Connections, n)
				p.rdma.Stop()
			}
		})
		running.Go(func() { assert.NoError(t, p.run(forever(t))) })
	}
	running.Wait()
	require.NotNil(t, answers[ours])
	require.NotNil(t, answers[theirs])
	assert.Equal(t, "of reader", string(answers[ours].Data))
	assert.Equal(t, "of writer", string(answers[theirs].Data))
	assert.Empty(t, answers[theirs].Maps)
	for i, conn := range answers[ours].Connections {
		assert.Equal(t, answers[theirs].Connections[i].QPN(), conn.PeerQPN())
	}
	for i, m := range answers[ours].Maps {
		assert.Equal(t, 4096*(i+1), m.Len())
	}
	for i, e := range answers[ours].Events {
		assert.Equal(t, offer.Events[i].Friends(friend.Package{}).Addr(), e.Friends(friend.Package{}).Addr())
	}
}

// fakeWay is a way with functions.
type fakeWay struct {
	exchange func(ctx context.Context, ends oob.Ends, ours []byte) ([]byte, error)
	done     func(ctx context.Context) error
	closed   []bool
}

func (w *fakeWay) Exchange(ctx context.Context, ends oob.Ends, ours []byte) ([]byte, error) {
	return w.exchange(ctx, ends, ours)
}
func (w *fakeWay) Done(ctx context.Context) error { return w.done(ctx) }
func (w *fakeWay) Close(ok bool) error            { w.closed = append(w.closed, ok); return nil }
func (w *fakeWay) String() string                 { return "thin air" }

func waits(ctx context.Context, _ oob.Ends, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Whatever ends the wait, the callback runs once, and nothing is left behind.
func TestCancel(t *testing.T) {
	reason := errors.New("enough")
	for name, test := range map[string]struct {
		cancel func(p *program, ctx context.CancelCauseFunc)
		want   error // of the callback
		run    error // of the program
	}{
		"context.Context": {func(_ *program, cancel context.CancelCauseFunc) { cancel(reason) }, reason, reason},
		"the context stops": {func(p *program, _ context.CancelCauseFunc) {
			_ = p.engine.Do(func() { p.rdma.Stop() })
		}, oob.ErrFlushed, nil},
		"the peer is closed": {func(p *program, _ context.CancelCauseFunc) {
			assert.NoError(p.t, p.peer.Close(reason))
			_ = p.engine.Do(func() { p.rdma.Stop() })
		}, oob.ErrClosed, oob.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			way := &fakeWay{exchange: waits}
			p := newProgram(t, oob.Carried(way), writer(nil), rdma.Config{})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			called := 0
			p.rdma.OnStateChange(func(_, next pe.State) {
				if next != pe.Starting {
					return
				}
				p.peer.Exchange(ctx, p.rdma, oob.Offer{}, func(a *oob.Answer, err error) {
					called++
					assert.Nil(t, a)
					assert.ErrorIs(t, err, test.want)
					assert.Equal(t, "the descriptors of reader, through thin air", p.peer.Waiting())
					p.rdma.Fail(err)
				})
				assert.Equal(t, "the descriptors of reader, through thin air", p.peer.Waiting())
				go test.cancel(p, cancel)
			})
			err := p.run(forever(t))
			if test.run == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, test.run)
			}
			assert.Equal(t, 1, called)
			assert.Len(t, way.closed, 1)
			require.NoError(t, p.peer.Close(nil))
			assert.Len(t, way.closed, 1)
		})
	}

	// Run ends, and so does everything.
	way := &fakeWay{exchange: waits}
	p := newWriter(t, oob.Carried(way), "x")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, reason)
	defer cancel()
	require.ErrorIs(t, p.run(ctx), reason)
	assert.Equal(t, []bool{false}, way.closed)
}

// What arrives is not trusted.
func TestHostileAnswers(t *testing.T) {
	c, err := descriptor.Encode(descriptor.Connection, []byte("of no endpoint"))
	require.NoError(t, err)
	m, err := descriptor.Encode(descriptor.MemoryMap, []byte("of no memory"))
	require.NoError(t, err)
	e, err := descriptor.Encode(descriptor.SyncEvent, []byte("of no event"))
	require.NoError(t, err)
	bundle := func(change func(b *descriptor.Bundle)) func([]byte) []byte {
		return func(ours []byte) []byte {
			b, err := descriptor.DecodeBundle(ours)
			require.NoError(t, err)
			b.From, b.To = b.To, b.From
			change(b)
			desc, err := b.Encode()
			require.NoError(t, err)
			return desc
		}
	}
	for name, test := range map[string]struct {
		answer func(ours []byte) []byte
		want   error
		text   string
	}{
		"nothing":     {func([]byte) []byte { return nil }, descriptor.ErrTruncated, ""},
		"garbage":     {func([]byte) []byte { return []byte("garbage") }, descriptor.ErrFormat, ""},
		"truncated":   {func(ours []byte) []byte { return ours[:len(ours)-1] }, descriptor.ErrTruncated, ""},
		"its own":     {func(ours []byte) []byte { return ours }, oob.ErrWrongPeer, `from "writer", but this program waits for reader`},
		"another":     {bundle(func(b *descriptor.Bundle) { b.From = "other" }), oob.ErrWrongPeer, `from "other", but this program waits for reader`},
		"for another": {bundle(func(b *descriptor.Bundle) { b.To = "other" }), oob.ErrWrongPeer, `reader waits for "other", but this program is writer`},
		"no connection": {bundle(func(b *descriptor.Bundle) { b.Connections = nil }), oob.ErrWrongPeer,
			"reader offers 0 connections, but this program offers 1: give both the same number"},
		"many connections": {bundle(func(b *descriptor.Bundle) {
			for range 300 {
				b.Connections = append(b.Connections, b.Connections[0])
			}
		}), oob.ErrWrongPeer, "reader offers 301 connections"},
		"no map":           {bundle(func(b *descriptor.Bundle) { b.Maps = nil }), oob.ErrWrongPeer, "offers neither memory maps nor sync events, but this program expects a memory map"},
		"an event":         {bundle(func(b *descriptor.Bundle) { b.Events = [][]byte{e} }), oob.ErrWrongPeer, "offers 1 memory maps and 1 sync events"},
		"lying map":        {bundle(func(b *descriptor.Bundle) { b.Maps = [][]byte{m} }), descriptor.ErrTruncated, ""},
		"lying connection": {bundle(func(b *descriptor.Bundle) { b.Connections = [][]byte{c} }), descriptor.ErrTruncated, ""},
		"a plain descriptor": {func(ours []byte) []byte {
			b, err := descriptor.DecodeBundle(ours)
			require.NoError(t, err)
			return b.Connections[0]
		}, descriptor.ErrKind, ""},
	} {
		t.Run(name, func(t *testing.T) {
			way := &fakeWay{exchange: func(_ context.Context, _ oob.Ends, ours []byte) ([]byte, error) { return test.answer(ours), nil }}
			p := newProgram(t, oob.Carried(way), writer(&oob.Expect{Maps: 1}), rdma.Config{})
			local, err := mmap.Alloc(p.dev, 64, mmap.RemoteRead)
			require.NoError(t, err)
			p.rdma.OnStateChange(func(_, next pe.State) {
				assert.NotEqual(t, pe.Running, next)
				if next == pe.Starting {
					p.peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) }, local)
				}
			})
			err = p.run(forever(t))
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.text)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

// Calls that cannot work say why, and the callback runs all the same.
func TestMisuse(t *testing.T) {
	for _, cfg := range []oob.Config{{}, {Name: "a"}, {Name: "a", Peer: "a"}, {Name: "../a", Peer: "b"}, {Name: "a", Peer: ".b"},
		{Name: "a", Peer: "b/c"}, {Name: "a\n", Peer: "b"}, {Name: strings.Repeat("a", 101), Peer: "b"}, {Name: "a", Peer: "b", Role: 7}} {
		_, err := oob.Open("dir", cfg)
		require.ErrorIs(t, err, oob.ErrInvalid, "%+v", cfg)
	}
	_, err := oob.Open("pigeon", writer(nil))
	require.ErrorIs(t, err, oob.ErrInvalid)
	_, err = oob.Open("tcp::7471", writer(nil))
	require.ErrorContains(t, err, "give the host that reader runs on")
	_, err = oob.New(oob.Way{}, writer(nil))
	require.ErrorIs(t, err, oob.ErrInvalid)

	p := newProgram(t, oob.Carried(&fakeWay{exchange: waits}), writer(nil), rdma.Config{})
	var got []error
	note := func(_ *oob.Answer, err error) { got = append(got, err) }
	p.peer.Exchange(t.Context(), p.rdma, oob.Offer{}, note) // Idle
	p.peer.Done(func(err error) { got = append(got, err) })
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Exchange(t.Context(), p.rdma, oob.Offer{}, note)
			p.peer.Exchange(t.Context(), p.rdma, oob.Offer{}, note) // a second time
			_ = p.engine.Do(func() { p.rdma.Stop() })
		}
	})
	require.NoError(t, p.run(forever(t)))
	require.Len(t, got, 4)
	require.ErrorIs(t, got[0], oob.ErrInvalid)
	require.ErrorIs(t, got[1], pe.ErrBadState)
	require.ErrorIs(t, got[2], oob.ErrInUse)
	require.ErrorIs(t, got[3], oob.ErrFlushed)

	// More than the context was made for, and what cannot be exported.
	for name, offer := range map[string]oob.Offer{
		"connections": {Connections: 2},
		"data":        {Data: make([]byte, descriptor.MaxPayload)},
		"maps":        {Maps: []*mmap.Map{{}}},
	} {
		p = newProgram(t, oob.Carried(&fakeWay{exchange: waits}), writer(nil), rdma.Config{})
		p.rdma.OnStateChange(func(_, next pe.State) {
			assert.NotEqual(t, pe.Running, next)
			if next == pe.Starting {
				p.peer.Exchange(t.Context(), p.rdma, offer, func(_ *oob.Answer, err error) { p.rdma.Fail(err) })
			}
		})
		require.Error(t, p.run(forever(t)), name)
	}
}

// A peer that gives its descriptors and never connects fails the context.
func TestPeerNeverConnects(t *testing.T) {
	folder := t.TempDir()
	p := newProgram(t, oob.Dir(folder), writer(nil), rdma.Config{ConnectTimeout: 50 * time.Millisecond})
	other := newProgram(t, oob.Dir(folder), reader(), rdma.Config{})
	require.NoError(t, other.rdma.Start())
	_, desc, err := other.rdma.Export()
	require.NoError(t, err)
	go func() {
		b, err := (&descriptor.Bundle{From: "reader", To: "writer", Connections: [][]byte{desc}}).Encode()
		assert.NoError(t, err)
		way := oob.Dir(folder).Carrier()
		_, err = way.Exchange(t.Context(), oob.Ends{Name: "reader", Peer: "writer", Role: oob.Responder, Note: func(string) {}}, b)
		assert.NoError(t, err)
		assert.NoError(t, way.Close(true))
	}()
	p.rdma.OnStateChange(func(_, next pe.State) {
		assert.NotEqual(t, pe.Running, next)
		if next == pe.Starting {
			p.peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) {
				assert.Equal(t, "the connection to reader", p.peer.Waiting())
				p.rdma.Fail(err)
			})
		}
	})
	require.ErrorIs(t, p.run(forever(t)), rdma.ErrTimeout)
}

// A requester that fails says so; one that goes without a word is noticed.
func TestHowThePeerEnds(t *testing.T) {
	fails := errors.New("on purpose")
	a, b := pairs(t)["tcp"]()
	w := newWriter(t, a, strings.Repeat("x", 4096))
	r := newReader(t, b, func([]byte) { assert.Fail(t, "it has not succeeded") })
	done := make(chan error)
	go func() {
		if err := w.rdma.Start(); err != nil {
			done <- err
			return
		}
		done <- errors.Join(w.engine.Run(forever(t)), w.peer.Close(fails))
	}()
	require.ErrorIs(t, r.run(forever(t)), oob.ErrPeerFailed)
	require.NoError(t, <-done)
}

func TestPeerIsKilled(t *testing.T) {
	folder, done := t.TempDir(), make(chan error)
	w := newWriter(t, oob.Dir(folder), "x")
	r := newReader(t, oob.Dir(folder), func([]byte) { assert.Fail(t, "it has not said so") })
	r.peer.SetOutcomeTimeout(outcomeTimeout)
	go func() {
		if err := w.rdma.Start(); err != nil {
			done <- err
			return
		}
		done <- w.engine.Run(forever(t)) // and no Close: it was killed
	}()
	err := r.run(forever(t))
	require.ErrorIs(t, err, rdma.ErrPeerClosed)
	require.ErrorContains(t, err, "writer did not report whether it succeeded")
	require.NoError(t, <-done)
	require.NoError(t, w.peer.Close(nil))
}

// A context that ends while it waits for the end of its peer waits no more.
func TestDoneIsCancelled(t *testing.T) {
	folder := t.TempDir()
	w, r := newProgram(t, oob.Dir(folder), writer(nil), rdma.Config{}), newProgram(t, oob.Dir(folder), reader(), rdma.Config{})
	connect := func(p *program, then func()) {
		p.rdma.OnStateChange(func(_, next pe.State) {
			switch next {
			case pe.Starting:
				p.peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) })
			case pe.Running:
				then()
			}
		})
	}
	stop, called := make(chan struct{}), 0
	connect(w, func() { go func() { <-stop; _ = w.engine.Do(func() { w.rdma.Stop() }) }() })
	connect(r, func() {
		r.peer.Done(func(err error) {
			called++
			assert.ErrorIs(t, err, oob.ErrFlushed)
		})
		assert.Equal(t, "writer to report its end through the folder "+folder, r.peer.Waiting())
		r.rdma.Stop()
	})
	done := make(chan error)
	go func() { done <- w.run(forever(t)) }()
	require.NoError(t, r.run(forever(t)))
	assert.Equal(t, 1, called)
	close(stop)
	require.NoError(t, <-done)
}

// What a person should know goes to Notify, and stays in Waiting.
func TestNotify(t *testing.T) {
	way := &fakeWay{exchange: func(ctx context.Context, ends oob.Ends, _ []byte) ([]byte, error) {
		ends.Note("switch it off and on again")
		return waits(ctx, ends, nil)
	}}
	cfg := writer(nil)
	lines := make(chan string, 1)
	cfg.Notify = func(line string) { lines <- line }
	p := newProgram(t, oob.Carried(way), cfg, rdma.Config{})
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Connect(p.rdma, func(_ *rdma.Connection, _ *mmap.Map, err error) { p.rdma.Fail(err) })
			go func() {
				assert.Equal(t, "switch it off and on again", <-lines)
				assert.Equal(t, "the descriptors of reader, through thin air; switch it off and on again", p.peer.Waiting())
				_ = p.engine.Do(func() { p.rdma.Stop() })
			}()
		}
	})
	require.NoError(t, p.run(forever(t)))
	assert.Equal(t, "reader, through thin air", fmt.Sprint(p.peer))
}

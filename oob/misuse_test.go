package oob_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/oob"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
)

// newPeer makes a Peer beside that of a program.
func newPeer(t *testing.T, way oob.Way, cfg oob.Config) *oob.Peer {
	t.Helper()
	cfg.Notify = func(string) {}
	p, err := oob.New(way, cfg)
	require.NoError(t, err)
	return p
}

// An exchange that fails leaves no connection: on a context that runs, the next one finds
// room.
func TestFailedExchangeLeavesNoConnection(t *testing.T) {
	fails := errors.New("on purpose")
	way := &fakeWay{exchange: func(context.Context, oob.Ends, []byte) ([]byte, error) { return nil, fails }}
	p := newProgram(t, oob.Carried(way), writer(nil), rdma.Config{MaxConnections: 2})
	tries := 0
	var peers []*oob.Peer
	try := func() {
		peer := newPeer(t, oob.Carried(way), writer(nil))
		peers = append(peers, peer)
		peer.Exchange(t.Context(), p.rdma, oob.Offer{Connections: 2}, func(_ *oob.Answer, err error) {
			assert.ErrorIs(t, err, fails)
			if !assert.Empty(t, p.rdma.List()) {
				p.rdma.Stop()
			}
		})
	}
	closed := 0
	p.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
		assert.Equal(t, rdma.Closed, state)
		if closed++; closed%2 != 0 {
			return
		}
		if tries++; tries == 3 {
			p.rdma.Stop()
		} else {
			try()
		}
	})
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			try()
		}
	})
	require.NoError(t, p.run(forever(t)))
	for _, peer := range peers {
		require.NoError(t, peer.Close(nil))
	}
}

// A callback comes also where the Peer is closed, and Done is called once at a time.
func TestDoneOfAClosedPeer(t *testing.T) {
	answer := func(context.Context, oob.Ends, []byte) ([]byte, error) {
		return (&descriptor.Bundle{From: "writer", To: "reader"}).Encode()
	}
	way := &fakeWay{exchange: answer, done: func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }}
	r := newProgram(t, oob.Carried(way), reader(), rdma.Config{})
	var got []error
	var note func(err error)
	note = func(err error) {
		switch got = append(got, err); len(got) {
		case 2:
			r.peer.Done(note)
		case 3:
			r.rdma.Stop()
		}
	}
	r.rdma.OnStateChange(func(_, next pe.State) {
		if next != pe.Running {
			return
		}
		var none context.Context
		r.peer.Exchange(none, r.rdma, oob.Offer{Connections: -1}, func(_ *oob.Answer, err error) {
			assert.NoError(t, err)
			r.peer.Done(note)
			r.peer.Done(note)
			assert.NoError(t, r.peer.Close(nil))
		})
	})
	require.NoError(t, r.run(forever(t)))
	require.Len(t, got, 3)
	require.ErrorIs(t, got[0], oob.ErrInUse)
	require.ErrorIs(t, got[1], oob.ErrClosed)
	require.ErrorIs(t, got[2], oob.ErrClosed)
}

// Without a context, or an engine, the function is called at once.
func TestWithoutContext(t *testing.T) {
	var got []error
	w := newPeer(t, oob.Carried(&fakeWay{}), writer(nil))
	w.Exchange(t.Context(), nil, oob.Offer{}, func(_ *oob.Answer, err error) { got = append(got, err) })
	w.EndWith(nil)
	w.Done(nil)
	require.Len(t, got, 1)
	require.ErrorIs(t, got[0], oob.ErrInvalid)
	require.NoError(t, w.Close(nil))
}

// On a context that runs, nothing is waited for any more when the connections are Ready.
func TestWaitingInRunning(t *testing.T) {
	way := &fakeWay{exchange: func(_ context.Context, _ oob.Ends, ours []byte) ([]byte, error) {
		b, err := descriptor.DecodeBundle(ours)
		if err != nil {
			return nil, err
		}
		b.From, b.To = b.To, b.From
		return b.Encode() // each connection is its own peer
	}}
	p := newProgram(t, oob.Carried(way), writer(nil), rdma.Config{MaxConnections: 2})
	ready := 0
	p.rdma.OnConnection(func(_ *rdma.Connection, state rdma.ConnectionState, _ error) {
		if state != rdma.Ready {
			return
		}
		assert.Equal(t, "the connection to reader", p.peer.Waiting())
		if ready++; ready == 2 {
			_ = p.engine.Do(func() {
				assert.Empty(t, p.peer.Waiting())
				p.rdma.Stop()
			})
		}
	})
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			p.peer.Exchange(t.Context(), p.rdma, oob.Offer{Connections: 2}, func(_ *oob.Answer, err error) { p.rdma.Fail(err) })
		}
	})
	require.NoError(t, p.run(forever(t)))
	assert.Equal(t, 2, ready)
}

// embedded is no context that an exchange can use: it is neither of the two kinds.
type embedded struct{ *rdma.Connections }

// A context that is missing, also as a nil pointer of a kind, is an error.
func TestNoContext(t *testing.T) {
	w := newPeer(t, oob.Carried(&fakeWay{}), writer(nil))
	var got []error
	exchanged := func(_ *oob.Answer, err error) { got = append(got, err) }
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	r, err := rdma.New(dev, rdma.Config{})
	require.NoError(t, err)
	for _, r := range []rdma.Context{nil, (*rdma.Connections)(nil), (*rdma.Datagrams)(nil), embedded{r}} {
		w.Exchange(t.Context(), r, oob.Offer{}, exchanged)
		w.Exchange(t.Context(), r, oob.Offer{}, nil)
	}
	w.Connect(nil, nil)
	w.Connect(nil, func(_ *rdma.Connection, _ *mmap.Map, err error) { got = append(got, err) })
	require.Len(t, got, 5)
	for _, err := range got {
		require.ErrorIs(t, err, oob.ErrInvalid)
	}
	require.NoError(t, w.Close(nil))
	require.NoError(t, r.Close())
	require.NoError(t, dev.Close())
}

// Without functions, errors end the context, and so does the end of the peer.
func TestWithoutFunctions(t *testing.T) {
	for name, failed := range map[string]error{"the peer succeeds": nil, "the peer fails": errors.New("out of paper")} {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			w := newWriter(t, oob.Dir(d), "hello")
			r := newProgram(t, oob.Dir(d), reader(), rdma.Config{})
			local, err := mmap.Alloc(r.dev, 4096, mmap.LocalReadWrite|mmap.RemoteWrite)
			require.NoError(t, err)
			r.rdma.OnStateChange(func(_, next pe.State) {
				switch next {
				case pe.Starting:
					r.peer.Connect(r.rdma, nil, local)
				case pe.Running:
					r.peer.Done(nil)
					r.peer.Done(nil) // does nothing
				}
			})
			ended := make(chan error)
			go func() { ended <- r.run(forever(t)) }()
			require.NoError(t, w.rdma.Start())
			require.NoError(t, w.engine.Run(forever(t)))
			require.NoError(t, w.peer.Close(failed))
			if err := <-ended; failed == nil {
				require.NoError(t, err)
				require.Equal(t, "hello", string(local.Bytes()[:5]))
			} else {
				require.ErrorIs(t, err, oob.ErrPeerFailed)
			}
		})
	}

	broken := errors.New("no paper")
	p := newProgram(t, oob.Carried(&fakeWay{exchange: func(context.Context, oob.Ends, []byte) ([]byte, error) { return nil, broken }}), reader(), rdma.Config{})
	p.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			p.peer.Connect(p.rdma, nil)
			p.peer.Exchange(t.Context(), p.rdma, oob.Offer{}, nil) // the second
			p.peer.Done(nil)
		}
	})
	err := p.run(forever(t))
	require.ErrorIs(t, err, oob.ErrInvalid, "Done comes before the exchange has succeeded")

	q := newProgram(t, oob.Carried(&fakeWay{exchange: func(context.Context, oob.Ends, []byte) ([]byte, error) { return nil, broken }}), reader(), rdma.Config{})
	q.rdma.OnStateChange(func(_, next pe.State) {
		if next == pe.Starting {
			q.peer.Exchange(t.Context(), q.rdma, oob.Offer{}, nil)
		}
	})
	require.ErrorIs(t, q.run(forever(t)), broken)
}

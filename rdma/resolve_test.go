package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// resolved is how a ResolvePeer has ended.
type resolved struct {
	peer  *rdma.Peer
	data  []byte
	err   error
	calls int
}

func (r *resolved) done(p *rdma.Peer, data []byte, err error) {
	r.peer, r.data, r.err = p, data, err
	r.calls++
}

func (p *datagramProgram) resolve(addr string, cfg rdma.DialConfig) *resolved {
	p.t.Helper()
	r := &resolved{}
	require.NoError(p.t, p.ctx.ResolvePeer(addr, cfg, r.done))
	p.until("an answer comes", func() bool { return r.calls > 0 })
	return r
}

func TestResolvePeer(t *testing.T) {
	engine := newEngine(t)
	client, server := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "client"}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "server", QKey: 77})
	listener := must(server.ctx.Listen("127.0.0.1:0", rdma.ListenConfig{PrivateData: []byte("welcome")}))
	r := client.resolve(listener.Addr().String(), rdma.DialConfig{})
	require.NoError(t, r.err)
	assert.Equal(t, "welcome", string(r.data[:7]))
	assert.Len(t, r.data, 136)
	assert.Equal(t, must(server.ctx.EndpointAddr()), r.peer.Addr())
	client.send(r.peer, "with the Q_Key that came")
	server.until("the message comes", func() bool { return len(server.got) == 1 })
	require.Same(t, r.peer, client.resolve(listener.Addr().String(), rdma.DialConfig{}).peer)
	require.NoError(t, listener.Close())
	require.ErrorIs(t, client.resolve(listener.Addr().String(), rdma.DialConfig{Once: true}).err, rdma.ErrNotListening)
	require.Equal(t, 1, r.calls)
}

// TestAnswerRequests: the program may answer, now or later, or reject.
func TestAnswerRequests(t *testing.T) {
	engine := newEngine(t)
	client, server := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "client"}), newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "server"})
	var requests []*rdma.ConnectRequest
	listener := must(server.ctx.Listen("127.0.0.1:0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { requests = append(requests, q) }}))
	ask := func(n int, data string) *resolved {
		r := &resolved{}
		require.NoError(t, client.ctx.ResolvePeer(listener.Addr().String(), rdma.DialConfig{PrivateData: []byte(data)}, r.done))
		client.until("the request comes", func() bool { return len(requests) == n })
		return r
	}
	first := ask(1, "first")
	assert.Equal(t, "first", string(requests[0].PrivateData()[:5]))
	_, err := requests[0].Accept(rdma.AcceptConfig{})
	require.ErrorIs(t, err, rdma.ErrNotSupported)
	require.ErrorIs(t, requests[0].Answer(make([]byte, 137)), rdma.ErrRange)
	require.NoError(t, requests[0].Answer([]byte("yes")))
	require.ErrorIs(t, requests[0].Answer(nil), rdma.ErrNotReady)
	client.until("the answer comes", func() bool { return first.calls > 0 })
	require.NoError(t, first.err)
	assert.Equal(t, "yes", string(first.data[:3]))

	second := ask(2, "second")
	require.NoError(t, requests[1].Reject([]byte("no")))
	client.until("the answer comes", func() bool { return second.calls > 0 })
	require.ErrorIs(t, second.err, rdma.ErrRejected)
	var failure *verbs.CMError
	require.ErrorAs(t, second.err, &failure)
	assert.Equal(t, "no", string(failure.PrivateData[:2]))
}

func TestResolveEndsWithTheContext(t *testing.T) {
	engine := newEngine(t)
	client := newDatagramProgram(t, engine, openSoft(t), rdma.DatagramsConfig{Name: "client"})
	r := &resolved{}
	require.NoError(t, client.ctx.ResolvePeer("127.0.0.1:1", rdma.DialConfig{Timeout: rdma.Forever}, r.done))
	require.NoError(t, client.ctx.Stop())
	client.until("it is Idle", func() bool { return client.ctx.State() == pe.Idle })
	require.Equal(t, 1, r.calls)
	require.ErrorIs(t, r.err, rdma.ErrFlushed)
}

func TestResolveMisuse(t *testing.T) {
	engine := newEngine(t)
	dev := openSoft(t)
	client := newDatagramProgram(t, engine, dev, rdma.DatagramsConfig{Name: "client"})
	never := func(*rdma.Peer, []byte, error) { assert.Fail(t, "called") }
	for _, c := range []struct {
		addr string
		cfg  rdma.DialConfig
		done func(*rdma.Peer, []byte, error)
		err  error
	}{
		{"127.0.0.1", rdma.DialConfig{}, never, rdma.ErrInvalid},
		{":7", rdma.DialConfig{}, never, rdma.ErrInvalid},
		{"127.0.0.1:7", rdma.DialConfig{PrivateData: make([]byte, 181)}, never, rdma.ErrRange},
		{"127.0.0.1:7", rdma.DialConfig{}, nil, rdma.ErrInvalid},
	} {
		require.ErrorIs(t, client.ctx.ResolvePeer(c.addr, c.cfg, c.done), c.err, "%+v", c)
	}
	_, err := client.ctx.Listen(":0", rdma.ListenConfig{PrivateData: make([]byte, 137)})
	require.ErrorIs(t, err, rdma.ErrRange)
	r := client.resolve("[fd00::1]:7", rdma.DialConfig{})
	require.ErrorIs(t, r.err, rdma.ErrNoRoute)
	r = client.resolve("127.0.0.1:1", rdma.DialConfig{Timeout: 1})
	require.ErrorIs(t, r.err, rdma.ErrTimeout)

	scalable := must(rdma.NewDatagrams(dev, rdma.DatagramsConfig{Engine: engine, Transport: verbs.SRD}))
	require.NoError(t, scalable.Start())
	require.ErrorIs(t, scalable.ResolvePeer("127.0.0.1:7", rdma.DialConfig{}, never), rdma.ErrNotSupported)
	require.NoError(t, scalable.Stop())
	client.until("it is Idle", func() bool { return scalable.State() == pe.Idle })
	require.NoError(t, scalable.Close())
}

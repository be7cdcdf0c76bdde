package await_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
)

// dialled is a context that listens and dials, driven by a goroutine of its own.
type dialled struct {
	*rdma.Connections
	engine *pe.Engine
	port   uint16
}

func newDialled(t *testing.T, listen rdma.ListenConfig) *dialled {
	dev, err := soft.Open(soft.Config{})
	require.NoError(t, err)
	d := &dialled{engine: pe.New(pe.Config{})}
	d.Connections, err = rdma.New(dev, rdma.Config{Engine: d.engine, MaxConnections: 2})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	driven := make(chan error, 1)
	go func() { driven <- await.Run(ctx, d.engine) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-driven, context.Canceled)
		assert.NoError(t, d.Close())
		assert.NoError(t, d.engine.Close())
		assert.NoError(t, dev.Close())
	})
	require.NoError(t, await.Start(t.Context(), d))
	require.NoError(t, await.Func(t.Context(), d.engine, func() error {
		l, err := d.Listen(":0", listen)
		if err == nil {
			d.port = l.Addr().Port()
		}
		return err
	}))
	return d
}

func (d *dialled) addr() string { return fmt.Sprintf("localhost:%d", d.port) }

func (d *dialled) connections(t *testing.T) (n int) {
	require.NoError(t, await.Func(t.Context(), d.engine, func() error {
		n = len(d.Connections.List())
		return nil
	}))
	return n
}

func TestDial(t *testing.T) {
	d := newDialled(t, rdma.ListenConfig{})
	conn, err := await.Dial(t.Context(), d.Connections, d.addr(), rdma.DialConfig{})
	require.NoError(t, err)
	require.NoError(t, await.Func(t.Context(), d.engine, func() error {
		assert.Equal(t, rdma.Ready, conn.State())
		return nil
	}))
	require.NoError(t, await.Write(t.Context(), conn, nil, nil))
}

func TestDialFails(t *testing.T) {
	d := newDialled(t, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { _ = q.Reject(nil) }})
	_, err := await.Dial(t.Context(), d.Connections, d.addr(), rdma.DialConfig{})
	require.ErrorIs(t, err, rdma.ErrRejected)
	_, err = await.Dial(t.Context(), d.Connections, "localhost:1", rdma.DialConfig{Once: true})
	require.ErrorIs(t, err, rdma.ErrNotListening)
	_, err = await.Dial(t.Context(), d.Connections, "localhost", rdma.DialConfig{})
	require.ErrorIs(t, err, rdma.ErrInvalid)
	_, err = await.Dial(t.Context(), nil, "localhost:1", rdma.DialConfig{})
	require.ErrorIs(t, err, await.ErrInvalid)
	for d.connections(t) > 0 { // failed ones are closed
		time.Sleep(time.Millisecond)
	}
}

// Nobody answers the request: ctx ends, or the context is stopped.
func TestDialIsGivenUp(t *testing.T) {
	requests := make(chan *rdma.ConnectRequest, 2)
	d := newDialled(t, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { requests <- q }})
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-requests
		cancel(enough)
	}()
	_, err := await.Dial(ctx, d.Connections, d.addr(), rdma.DialConfig{})
	require.ErrorIs(t, err, enough)
	for d.connections(t) > 0 {
		time.Sleep(time.Millisecond)
	}

	go func() {
		<-requests
		_ = d.engine.Do(func() { d.Fail(enough) })
	}()
	_, err = await.Dial(t.Context(), d.Connections, d.addr(), rdma.DialConfig{})
	require.ErrorIs(t, err, rdma.ErrFlushed)
	require.ErrorIs(t, err, enough)
}

// Nobody listens until ctx ends, or the context stops: the error says so.
func TestDialThatIsGivenUpSaysWhy(t *testing.T) {
	d := newDialled(t, rdma.ListenConfig{})
	enough := errors.New("enough")
	var conn *rdma.Connection
	require.NoError(t, await.Func(t.Context(), d.engine, func() error {
		d.OnConnection(func(c *rdma.Connection, _ rdma.ConnectionState, _ error) { conn = c })
		return nil
	}))
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for ctx.Err() == nil {
			time.Sleep(time.Millisecond)
			_ = await.Func(ctx, d.engine, func() error {
				if conn != nil && conn.DialError() != nil {
					cancel(enough)
				}
				return nil
			})
		}
	}()
	_, err := await.Dial(ctx, d.Connections, "localhost:1", rdma.DialConfig{})
	require.ErrorIs(t, err, enough)
	require.ErrorIs(t, err, rdma.ErrNotListening)
}

package example

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair connects two ends; the client may begin before the server is there.
func pair(t *testing.T) (server, client *Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	dialled := make(chan *Conn)
	go func() {
		c, theirs, err := Dial(t.Context(), addr, &Metadata{QPN: 1}, t.Logf)
		assert.NoError(t, err)
		assert.Equal(t, uint32(2), theirs.QPN)
		dialled <- c
	}()
	server, theirs, err := Accept(t.Context(), addr, &Metadata{QPN: 2}, t.Logf)
	require.NoError(t, err)
	assert.Equal(t, uint32(1), theirs.QPN)
	client = <-dialled
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.NoError(t, client.Close())
		require.NoError(t, client.Close())
	})
	return server, client
}

func TestExchange(t *testing.T) {
	server, client := pair(t)
	var got Metadata
	done := make(chan error)
	go func() {
		var theirs Metadata
		err := client.Exchange(t.Context(), &Metadata{QPN: 7}, &theirs)
		done <- errors.Join(err, client.Sync(t.Context(), "next"))
	}()
	require.NoError(t, server.Exchange(t.Context(), &Metadata{QPN: 8}, &got))
	assert.Equal(t, uint32(7), got.QPN)
	require.NoError(t, server.Sync(t.Context(), "next"))
	require.NoError(t, <-done)
}

func TestWrongStep(t *testing.T) {
	server, client := pair(t)
	done := make(chan error)
	go func() { done <- client.Sync(t.Context(), "one") }()
	require.ErrorContains(t, server.Sync(t.Context(), "two"), `"one"`)
	require.Error(t, <-done)
}

func TestEnd(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	boom := errors.New("boom")
	cancel(boom)
	_, _, err := Accept(ctx, "127.0.0.1:0", &Metadata{}, t.Logf)
	require.Error(t, err)
	_, _, err = Dial(ctx, "127.0.0.1:1", &Metadata{}, t.Logf)
	require.ErrorIs(t, err, boom)
	server, _ := pair(t)
	ctx, cancel = context.WithCancelCause(t.Context())
	context.AfterFunc(ctx, func() { _ = server.conn.Close() })
	cancel(boom)
	require.ErrorIs(t, server.Sync(ctx, "never"), boom)
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/verbena-rdma/verbena/rsocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Several clients make calls and run streams at the same time, with one server.
func TestCalls(t *testing.T) {
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var serving, clients sync.WaitGroup
	serving.Go(func() { assert.NoError(t, serve(ctx, l)) })
	total := 0
	for i := range messages {
		total += len(message(i))
	}
	for range 3 {
		clients.Go(func() {
			var output bytes.Buffer
			assert.NoError(t, client(context.Background(), l.Addr().String(), &output))
			assert.Equal(t, fmt.Sprintf("call: Hello\nstream: %d messages, %d bytes\n", messages, total), output.String())
		})
	}
	clients.Wait()
	stop()
	serving.Wait()
}

// Where nobody listens, a call fails with the reason.
func TestNobodyListens(t *testing.T) {
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	err = client(context.Background(), l.Addr().String(), &bytes.Buffer{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "connection refused")
}

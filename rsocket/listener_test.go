package rsocket

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/soft"
)

// A part has a limit of requests that wait, at all of its addresses together. It counts those that it
// refuses, and warns.
func TestWaitingRequestsAreLimited(t *testing.T) {
	var log bytes.Buffer // belongs to the engine's goroutine
	s, client := open(t, soft.Config{}, Config{Backlog: 1, Log: zerolog.New(&log).Level(zerolog.WarnLevel)}), open(t, soft.Config{}, Config{})
	l := newListener(1)
	p, err := l.add(s, nil)
	require.NoError(t, err)
	first, _, err := p.listenAt("127.0.0.1:0")
	require.NoError(t, err)
	second, _, err := p.listenAt("127.0.0.1:0")
	require.NoError(t, err)
	l.addr = s.addr(first)
	look := func(f func()) {
		require.NoError(t, await.Func(context.Background(), s.engine, func() error { f(); return nil }))
	}

	ready, err := client.Dial(context.Background(), first.String()) // it waits for Accept
	require.NoError(t, err)
	dialled := make(chan *Conn)
	go func() {
		c, _ := client.Dial(context.Background(), first.String()) // its request waits
		dialled <- c
	}()
	for waiting := 0; waiting == 0; {
		look(func() { waiting = len(p.postponed) })
	}
	for range 2 {
		_, err = client.Dial(context.Background(), second.String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	require.EqualValues(t, 2, s.Counters().Refused)
	look(func() { require.Equal(t, 1, strings.Count(log.String(), "too many wait for Accept")) })
	for range 2 {
		c, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	waited := <-dialled
	require.NotNil(t, waited)
	require.NoError(t, errors.Join(ready.Close(), waited.Close(), l.Close()))
}

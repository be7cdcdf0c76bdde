package rsocket

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/buffers"
	"github.com/verbena-rdma/verbena/soft"
)

// All connections together hold no more receive memory than the configuration says, and each gets
// its data. One connection too many is refused, at both ends.
func TestReceiveMemory(t *testing.T) {
	const count = 8
	cfg := Config{MaxConnections: count, ReceiveMemory: count*buffers.Smallest + 64<<10}
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			client, server := open(t, dev, Config{}), open(t, dev, cfg)
			data := make([]byte, 1<<20)
			_, _ = rand.Read(data)
			var calls sync.WaitGroup
			var ends []*Conn
			for range count {
				near, far := connect(t, client, server)
				ends = append(ends, near, far)
				calls.Go(func() {
					_, err := near.Write(data)
					assert.NoError(t, err)
					assert.NoError(t, near.CloseWrite())
				})
				calls.Go(func() {
					got, err := io.ReadAll(far)
					assert.NoError(t, err)
					assert.True(t, bytes.Equal(data, got))
				})
			}
			l, err := server.Listen("127.0.0.1:0")
			require.NoError(t, err)
			_, err = client.Dial(context.Background(), l.Addr().String())
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.EqualValues(t, 1, server.Counters().Refused)
			_, err = server.Dial(context.Background(), l.Addr().String())
			require.ErrorIs(t, err, rdma.ErrFull)
			require.ErrorContains(t, err, "all 8 connections are in use; close some, or raise Config.MaxConnections")

			done := make(chan struct{})
			go func() { calls.Wait(); close(done) }()
			for ended := false; !ended; {
				select {
				case <-done:
					ended = true
				case <-time.After(100 * time.Microsecond):
				}
				require.LessOrEqual(t, server.Counters().ReceiveMemory, uint64(cfg.ReceiveMemory))
			}
			for _, c := range ends {
				require.NoError(t, c.Close())
			}
			require.NoError(t, l.Close())
			server.wait(func() bool { return server.conns.Len() == 0 })
			require.Zero(t, server.Counters().ReceiveMemory)
			near, far := connect(t, client, server) // there is room again
			require.NoError(t, near.Close())
			require.NoError(t, far.Close())
		})
	}
}

// When all places are taken, the error says how many connections are closed and still send.
func TestFullOfClosedConnections(t *testing.T) {
	client, server := open(t, soft.Config{}, Config{MaxConnections: 2}), open(t, soft.Config{}, Config{ReceiveBuffer: minBuffer})
	near, far := connect(t, client, server)
	other, otherFar := connect(t, client, server)
	_, err := near.Write(make([]byte, 500_000)) // more than the peer has room for
	require.NoError(t, err)
	require.NoError(t, near.Close())
	_, err = client.Dial(context.Background(), "127.0.0.1:1")
	require.ErrorIs(t, err, rdma.ErrFull)
	require.ErrorContains(t, err, "all 2 connections are in use, 1 of them closed and not ended yet (see Config.Linger)")
	for _, c := range []*Conn{far, other, otherFar} {
		require.NoError(t, c.Close())
	}
	near.Wait()
	other.Wait()
	require.Zero(t, client.closedInPlace.Load())
}

// A connection whose peer does not answer a withdraw message has no timer meanwhile.
func TestNoTimerWithoutAnswer(t *testing.T) {
	client, server := open(t, soft.Config{}, Config{}), open(t, soft.Config{}, Config{})
	near, far := connect(t, client, server)
	data := make([]byte, 1<<20)
	_, err := near.Write(data)
	require.NoError(t, err)
	_, err = io.ReadFull(far, data)
	require.NoError(t, err)
	var armed bool
	require.NoError(t, await.Func(context.Background(), server.engine, func() error {
		if far.idle != nil {
			far.idle.Stop()
		}
		_, _ = far.end.Withdraw() // the message is not sent
		far.shrink()
		far.pump()
		armed = far.idle != nil
		return nil
	}))
	require.False(t, armed)
	require.NoError(t, near.Close())
	require.NoError(t, far.Close())
}

// The limits of a Config fit together, and errors say what to change.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		connections, memory         int // given
		wantConnections, wantMemory int
		err                         string
	}{
		{wantConnections: 16384, wantMemory: 1 << 30},
		{connections: 40_000, wantConnections: 40_000, wantMemory: 1 << 30},
		{memory: 1 << 20, wantConnections: 64, wantMemory: 1 << 20},
		{connections: 128, memory: 1 << 20, wantConnections: 128, wantMemory: 1 << 20},
		{connections: 129, memory: 1 << 20, err: "ReceiveMemory is 1048576 bytes, but 129 connections need 1056768; raise it, or lower MaxConnections"},
		{memory: 100, err: "1 connections need 8192;"},
		{memory: -1, err: "ReceiveMemory is -1 bytes"},
		{connections: 1 << 20, err: "the device has room for"},
	} {
		d, err := soft.Open(soft.Config{})
		require.NoError(t, err)
		s, err := New(Config{Device: d, MaxConnections: c.connections, ReceiveMemory: c.memory})
		if c.err != "" {
			require.ErrorIs(t, err, ErrRange)
			require.ErrorContains(t, err, c.err)
		} else {
			require.NoError(t, err)
			require.Equal(t, []int{c.wantConnections, c.wantMemory}, []int{s.cfg.MaxConnections, s.cfg.ReceiveMemory})
			require.NoError(t, s.Close())
		}
		require.NoError(t, d.Close())
	}
}

// A peer that withdraws its request when it was accepted leaves nothing behind.
func TestWithdrawnRequest(t *testing.T) {
	client, server := open(t, soft.Config{}, Config{}), open(t, soft.Config{}, Config{MaxConnections: 2})
	l, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	for range 5 {
		c, err := client.newConn(nil)
		require.NoError(t, err)
		_, err = await.Dial(context.Background(), client.rdma, l.Addr().String(), rdma.DialConfig{
			PrivateData: c.hello(), Once: true, OnResponse: func(conn *rdma.Connection) { _ = conn.Close() },
		})
		require.Error(t, err)
		c.abandon()
		require.Eventually(t, func() bool { return server.Counters().ReceiveMemory == 0 }, 5*time.Minute, time.Millisecond)
	}
	near, err := client.Dial(context.Background(), l.Addr().String())
	require.NoError(t, err)
	far, err := l.Accept()
	require.NoError(t, err)
	for _, c := range []io.Closer{near, far, l} {
		require.NoError(t, c.Close())
	}
}

package rsocket_test

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// A call of CloseWrite during one of Write ends the data behind what that has written.
func TestCloseWriteDuringWrite(t *testing.T) {
	client, server := open(t, soft.Config{}, rsocket.Config{}), open(t, soft.Config{}, rsocket.Config{})
	l := listen(t, server)
	data := make([]byte, 200_000)
	for range 200 {
		near, err := client.Dial(context.Background(), l.Addr().String())
		require.NoError(t, err)
		far, err := l.Accept()
		require.NoError(t, err)
		wrote := make(chan int)
		go func() {
			n, err := near.Write(data)
			if err != nil {
				assert.ErrorIs(t, err, syscall.EPIPE)
			}
			wrote <- n
		}()
		first, err := far.Read(make([]byte, 1000))
		require.NoError(t, err)
		require.NoError(t, near.CloseWrite())
		rest, err := io.Copy(io.Discard, far)
		require.NoError(t, err)
		require.Equal(t, <-wrote, first+int(rest))
		require.NoError(t, far.Close())
		require.NoError(t, near.Close())
	}
}

// Close of a stack ends the calls of Dial and Accept that wait.
func TestCloseEndsCalls(t *testing.T) {
	sim.Check(t, 2, func(s *sim.Sim) {
		h, other := s.Host("host"), s.Host("other")
		s.Partition([]*sim.Host{h}, []*sim.Host{other})
		var took time.Duration
		ended := false
		h.Run(func(_ context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			l, err := stack.Listen(":7471")
			require.NoError(s, err)
			var calls sync.WaitGroup
			host.Go(goHost{h}, &calls, func() {
				_, err := stack.Dial(context.Background(), other.Addr().String()+":7471")
				require.ErrorIs(s, err, net.ErrClosed)
			})
			host.Go(goHost{h}, &calls, func() {
				_, err := l.Accept()
				require.ErrorIs(s, err, net.ErrClosed)
			})
			h.Sleep(time.Second)
			begun := s.Now()
			require.NoError(s, stack.Close())
			calls.Wait()
			took = s.Now() - begun
			_, err = stack.Dial(context.Background(), other.Addr().String()+":7471")
			require.ErrorIs(s, err, net.ErrClosed)
			_, err = stack.Listen(":7472")
			require.ErrorIs(s, err, net.ErrClosed)
			ended = true
			return nil
		})
		s.RunUntil(func() bool { return ended }, 5*time.Minute)
		require.Less(s, took, 15*time.Second) // the limit for what was written, and a bit
	})
}

// When the device fails, everything that waits ends.
func TestDeviceFails(t *testing.T) {
	sim.Check(t, 2, func(s *sim.Sim) {
		a, b := s.Host("a"), s.Host("b")
		b.Run(func(ctx context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			l, err := stack.Listen(":7471")
			require.NoError(s, err)
			c, err := l.Accept()
			require.NoError(s, err)
			_, err = io.Copy(io.Discard, c)
			require.ErrorIs(s, err, syscall.ECONNRESET)
			return stack.Close()
		})
		ended := false
		a.Run(func(_ context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			l, err := stack.Listen(":7471")
			require.NoError(s, err)
			c, err := stack.Dial(context.Background(), b.Addr().String()+":7471")
			require.NoError(s, err)
			var calls sync.WaitGroup
			host.Go(goHost{a}, &calls, func() {
				_, err := l.Accept()
				require.ErrorIs(s, err, sim.ErrCrashed)
			})
			host.Go(goHost{a}, &calls, func() {
				_, err := c.Read(make([]byte, 1))
				require.ErrorIs(s, err, syscall.ECONNRESET)
			})
			s.After(time.Second, a.Crash)
			calls.Wait()
			_, err = c.Write(make([]byte, 1))
			require.ErrorIs(s, err, syscall.ECONNRESET)
			_, err = stack.Dial(context.Background(), b.Addr().String()+":7471")
			require.Error(s, err)
			_, err = stack.Listen(":7472")
			require.ErrorIs(s, err, net.ErrClosed)
			require.NoError(s, c.Close())
			require.NoError(s, l.Close())
			_ = stack.Close() // says that the device has failed
			ended = true
			return nil
		})
		s.RunUntil(func() bool { return ended }, time.Minute)
	})
}

// A call of Listen or Dial during Close of the stack fails, or its result is closed.
func TestCloseDuringListenAndDial(t *testing.T) {
	server := open(t, soft.Config{}, rsocket.Config{})
	far := listen(t, server)
	go func() {
		for {
			c, err := far.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	for range 50 {
		d, err := soft.Open(soft.Config{})
		require.NoError(t, err)
		stack, err := rsocket.New(rsocket.Config{Device: d})
		require.NoError(t, err)
		var calls sync.WaitGroup
		begun := make(chan struct{}, 4)
		for range 2 {
			calls.Go(func() {
				begun <- struct{}{}
				for {
					l, err := stack.Listen("127.0.0.1:0")
					if err != nil {
						assert.ErrorIs(t, err, net.ErrClosed)
						return
					}
					_ = l.Close()
				}
			})
			calls.Go(func() {
				begun <- struct{}{}
				for {
					c, err := stack.Dial(context.Background(), far.Addr().String())
					if err != nil {
						assert.ErrorIs(t, err, net.ErrClosed)
						return
					}
					_ = c.Close()
				}
			})
		}
		<-begun
		require.NoError(t, stack.Close())
		calls.Wait()
		require.NoError(t, d.Close())
	}
}

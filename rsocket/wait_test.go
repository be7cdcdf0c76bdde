package rsocket_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
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

// echoWhileWaiting sends back what comes, from several goroutines, which start in random order with
// several calls of Wait. At the end of the data it closes the connection.
func echoWhileWaiting(c *rsocket.Conn, r *rand.Rand, start func(*sync.WaitGroup, func()), sleep func(time.Duration)) error {
	var readers, waiters sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		start(&waiters, c.Wait)
		start(&readers, func() {
			p := make([]byte, 100)
			for errs[i] == nil {
				var n int
				if n, errs[i] = c.Read(p); n > 0 {
					_, errs[i] = c.Write(p[:n])
				}
			}
		})
		sleep(time.Duration(r.IntN(int(2 * time.Millisecond))))
	}
	readers.Wait()
	for i := range errs {
		if errs[i] == io.EOF {
			errs[i] = nil
		}
	}
	err := errors.Join(append(errs, c.Close())...)
	waiters.Wait()
	return err
}

// writeAndAwait writes pieces, each when the one before has come back, and closes the connection.
func writeAndAwait(c *rsocket.Conn, r *rand.Rand, sleep func(time.Duration)) error {
	p := make([]byte, 300)
	for range 10 {
		n, err := c.Write(p[:1+r.IntN(len(p))])
		if err == nil {
			_, err = io.ReadFull(c, p[:n])
		}
		if err != nil {
			return err
		}
		sleep(time.Duration(r.IntN(int(2 * time.Millisecond))))
	}
	return c.Close()
}

// Calls of Wait that began before Close keep no data from Read.
func TestWaitDuringReads(t *testing.T) {
	for name, dev := range map[string]soft.Config{"shared memory": {}, "UDP": {DisableLocal: true}} {
		t.Run(name, func(t *testing.T) {
			client, server := open(t, dev, rsocket.Config{}), open(t, dev, rsocket.Config{})
			l := listen(t, server)
			for range 20 {
				near, err := client.Dial(context.Background(), l.Addr().String())
				require.NoError(t, err)
				far, err := l.AcceptConn()
				require.NoError(t, err)
				var writer sync.WaitGroup
				writer.Go(func() { assert.NoError(t, writeAndAwait(near, rand.New(rand.NewPCG(rand.Uint64(), 1)), time.Sleep)) })
				require.NoError(t, echoWhileWaiting(far, rand.New(rand.NewPCG(rand.Uint64(), 2)), (*sync.WaitGroup).Go, time.Sleep))
				writer.Wait()
			}
		})
	}
}

func TestWaitDuringReadsSimulated(t *testing.T) {
	sim.Check(t, 20, func(s *sim.Sim) {
		a, b := s.Host("a"), s.Host("b")
		ended := false
		b.Run(func(_ context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			l, err := stack.Listen(":7471")
			require.NoError(s, err)
			c, err := l.AcceptConn()
			require.NoError(s, err)
			start := func(group *sync.WaitGroup, f func()) { host.Go(goHost{b}, group, f) }
			err = echoWhileWaiting(c, b.Rand(), start, b.Sleep)
			ended = true
			return errors.Join(err, stack.Close())
		})
		a.Run(func(ctx context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			c, err := stack.Dial(ctx, b.Addr().String()+":7471")
			require.NoError(s, err)
			return errors.Join(writeAndAwait(c, a.Rand(), a.Sleep), stack.Close())
		})
		s.RunUntil(func() bool { return ended }, time.Minute)
	})
}

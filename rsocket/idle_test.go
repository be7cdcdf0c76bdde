package rsocket_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// smallest is the receive memory of a new connection.
const smallest = 8 << 10

// burst writes a stream in bursts, with pauses around the time after which the receive memory is taken
// back, and reads another meanwhile. Then it waits while the connection is idle.
func burst(s *sim.Sim, h *sim.Host, stack *rsocket.Stack, c *rsocket.Conn, out, in *stream, bursts int, idle func()) {
	var writer sync.WaitGroup
	r := rand.New(rand.NewPCG(h.Rand().Uint64(), 1))
	host.Go(goHost{h}, &writer, func() {
		for at := range bursts {
			b := make([]byte, 300_000)
			out.fill(b, at*len(b))
			_, err := c.Write(b)
			require.NoError(s, err)
			h.Sleep(time.Duration(r.IntN(3)) * time.Duration(4900+r.IntN(200)) * time.Millisecond)
		}
	})
	got, want := make([]byte, 300_000), make([]byte, 300_000)
	for at := range bursts {
		_, err := io.ReadFull(c, got)
		require.NoError(s, err)
		require.Greater(s, stack.Counters().ReceiveMemory, uint64(smallest), "it has grown")
		in.fill(want, at*len(want))
		require.Equal(s, want, got)
	}
	writer.Wait()
	idle()
}

// The receive memory of a connection without data shrinks to that of a new one, at both ends, and no
// byte is lost, whenever data comes again.
func TestIdleMemory(t *testing.T) {
	sim.Check(t, 10, func(s *sim.Sim) {
		const bursts = 8
		server, client := s.Host("server"), s.Host("client")
		streams := [2]*stream{{number: 1}, {number: 2}}
		idle := 0
		end := func(h *sim.Host, stack *rsocket.Stack, c *rsocket.Conn, out, in *stream) error {
			burst(s, h, stack, c, out, in, bursts, func() {
				idle++
				for idle < 2 {
					h.Sleep(time.Second)
				}
				h.Sleep(20 * time.Second)
				require.EqualValues(s, smallest, stack.Counters().ReceiveMemory)
				idle++
				for idle < 4 {
					h.Sleep(time.Second)
				}
			})
			burst(s, h, stack, c, out, in, bursts, func() {}) // it works on
			return errors.Join(c.Close(), stack.Close())
		}
		ended := 0
		server.Run(func(_ context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			l, err := stack.Listen(":7471")
			require.NoError(s, err)
			c, err := l.AcceptConn()
			require.NoError(s, err)
			require.NoError(s, end(server, stack, c, streams[0], streams[1]))
			ended++
			return nil
		})
		client.Run(func(_ context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			c, err := stack.Dial(context.Background(), server.Addr().String()+":7471")
			require.NoError(s, err)
			require.NoError(s, end(client, stack, c, streams[1], streams[0]))
			ended++
			return nil
		})
		s.RunUntil(func() bool { return ended == 2 }, time.Hour)
	})
}

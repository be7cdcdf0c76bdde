package rsocket_test

import (
	"context"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// A connection survives a server that stands still for a minute, in a debugger say, unless
// Config.SilenceTimeout is shorter.
func TestServerStandsStill(t *testing.T) {
	for _, silence := range []time.Duration{0, 4 * time.Second} {
		sim.Check(t, 2, func(s *sim.Sim) {
			server, client := s.Host("server"), s.Host("client")
			server.Run(func(_ context.Context, dev verbs.Device) error {
				stack, err := rsocket.New(rsocket.Config{Device: dev})
				require.NoError(s, err)
				l, err := stack.Listen(":7471")
				require.NoError(s, err)
				c, err := l.Accept()
				require.NoError(s, err)
				_, _ = io.Copy(c, c)
				return stack.Close()
			})
			ended := false
			client.Run(func(ctx context.Context, dev verbs.Device) error {
				stack, err := rsocket.New(rsocket.Config{Device: dev, SilenceTimeout: silence})
				require.NoError(s, err)
				c, err := stack.Dial(ctx, server.Addr().String()+":7471")
				require.NoError(s, err)
				s.After(time.Second, server.Pause)
				s.After(time.Minute, server.Resume)
				p := make([]byte, 8)
				for until := s.Now() + 2*time.Minute; err == nil && s.Now() < until; client.Sleep(500 * time.Millisecond) {
					if _, err = c.Write(p); err == nil {
						_, err = io.ReadFull(c, p)
					}
				}
				if silence == 0 {
					require.NoError(s, err)
				} else {
					require.ErrorIs(s, err, syscall.ECONNRESET)
				}
				ended = true
				return stack.Close()
			})
			s.RunUntil(func() bool { return ended }, 10*time.Minute)
		})
	}
}

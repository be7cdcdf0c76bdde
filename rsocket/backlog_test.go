package rsocket_test

import (
	"context"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/rsocket/internal/protocol"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// dialAll dials an address from a host so many times at once. It returns the connections, and how
// many dials were refused.
func dialAll(t require.TestingT, h *sim.Host, s *rsocket.Stack, addr string, dials int) (conns []*rsocket.Conn, refused int) {
	var calls sync.WaitGroup
	var mu sync.Mutex
	for range dials {
		host.Go(goHost{h}, &calls, func() {
			c, err := s.Dial(context.Background(), addr)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
				refused++
				return
			}
			conns = append(conns, c)
		})
	}
	calls.Wait()
	return conns, refused
}

// Config.Backlog connections wait for Accept, not one more, though requests come at once. When one
// was accepted, there is room for another. A peer at another address is not kept out meanwhile.
func TestBacklog(t *testing.T) {
	sim.Check(t, 3, func(s *sim.Sim) {
		const backlog = 5
		server, client, other := s.Host("server"), s.Host("client"), s.Host("other")
		var full, accept, accepted bool
		server.Run(func(ctx context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev, Backlog: backlog})
			require.NoError(s, err)
			l, err := stack.Listen(":7471")
			require.NoError(s, err)
			for !accept {
				server.Sleep(time.Second)
			}
			require.Zero(s, stack.Counters().Refused, "requests wait, as with TCP")
			for range backlog + 1 {
				c, err := l.Accept()
				require.NoError(s, err)
				require.NoError(s, c.Close())
			}
			accepted = true
			<-ctx.Done()
			return stack.Close()
		})
		over := false
		client.Run(func(_ context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			conns, refused := dialAll(s, client, stack, server.Addr().String()+":7471", 64)
			require.Len(s, conns, backlog)
			require.Equal(s, 64-backlog, refused)
			full = true
			for !accepted {
				client.Sleep(time.Second)
			}
			_, refused = dialAll(s, client, stack, server.Addr().String()+":7471", backlog)
			require.Zero(s, refused, "there are as many places as Backlog says")
			over = true
			return stack.Close()
		})
		other.Run(func(_ context.Context, dev verbs.Device) error {
			stack, err := rsocket.New(rsocket.Config{Device: dev})
			require.NoError(s, err)
			for !full {
				other.Sleep(time.Second)
			}
			_, refused := dialAll(s, other, stack, server.Addr().String()+":7471", 1)
			require.Zero(s, refused)
			accept = true
			for !over {
				other.Sleep(time.Second)
			}
			return stack.Close()
		})
		s.RunUntil(func() bool { return over }, 5*time.Minute)
	})
}

// silentPeers is a program that makes so many requests for connections, and confirms none. It repeats
// those that have ended.
func silentPeers(addr string, count int) func(context.Context, verbs.Device) error {
	return func(ctx context.Context, dev verbs.Device) error {
		engine := pe.New(pe.Config{})
		r, err := rdma.New(dev, rdma.Config{Engine: engine, MaxConnections: count})
		if err != nil {
			return err
		}
		hello := protocol.Hello{Credits: 1, Target: protocol.Entry{Addr: 4096, Key: 1, Length: protocol.Entries}}
		dial := func() {
			_, err := r.Dial(addr, rdma.DialConfig{PrivateData: hello.Encode(), OnResponse: func(*rdma.Connection) {}})
			r.Fail(err)
		}
		r.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, _ error) {
			switch {
			case r.State() != pe.Running:
			case state == rdma.Failed:
				_ = conn.Close()
			case state == rdma.Closed:
				dial()
			}
		})
		r.OnStateChange(func(_, next pe.State) {
			if next == pe.Running {
				for range count {
					dial()
				}
			}
		})
		if err := r.Start(); err != nil {
			return err
		}
		_ = engine.Run(ctx)
		return engine.Close()
	}
}

// The peers of one address that do not confirm their connections keep no others out of a listener,
// however many there are: neither by its backlog nor by the number of connections.
func TestSilentPeers(t *testing.T) {
	for name, cfg := range map[string]rsocket.Config{
		"small backlog":   {Backlog: 4},
		"few connections": {MaxConnections: 24},
	} {
		t.Run(name, func(t *testing.T) {
			sim.Check(t, 2, func(s *sim.Sim) {
				server, silent, honest := s.Host("server"), s.Host("silent"), s.Host("honest")
				var stack *rsocket.Stack
				server.Run(func(ctx context.Context, dev verbs.Device) (err error) {
					cfg := cfg
					cfg.Device = dev
					stack, err = rsocket.New(cfg)
					require.NoError(s, err)
					l, err := stack.Listen(":7471")
					require.NoError(s, err)
					var calls sync.WaitGroup
					host.Go(goHost{server}, &calls, func() {
						for {
							c, err := l.Accept()
							if err != nil {
								return
							}
							host.Go(goHost{server}, &calls, func() {
								_, _ = io.Copy(c, c)
								_ = c.Close()
							})
						}
					})
					<-ctx.Done()
					err = stack.Close()
					calls.Wait()
					return err
				})
				addr := server.Addr().String() + ":7471"
				silent.Run(silentPeers(addr, 300))
				served := 0
				honest.Run(func(_ context.Context, dev verbs.Device) error {
					mine, err := rsocket.New(rsocket.Config{Device: dev})
					require.NoError(s, err)
					honest.Sleep(5 * time.Second) // the silent ones have all that they can get
					for range 40 {
						c, err := mine.Dial(context.Background(), addr)
						require.NoError(s, err)
						_, err = c.Write([]byte("hello"))
						require.NoError(s, err)
						_, err = io.ReadFull(c, make([]byte, 5))
						require.NoError(s, err)
						require.NoError(s, c.Close())
						c.Wait()
						served++
						honest.Sleep(time.Second)
					}
					return mine.Close()
				})
				s.RunUntil(func() bool { return served == 40 }, 10*time.Minute)
				require.EqualValues(s, 40, stack.Counters().Accepted)
			})
		})
	}
}

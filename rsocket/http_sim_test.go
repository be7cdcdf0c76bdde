package rsocket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// withStack is a program with a stack.
func withStack(program func(ctx context.Context, stack *rsocket.Stack) error) func(context.Context, verbs.Device) error {
	return func(ctx context.Context, dev verbs.Device) error {
		cfg := simConfig
		cfg.Device = dev
		stack, err := rsocket.New(cfg)
		if err != nil {
			return err
		}
		return errors.Join(program(ctx, stack), stack.Close())
	}
}

// serveHTTP is an HTTP server that answers with what it gets.
func serveHTTP(p *http.Protocols) func(ctx context.Context, stack *rsocket.Stack) error {
	return func(ctx context.Context, stack *rsocket.Stack) error {
		l, err := stack.Listen(":80")
		if err != nil {
			return err
		}
		echo := func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err == nil {
				_, _ = w.Write(body)
			}
		}
		server := &http.Server{Handler: http.HandlerFunc(echo), Protocols: p, IdleTimeout: 3 * time.Second}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(l) })
		<-ctx.Done()
		err = stack.Close() // in the order of its connections; the server has them in a map
		_ = server.Close()
		serving.Wait()
		return err
	}
}

// post posts a text, and checks that the answer is the same.
func post(s *sim.Sim, client *http.Client, server *sim.Host, text string) error {
	r, err := client.Post("http://"+net.JoinHostPort(server.Addr().String(), "80"), "text/plain", strings.NewReader(text))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil {
		require.Equal(s, text, string(body))
	}
	return err
}

// HTTP clients with ordinary goroutines, timers and time-outs, whose connections are idle for a while, and
// a server that crashes: all requests are answered in the end, and a run repeats.
func TestHTTP(t *testing.T) {
	one, two := new(http.Protocols), new(http.Protocols)
	one.SetHTTP1(true)
	two.SetUnencryptedHTTP2(true)
	for name, p := range map[string]*http.Protocols{"1.1": one, "2": two} {
		t.Run(name, func(t *testing.T) {
			sim.CheckSerial(t, 4, func(s *sim.Sim) {
				s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond, Jitter: time.Millisecond, Loss: 0.001})
				server, done := s.Host("server"), 0
				server.Run(withStack(serveHTTP(p)))
				client := func(ctx context.Context, stack *rsocket.Stack) error {
					var dials, timeouts atomic.Int32
					dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
						dials.Add(1)
						return stack.DialContext(ctx, network, addr)
					}
					transport := &http.Transport{DialContext: dial, Protocols: p, IdleConnTimeout: time.Second}
					defer transport.CloseIdleConnections()
					client := &http.Client{Transport: transport, Timeout: 500 * time.Millisecond}
					var workers sync.WaitGroup
					for w := range 3 {
						workers.Go(func() {
							for n := 0; n < 12 && ctx.Err() == nil; {
								err := post(s, client, server, fmt.Sprint(w, n, strings.Repeat("x", 1000*n)))
								if err != nil {
									if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
										timeouts.Add(1)
									}
									time.Sleep(50 * time.Millisecond)
									continue
								}
								n++
								time.Sleep(time.Duration(n%4) * 400 * time.Millisecond)
							}
						})
					}
					workers.Wait()
					s.Sometimes(timeouts.Load() > 0, "a request times out")
					s.Sometimes(dials.Load() > 6, "a connection is dialled again after it was idle")
					done++
					return nil
				}
				for _, h := range s.Hosts("client", 2) {
					h.Run(withStack(client))
				}
				s.After(3*time.Second, server.Crash)
				s.After(5*time.Second, server.Restart)
				s.RunUntil(func() bool { return done == 2 }, time.Minute)
				require.Equal(s, 2, server.Starts())
			})
		})
	}
}

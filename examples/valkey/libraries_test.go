//go:build linux && libraries

// The libraries take a minute to compile: make full does.

package valkey

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	valkeygo "github.com/valkey-io/valkey-go"

	"github.com/verbena-rdma/verbena/soft"
)

// dialer is that of a library.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// libraries runs a test of a library by TCP and by RDMA. What it returns is to be the same.
func libraries(t *testing.T, f func(t *testing.T, s *server, addr string, dial dialer) []string) {
	servers(t, func(t *testing.T, s *server) {
		want := f(t, s, s.addr, new(net.Dialer).DialContext)
		require.NotEmpty(t, want)
		require.Equal(t, want, f(t, s, s.addr, open(t, soft.Config{}, Config{}).DialContext))
	})
}

// value is a value that is larger than the buffers of the two ends.
var value = strings.Repeat("0123456789", 300_000)

// redis.Client works with the dialer.
func TestGoRedis(t *testing.T) {
	libraries(t, func(t *testing.T, s *server, addr string, dial dialer) (results []string) {
		note := func(r redis.Cmder) { results = append(results, r.String()) }
		ctx := t.Context()
		c := redis.NewClient(&redis.Options{Addr: addr, Dialer: dial, ContextTimeoutEnabled: true, ReadTimeout: time.Minute})
		defer func() { assert.NoError(t, c.Close()) }()
		require.NoError(t, c.Set(ctx, "large", value, 0).Err())
		require.Equal(t, value, c.Get(ctx, "large").Val())
		note(c.Set(ctx, "k", "v", 0))
		note(c.Get(ctx, "nothing"))
		replies, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 1000 {
				p.Set(ctx, fmt.Sprint("k", i), i, 0)
				p.Get(ctx, fmt.Sprint("k", i/2))
			}
			return nil
		})
		require.NoError(t, err)
		for _, r := range replies {
			note(r)
		}
		news := c.Subscribe(ctx, "news")
		_, err = news.Receive(ctx)
		require.NoError(t, err)
		note(c.Publish(ctx, "news", "hello"))
		m, err := news.ReceiveMessage(ctx)
		require.NoError(t, err)
		results = append(results, m.String())
		require.NoError(t, news.Close())
		note(c.RPush(ctx, "list", "element"))
		note(c.BLPop(ctx, 0, "list"))
		soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		err = c.BLPop(soon, 0, "empty").Err()
		timeout, ok := errors.AsType[net.Error](err)
		require.True(t, ok && timeout.Timeout(), "%v", err)
		s.stop()
		s.start()
		note(c.Get(ctx, "k")) // the connections of before have ended
		return results
	})
}

// valkey-go works with the dialer.
func TestValkeyGo(t *testing.T) {
	libraries(t, func(t *testing.T, s *server, addr string, dial dialer) (results []string) {
		note := func(r valkeygo.ValkeyResult) { results = append(results, r.String()) }
		ctx := t.Context()
		c, err := valkeygo.NewClient(valkeygo.ClientOption{
			InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, AlwaysRESP2: true, // the server in Go has no RESP3
			DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return dial(ctx, "tcp", addr)
			},
		})
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.Do(ctx, c.B().Set().Key("large").Value(value).Build()).Error())
		got, err := c.Do(ctx, c.B().Get().Key("large").Build()).ToString()
		require.NoError(t, err)
		require.True(t, value == got)
		note(c.Do(ctx, c.B().Set().Key("k").Value("v").Build()))
		note(c.Do(ctx, c.B().Get().Key("nothing").Build()))
		var commands valkeygo.Commands
		for i := range 1000 {
			commands = append(commands, c.B().Set().Key(fmt.Sprint("k", i)).Value(fmt.Sprint(i)).Build(), c.B().Get().Key(fmt.Sprint("k", i/2)).Build())
		}
		for _, r := range c.DoMulti(ctx, commands...) {
			note(r)
		}
		reading, stop := context.WithCancel(ctx)
		heard, ended := make(chan valkeygo.PubSubMessage, 100), make(chan error)
		go func() {
			ended <- c.Receive(reading, c.B().Subscribe().Channel("news").Build(), func(m valkeygo.PubSubMessage) { heard <- m })
		}()
		for n := int64(0); n == 0; { // until it has subscribed
			n, err = c.Do(ctx, c.B().Publish().Channel("news").Message("hello").Build()).AsInt64()
			require.NoError(t, err)
		}
		results = append(results, fmt.Sprint(<-heard))
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		note(c.Do(ctx, c.B().Rpush().Key("list").Element("element").Build()))
		note(c.Do(ctx, c.B().Blpop().Key("list").Timeout(0).Build()))
		soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, c.Do(soon, c.B().Blpop().Key("empty").Timeout(0).Build()).Error(), context.DeadlineExceeded)
		s.stop()
		s.start()
		note(c.Do(ctx, c.B().Get().Key("k").Build())) // the connections of before have ended
		return results
	})
}

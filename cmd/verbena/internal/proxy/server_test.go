package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// queue is a listener without a network. Accept returns what comes through the channel: a
// connection or an error.
type queue struct {
	next      chan any
	closed    chan struct{}
	closeOnce sync.Once
}

func newQueue() *queue { return &queue{next: make(chan any, 100), closed: make(chan struct{})} }

func (q *queue) Accept() (net.Conn, error) {
	select {
	case <-q.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case next := <-q.next:
		if err, failed := next.(error); failed {
			return nil, err
		}
		return next.(net.Conn), nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

func (q *queue) Close() error   { q.closeOnce.Do(func() { close(q.closed) }); return nil }
func (q *queue) Addr() net.Addr { return doubleAddr{} }

// serving is a server that runs. It uses a queue, and targets that the test takes from a channel.
type serving struct {
	*queue
	server  *server
	clients []*double
	targets chan *double // in any order
	log     bytes.Buffer // to be read after synctest.Wait, or when the server has ended
	stop    context.CancelFunc
	result  chan error
}

func serve(t *testing.T, l limits, dial func(context.Context) (stream, error)) *serving {
	s := &serving{queue: newQueue(), targets: make(chan *double, 100), result: make(chan error, 1)}
	if dial == nil {
		dial = func(context.Context) (stream, error) {
			near, target := connected()
			s.targets <- target
			return near, nil
		}
	}
	if l.max == 0 {
		l.max = 100
	}
	s.server = &server{limits: l, listener: s.queue, dial: dial, target: "tcp:target:80", log: zerolog.New(zerolog.SyncWriter(&s.log))}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(t.Context())
	go func() { s.result <- s.server.serve(ctx) }()
	return s
}

// connect lets a client connect. It sends its number.
func (s *serving) connect() *double { return s.connectLingering(nil) }

// connectLingering is connect. The last data to the client is being sent until sent is closed.
func (s *serving) connectLingering(sent chan struct{}) *double {
	client, near := connected()
	near.sent = sent
	number := byte(len(s.clients))
	s.clients = append(s.clients, client)
	go func() { _, _ = client.Write([]byte{number}) }()
	s.next <- near
	return client
}

// meet returns a client and its target.
func (s *serving) meet(t *testing.T) (client, target *double) {
	t.Helper()
	target = <-s.targets
	var number [1]byte
	_, err := io.ReadFull(target, number[:])
	require.NoError(t, err)
	return s.clients[number[0]], target
}

// end ends both directions of a connection, and waits until the proxy has.
func end(t *testing.T, client, target *double) {
	t.Helper()
	require.NoError(t, client.CloseWrite())
	require.NoError(t, target.CloseWrite())
	for _, d := range []*double{client, target} {
		_, err := io.ReadAll(d)
		require.NoError(t, err)
	}
}

// At the limit, connections wait until others have ended; none is refused.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{max: 2, connect: time.Second, grace: time.Second}, nil)
		for range 5 {
			s.connect()
		}
		synctest.Wait()
		assert.Len(t, s.targets, 2)
		assert.Equal(t, 1, strings.Count(s.log.String(), "the limit of -max"))
		for left := 4; left >= 0; left-- {
			client, target := s.meet(t)
			end(t, client, target)
			synctest.Wait()
			assert.Len(t, s.targets, min(2, left))
		}
		s.stop()
		require.NoError(t, <-s.result)
		assert.EqualValues(t, 5, s.server.accepted)
		assert.Zero(t, s.server.failed.Load())
		assert.Equal(t, 1, strings.Count(s.log.String(), "the limit of -max"))
	})
}

// A connection whose last data is still being sent leaves its place to another. There are as many of
// these as places; one more keeps its place.
func TestLingeringAtLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const max = 2
		s := serve(t, limits{max: max, connect: time.Second, grace: time.Second}, nil)
		sent := make(map[*double]chan struct{})
		for range 2*max + 1 {
			c := make(chan struct{})
			sent[s.connectLingering(c)] = c
		}
		var ended []*double
		for _, open := range []int{2, 2, 1, 0} { // connections that are open after the end of one more
			client, target := s.meet(t)
			end(t, client, target)
			ended = append(ended, client)
			synctest.Wait()
			assert.Len(t, s.targets, open, "%d connections have ended", len(ended))
		}
		close(sent[ended[0]])
		client, target := s.meet(t)
		end(t, client, target)
		s.stop()
		synctest.Wait()
		assert.Empty(t, s.result, "what clients have not got is still being sent")
		for _, c := range append(ended[1:], client) {
			close(sent[c])
		}
		require.NoError(t, <-s.result)
		assert.EqualValues(t, 2*max+1, s.server.accepted)
		assert.Zero(t, s.server.failed.Load())
	})
}

// The proxy ends while it is at its limit, and while connections wait.
func TestEndAtLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{max: 1, connect: time.Second, grace: time.Second}, nil)
		s.connect()
		waits := s.connect()
		client, target := s.meet(t)
		synctest.Wait()
		s.stop()
		synctest.Wait()
		end(t, client, target)
		require.NoError(t, <-s.result)
		assert.EqualValues(t, 1, s.server.accepted)
		waits.reset() // as a network does to those in the queue of a listener that is closed
	})
}

// A lack of files is no reason to end; another error is.
func TestAcceptFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{connect: time.Second, grace: time.Second}, nil)
		for range 12 {
			s.next <- &net.OpError{Op: "accept", Err: syscall.EMFILE}
		}
		s.connect()
		client, target := s.meet(t)
		end(t, client, target)
		synctest.Wait()
		assert.Equal(t, 12, strings.Count(s.log.String(), "trying again"))
		s.connect()
		client, target = s.meet(t)
		s.next <- errors.New("the device is gone")
		synctest.Wait()
		end(t, client, target) // open connections have the grace period
		require.ErrorContains(t, <-s.result, "accept connections: the device is gone")
		assert.Zero(t, s.server.failed.Load())
		s.stop()
	})
	synctest.Test(t, func(t *testing.T) { // the proxy ends during a pause
		s := serve(t, limits{connect: time.Second, grace: time.Second}, nil)
		s.next <- syscall.ENFILE
		synctest.Wait()
		s.stop()
		require.NoError(t, <-s.result)
	})
}

// A target that cannot be reached is an error of one connection, whose client is reset.
func TestTargetFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := true
		s := serve(t, limits{connect: 3 * time.Second, grace: time.Second}, func(ctx context.Context) (stream, error) {
			if refused {
				return nil, syscall.ECONNREFUSED
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		_, err := s.connect().Read(make([]byte, 1))
		require.ErrorIs(t, err, errReset)
		synctest.Wait()
		refused = false
		start := time.Now()
		_, err = s.connect().Read(make([]byte, 1))
		require.ErrorIs(t, err, errReset)
		assert.Equal(t, 3*time.Second, time.Since(start))
		s.stop()
		require.NoError(t, <-s.result)
		assert.Contains(t, s.log.String(), "connect to tcp:target:80: connection refused; is its program running?")
		assert.Contains(t, s.log.String(), "connect to tcp:target:80: not within 3s (-t)")
		assert.Contains(t, s.log.String(), `"connections":2,"failed":2`)
	})
}

// After the interrupt nothing more is accepted. Open connections go on, and those that are left
// after the grace period are reset.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{connect: time.Hour, grace: 10 * time.Second}, nil)
		s.connect()
		s.connect()
		short, shortTarget := s.meet(t)
		_, longTarget := s.meet(t)
		start := time.Now()
		s.stop()
		synctest.Wait()
		_, err := s.Accept()
		require.ErrorIs(t, err, net.ErrClosed, "it listens no more")
		time.Sleep(5 * time.Second)
		end(t, short, shortTarget)
		_, err = longTarget.Read(make([]byte, 1))
		require.ErrorIs(t, err, errReset)
		require.NoError(t, <-s.result)
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.Contains(t, s.log.String(), errGraceOver.Error())
		assert.Contains(t, s.log.String(), `"connections":2,"failed":1,"bytes_to_target":2,"bytes_to_clients":0`)
	})
	synctest.Test(t, func(t *testing.T) { // a connection to the target that is under way ends too
		s := serve(t, limits{connect: time.Hour, grace: 0}, func(ctx context.Context) (stream, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		client := s.connect()
		synctest.Wait()
		s.stop()
		_, err := client.Read(make([]byte, 1))
		require.ErrorIs(t, err, errReset)
		require.NoError(t, <-s.result)
		assert.Contains(t, s.log.String(), errGraceOver.Error())
	})
}

// echo is a TCP server that sends back what it gets, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var open sync.WaitGroup
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.(*net.TCPConn).CloseWrite()
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
	return l.Addr().String()
}

// Many connections at once, more than the limit, through the network of the system.
func TestManyConnections(t *testing.T) {
	l, err := tcp{}.listen(t.Context(), address{network: "tcp"})
	require.NoError(t, err)
	target := echo(t)
	s := server{
		limits: limits{max: 20, connect: time.Minute, grace: time.Minute}, listener: l, target: target, log: zerolog.Nop(),
		dial: func(ctx context.Context) (stream, error) {
			host, port, err := net.SplitHostPort(target)
			require.NoError(t, err)
			a, err := parseTarget("tcp:" + net.JoinHostPort(host, port))
			require.NoError(t, err)
			return tcp{}.dial(ctx, a)
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- s.serve(ctx) }()
	var clients sync.WaitGroup
	for i := range 100 {
		clients.Go(func() {
			c, err := net.Dial("tcp", l.Addr().String())
			if !assert.NoError(t, err) {
				return
			}
			defer func() { _ = c.Close() }()
			data := bytes.Repeat([]byte{byte(i)}, 1+i*997)
			go func() {
				_, _ = c.Write(data)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(c)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(data, got))
		})
	}
	clients.Wait()
	stop()
	require.NoError(t, <-result)
	assert.EqualValues(t, 100, s.accepted)
	assert.Zero(t, s.failed.Load())
	assert.Equal(t, s.up.Load(), s.down.Load())
}

func TestListenTCP(t *testing.T) {
	for text, want := range map[string]string{"tcp:0": "127.0.0.1:", "tcp:0.0.0.0:0": "0.0.0.0:", "tcp:127.0.0.2:0": "127.0.0.2:", "tcp:localhost:0": ""} {
		a, err := parseAddress(text)
		require.NoError(t, err)
		l, err := tcp{}.listen(t.Context(), a)
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(l.Addr().String(), want), "%s: %v", text, l.Addr())
		require.NoError(t, l.Close())
	}
	l, err := tcp{}.listen(t.Context(), address{"tcp", "*", 0})
	require.NoError(t, err)
	own, err := tcp{}.listen(t.Context(), address{"tcp", "192.0.2.1", 0})
	assert.Nil(t, own)
	require.ErrorContains(t, err, "listen on tcp:192.0.2.1:0")
	require.NoError(t, l.Close())
}

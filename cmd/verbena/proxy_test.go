package main

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/process"
)

var listeningAt = regexp.MustCompile(`listening on (?:tcp|rdma):(\S+), for `)

// startProxy starts verbena proxy, and returns its address.
func startProxy(t *testing.T, args ...string) (p *process.Process, addr string) {
	t.Helper()
	return startProxyBy(t, verbena(t, nil), args...)
}

// startProxyBy starts verbena proxy by the words before that.
func startProxyBy(t *testing.T, command []string, args ...string) (p *process.Process, addr string) {
	t.Helper()
	p = start(t, append(append(command, "proxy"), args...)...)
	p.Await("listening on ")
	return p, listeningAt.FindStringSubmatch(p.Stderr.String())[1]
}

// serveTCP calls serve for each connection to a TCP server, until the test ends.
func serveTCP(t *testing.T, serve func(*net.TCPConn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveOn(t, l, serve)
	return l.Addr().String()
}

func serveOn(t *testing.T, l net.Listener, serve func(*net.TCPConn)) {
	var open sync.WaitGroup
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				serve(c.(*net.TCPConn))
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
}

// echo sends back what it gets, and ends when the client has ended.
func echo(c *net.TCPConn) {
	_, _ = io.Copy(c, c)
	_ = c.CloseWrite()
}

func dialTCP(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// exchange sends data to an echo server, ends its direction, and wants the data back.
func exchange(t *testing.T, addr string, size int) {
	t.Helper()
	exchangeOn(t, dialTCP(t, addr), size)
}

func exchangeOn(t *testing.T, c *net.TCPConn, size int) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data)
	go func() {
		_, _ = c.Write(data)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(data, got), "%d bytes of %d came back, or others", len(got), len(data))
}

func TestProxyTCP(t *testing.T) {
	p, addr := startProxy(t, "-v", "tcp:0", "tcp:"+serveTCP(t, echo))
	assert.Contains(t, p.Stderr.String(), "only programs on this machine can connect; tcp:*:0 listens on all")
	for _, size := range []int{0, 1, 3 << 20} {
		exchange(t, addr, size)
	}
	p.Send(os.Interrupt)
	assert.Equal(t, 130, p.Code())
	out := p.Stderr.String()
	assert.Contains(t, out, "bytes_to_clients=3145729")
	assert.Contains(t, out, "connections=3")
	assert.Contains(t, out, "failed=0")
}

// wantReset connects, and wants a reset: as early as in Dial, or in Read.
func wantReset(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// startChain starts two proxies: from TCP to RDMA, and from there to a TCP server. The second one has
// the race detector, if the test has it.
func startChain(t *testing.T, target string) (near, far *process.Process, addr string) {
	t.Helper()
	far, at := startProxyBy(t, []string{os.Args[0]}, "rdma:0", "tcp:"+target)
	near, addr = startProxy(t, "tcp:0", "rdma:"+at)
	return near, far, addr
}

// TCP programs at both ends, RDMA between.
func TestProxyRDMA(t *testing.T) {
	near, far, addr := startChain(t, serveTCP(t, echo))
	assert.Contains(t, far.Stderr.String(), "only programs on this machine can connect; rdma:*:0 listens on all")
	var clients sync.WaitGroup
	for _, size := range []int{0, 1, 3 << 20, 1000, 100_000} {
		clients.Go(func() { exchange(t, addr, size) })
	}
	clients.Wait()
	near.Send(os.Interrupt)
	assert.Equal(t, 130, near.Code())
	far.Send(os.Interrupt)
	assert.Equal(t, 130, far.Code())
	for _, p := range []*process.Process{near, far} {
		assert.Contains(t, p.Stderr.String(), "connections=5")
		assert.Contains(t, p.Stderr.String(), "failed=0")
	}
}

// RDMA at both ends of one proxy, which uses one device for both.
func TestProxyBothRDMA(t *testing.T) {
	_, at := startProxy(t, "rdma:0", "tcp:"+serveTCP(t, echo))
	_, at = startProxy(t, "-d", "soft-lo", "rdma:0", "rdma:"+at)
	_, addr := startProxy(t, "tcp:0", "rdma:"+at)
	exchange(t, addr, 200_000)
}

// A proxy is not its own target. Its device has another address on the loopback interface than the
// one that it is asked to listen on, and both lead to it.
func TestProxyLoops(t *testing.T) {
	_, at := startProxy(t, "rdma:0", "tcp:"+serveTCP(t, echo)) // its device has the first address
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	near, addr := startProxy(t, "tcp:0", "rdma:127.0.0.1:"+port)
	exchange(t, addr, 1000)
	interrupted(near)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err = net.SplitHostPort(free.Addr().String())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	for _, listen := range []string{"rdma:", "rdma:*:", "rdma:127.0.0.1:", "rdma:localhost:"} {
		for _, target := range []string{"rdma:127.0.0.1:", "rdma:localhost:"} {
			p := start(t, verbena(t, nil, "proxy", listen+port, target+port)...)
			assert.Equal(t, 1, p.Code(), "%s %s: %s", listen, target, p.Stderr.String())
			assert.Contains(t, p.Stderr.String(), "is the address that the proxy itself listens on", "%s %s", listen, target)
		}
	}
}

// A reset goes all the way, from either end.
func TestProxyRDMAResets(t *testing.T) {
	ended := make(chan error, 2)
	far, at := startProxy(t, "rdma:0", "tcp:"+serveTCP(t, func(c *net.TCPConn) {
		var order [5]byte
		_, err := io.ReadFull(c, order[:])
		if string(order[:]) == "reset" {
			_ = c.SetLinger(0)
			return
		}
		if err == nil { // otherwise the reset has overtaken the data
			_, err = c.Read(order[:])
		}
		ended <- err
	}))
	near, addr := startProxy(t, "tcp:0", "rdma:"+at)
	c := dialTCP(t, addr)
	_, err := c.Write([]byte("reset"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)

	c = dialTCP(t, addr)
	_, err = c.Write([]byte("stay!"))
	require.NoError(t, err)
	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-ended, syscall.ECONNRESET)
	for _, p := range []*process.Process{near, far} {
		interrupted(p)
		assert.Contains(t, p.Stderr.String(), "failed=2")
	}
}

// What the proxy has taken is still sent when the proxy is interrupted.
func TestProxyDelivers(t *testing.T) {
	read := make(chan struct{})
	got := make(chan int64)
	far, at := startProxy(t, "rdma:0", "tcp:"+serveTCP(t, func(c *net.TCPConn) {
		_ = c.CloseWrite() // the client has nothing to wait for
		<-read
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}))
	near, addr := startProxy(t, "tcp:0", "rdma:"+at)
	c := dialTCP(t, addr)
	const size = 700_000
	_, err := c.Write(make([]byte, size))
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	_, err = io.Copy(io.Discard, c)
	require.NoError(t, err)
	near.Send(os.Interrupt)
	assert.Equal(t, 130, near.Code())
	close(read)
	assert.EqualValues(t, size, <-got)
	interrupted(far)
	assert.Contains(t, far.Stderr.String(), "failed=0")
}

// A connection that fails is an error of the log, and the client is reset. The proxy goes on.
func TestProxyTargetFails(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := free.Addr().String()
	require.NoError(t, free.Close())
	p, addr := startProxy(t, "tcp:127.0.0.1:0", "tcp:"+nobody)
	for range 2 {
		wantReset(t, addr)
	}
	p.Await("connect to tcp:" + nobody)
	p.Await("is its program running?")
	interrupted(p)
	assert.Contains(t, p.Stderr.String(), "failed=2")

	resets := serveTCP(t, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	p, addr = startProxy(t, "tcp:0", "tcp:"+resets)
	c := dialTCP(t, addr)
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	p.Await("read from the target")
	interrupted(p)
}

// Open connections have the grace period, which a second interrupt ends.
func TestProxyEnds(t *testing.T) {
	target := serveTCP(t, echo)
	open := func(args ...string) (*process.Process, *net.TCPConn) {
		p, addr := startProxy(t, append(args, "tcp:0", "tcp:"+target)...)
		c := dialTCP(t, addr)
		hello(t, c)
		return p, c
	}

	p, c := open("-grace", patience.String())
	p.Send(syscall.SIGTERM)
	p.Await("ending: open connections have")
	hello(t, c)
	require.NoError(t, c.CloseWrite())
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, 128+int(syscall.SIGTERM), p.Code())
	assert.Contains(t, p.Stderr.String(), "failed=0")

	p, c = open("-grace", "1ms")
	p.Send(os.Interrupt)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Equal(t, 130, p.Code())
	assert.Contains(t, p.Stderr.String(), "-grace was over")

	p, c = open("-grace", "1000h")
	p.Send(os.Interrupt)
	p.Await("ending: open connections have")
	p.Send(os.Interrupt)
	assert.Equal(t, -1, p.Code(), "killed by the signal")
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
}

// hello sends something to an echo server, and waits until it comes back.
func hello(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := c.Write([]byte("hello"))
	require.NoError(t, err)
	got := make([]byte, 5)
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
}

func TestProxyIdle(t *testing.T) {
	p, addr := startProxy(t, "-idle", "1ms", "tcp:0", "tcp:"+serveTCP(t, echo))
	wantReset(t, addr)
	p.Await("no data in either direction for 1ms, the limit of -idle")
	interrupted(p)
}

// Wrong input ends the program, says what is wrong, and what to do.
func TestProxyWrongInput(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	own := strings.TrimPrefix(taken.Addr().String(), "127.0.0.1:")
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{2, "give two, LISTEN and TARGET", []string{"tcp:8080"}},
		{2, "LISTEN: \"8080\" does not say which network", []string{"8080", "tcp:a:1"}},
		{2, "TARGET: \"tcp:80\" names no host", []string{"tcp:8080", "tcp:80"}},
		{2, "-max is 0", []string{"-max", "0", "tcp:8080", "tcp:a:80"}},
		{2, "not defined", []string{"-nothing", "tcp:8080", "tcp:a:80"}},
		{1, "address already in use", []string{"tcp:" + own, "tcp:a:80"}},
		{1, "listen on tcp:192.0.2.1:0", []string{"tcp:192.0.2.1:0", "tcp:a:80"}},
		{1, "listen on tcp:no-such-host.invalid:0", []string{"tcp:no-such-host.invalid:0", "tcp:a:80"}},
	} {
		p := start(t, verbena(t, nil, append([]string{"proxy"}, c.args...)...)...)
		assert.Equal(t, c.code, p.Code(), c.args)
		assert.Contains(t, p.Stderr.String(), c.want, c.args)
		assert.NotContains(t, p.Stderr.String(), "panic")
	}
	require.NoError(t, taken.Close())
	p := start(t, verbena(t, nil, "proxy", "tcp:"+own, "tcp:localhost:"+own)...)
	assert.Equal(t, 1, p.Code())
	assert.Contains(t, p.Stderr.String(), "the proxy itself")
}

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
)

var listeningAt = regexp.MustCompile(`listening on (?:tcp|rdma):(\S+), for `)

// startProxy starts verbena proxy, and returns its address.
func startProxy(t *testing.T, args ...string) (p *process, addr string) {
	t.Helper()
	return startProxyOn(t, nil, args...)
}

// startProxyOn starts verbena proxy behind words such as those that enter a network namespace.
func startProxyOn(t *testing.T, before []string, args ...string) (p *process, addr string) {
	t.Helper()
	p = start(t, verbena(before, append([]string{"proxy"}, args...)...)...)
	p.await("listening on ")
	return p, listeningAt.FindStringSubmatch(p.out.String())[1]
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

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

func TestProxyTCP(t *testing.T) {
	p, addr := startProxy(t, "-v", "tcp:0", "tcp:"+serveTCP(t, echo))
	assert.Contains(t, p.out.String(), "only programs on this machine can connect; tcp:*:0 listens on all")
	for _, size := range []int{0, 1, 3 << 20} {
		exchange(t, addr, size)
	}
	p.signal(os.Interrupt)
	assert.Equal(t, 130, p.code())
	out := p.out.String()
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

// startChain starts two proxies: from TCP to RDMA, and from there to a TCP server.
func startChain(t *testing.T, target string) (near, far *process, addr string) {
	t.Helper()
	far, at := startProxy(t, "rdma:0", "tcp:"+target)
	near, addr = startProxy(t, "tcp:0", "rdma:"+at)
	return near, far, addr
}

// TCP programs at both ends, RDMA between.
func TestProxyRDMA(t *testing.T) {
	near, far, addr := startChain(t, serveTCP(t, echo))
	assert.Contains(t, far.out.String(), "only programs on this machine can connect; rdma:*:0 listens on all")
	var clients sync.WaitGroup
	for _, size := range []int{0, 1, 3 << 20, 1000, 100_000} {
		clients.Go(func() { exchange(t, addr, size) })
	}
	clients.Wait()
	near.signal(os.Interrupt)
	assert.Equal(t, 130, near.code())
	far.signal(os.Interrupt)
	assert.Equal(t, 130, far.code())
	for _, p := range []*process{near, far} {
		assert.Contains(t, p.out.String(), "connections=5")
		assert.Contains(t, p.out.String(), "failed=0")
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
	near.interrupted()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err = net.SplitHostPort(free.Addr().String())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	for _, listen := range []string{"rdma:", "rdma:*:", "rdma:127.0.0.1:", "rdma:localhost:"} {
		for _, target := range []string{"rdma:127.0.0.1:", "rdma:localhost:"} {
			p := start(t, verbena(nil, "proxy", listen+port, target+port)...)
			assert.Equal(t, 1, p.code(), "%s %s: %s", listen, target, p.out.String())
			assert.Contains(t, p.out.String(), "is the address that the proxy itself listens on", "%s %s", listen, target)
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
	for _, p := range []*process{near, far} {
		p.interrupted()
		assert.Contains(t, p.out.String(), "failed=2")
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
	near.signal(os.Interrupt)
	assert.Equal(t, 130, near.code())
	close(read)
	assert.EqualValues(t, size, <-got)
	far.interrupted()
	assert.Contains(t, far.out.String(), "failed=0")
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
	p.await("connect to tcp:" + nobody)
	p.await("is its program running?")
	p.interrupted()
	assert.Contains(t, p.out.String(), "failed=2")

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
	p.await("read from the target")
	p.interrupted()
}

// Open connections have the grace period, which a second interrupt ends.
func TestProxyEnds(t *testing.T) {
	target := serveTCP(t, echo)
	open := func(args ...string) (*process, *net.TCPConn) {
		p, addr := startProxy(t, append(args, "tcp:0", "tcp:"+target)...)
		c := dialTCP(t, addr)
		hello(t, c)
		return p, c
	}

	p, c := open("-grace", patience.String())
	p.signal(syscall.SIGTERM)
	p.await("ending: open connections have")
	hello(t, c)
	require.NoError(t, c.CloseWrite())
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, 128+int(syscall.SIGTERM), p.code())
	assert.Contains(t, p.out.String(), "failed=0")

	p, c = open("-grace", "1ms")
	p.signal(os.Interrupt)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Equal(t, 130, p.code())
	assert.Contains(t, p.out.String(), "-grace was over")

	p, c = open("-grace", "1000h")
	p.signal(os.Interrupt)
	p.await("ending: open connections have")
	p.signal(os.Interrupt)
	assert.Equal(t, -1, p.code(), "killed by the signal")
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
	p.await("no data in either direction for 1ms, the limit of -idle")
	p.interrupted()
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
		p := start(t, verbena(nil, append([]string{"proxy"}, c.args...)...)...)
		assert.Equal(t, c.code, p.code(), c.args)
		assert.Contains(t, p.out.String(), c.want, c.args)
		assert.NotContains(t, p.out.String(), "panic")
	}
	require.NoError(t, taken.Close())
	p := start(t, verbena(nil, "proxy", "tcp:"+own, "tcp:localhost:"+own)...)
	assert.Equal(t, 1, p.code())
	assert.Contains(t, p.out.String(), "the proxy itself")
}

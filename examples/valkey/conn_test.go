package valkey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
)

// serverVariable of the environment has the address at which the program is a server, in place of a test.
const serverVariable = "VERBENA_VALKEY_SERVER"

func TestMain(m *testing.M) {
	if addr := os.Getenv(serverVariable); addr != "" {
		if err := serve(addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

var (
	_ net.Conn     = (*Conn)(nil)
	_ net.Listener = (*Listener)(nil)
)

// paths are ways of packets between two software devices of one machine.
var paths = map[string]soft.Config{
	"shared memory": {},
	"UDP":           {DisableLocal: true},
	"UDP with loss": {DisableLocal: true, Faults: soft.Faults{Loss: 0.01, Reorder: 0.02}},
}

// open makes a stack on a device of its own.
func open(t testing.TB, dev soft.Config, cfg Config) *Stack {
	t.Helper()
	d, err := soft.Open(dev)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	cfg.Device = d
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func listen(t testing.TB, s *Stack) *Listener {
	t.Helper()
	l, err := s.Listen("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// connect makes a connection of two stacks.
func connect(t testing.TB, client, server *Stack) (near, far net.Conn) {
	t.Helper()
	l := listen(t, server)
	near, err := client.DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	far, err = l.Accept()
	require.NoError(t, err)
	require.Equal(t, near.RemoteAddr(), l.Addr())
	require.Equal(t, near.LocalAddr(), far.RemoteAddr())
	return near, far
}

// A Conn is what programs expect of a net.Conn.
func TestNet(t *testing.T) {
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			client, server := open(t, dev, Config{}), open(t, dev, Config{})
			nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
				a, b = connect(t, client, server)
				return a, b, func() { _, _ = a.Close(), b.Close() }, nil
			})
		})
	}
}

// Data arrives as it was written, both ways at once, in pieces of all sizes, also where they and the
// buffers of both ends do not fit.
func TestTransfer(t *testing.T) {
	for name, dev := range paths {
		for size, cfg := range map[string]Config{
			"default buffers": {},
			"small buffers":   {ReceiveBuffer: 10_007, SendBuffer: 4_099},
			"tiny buffers":    {ReceiveBuffer: 3, SendBuffer: 2},
		} {
			t.Run(name+"/"+size, func(t *testing.T) {
				t.Parallel()
				total := 5 << 20
				if cfg.ReceiveBuffer > 0 {
					total = cfg.ReceiveBuffer * 100
				}
				near, far := connect(t, open(t, dev, cfg), open(t, dev, Config{}))
				var all sync.WaitGroup
				for seed, ends := range [][2]net.Conn{{near, far}, {far, near}} {
					data := make([]byte, total)
					random := rand.NewChaCha8([32]byte{byte(seed)})
					_, _ = random.Read(data)
					all.Go(func() {
						r := rand.New(rand.NewPCG(uint64(seed), 1))
						for rest := data; len(rest) > 0; {
							n := min(len(rest), 1+r.IntN(1<<r.IntN(20)))
							m, err := ends[0].Write(rest[:n])
							if !assert.NoError(t, err) || !assert.Equal(t, n, m) {
								return
							}
							rest = rest[n:]
						}
					})
					all.Go(func() {
						got := make([]byte, total)
						_, err := io.ReadFull(ends[1], got)
						assert.NoError(t, err)
						assert.True(t, bytes.Equal(data, got))
					})
				}
				all.Wait()
			})
		}
	}
}

// What was written before Close arrives before io.EOF, and then nothing can be written.
func TestClose(t *testing.T) {
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := connect(t, open(t, dev, Config{SendBuffer: 1000}), open(t, dev, Config{}))
			sent := make(chan struct{})
			data := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
			go func() {
				defer close(sent)
				_, err := near.Write(data[:len(data)-500])
				assert.NoError(t, err)
				for _, b := range data[len(data)-500:] { // more writes than the device takes at a time
					_, err := near.Write([]byte{b})
					assert.NoError(t, err)
				}
				assert.NoError(t, near.Close())
			}()
			got, err := io.ReadAll(far)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
			_, err = far.Write([]byte("x"))
			require.ErrorIs(t, err, syscall.EPIPE)
			<-sent
			for _, err := range []error{near.Close(), near.SetDeadline(time.Time{}), second(near.Read(nil)), second(near.Write([]byte("x")))} {
				require.ErrorIs(t, err, net.ErrClosed)
			}
			require.NoError(t, far.Close())
		})
	}
}

func second(_ int, err error) error { return err }

// Close wakes calls that wait.
func TestCloseWakes(t *testing.T) {
	near, _ := connect(t, open(t, soft.Config{}, Config{}), open(t, soft.Config{}, Config{}))
	ended := make(chan error)
	go func() { ended <- second(near.Read(make([]byte, 1))) }()
	go func() { ended <- second(near.Write(make([]byte, 8<<20))) }()
	require.NoError(t, near.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	require.ErrorIs(t, <-ended, net.ErrClosed)
}

// Deadlines end calls that wait, and those that come later. Without them the connection goes on as if
// nothing had been.
func TestDeadlines(t *testing.T) {
	near, far := connect(t, open(t, soft.Config{}, Config{}), open(t, soft.Config{}, Config{}))
	require.NoError(t, near.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	for range 2 {
		_, err := near.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		timeout, ok := errors.AsType[net.Error](err)
		require.True(t, ok && timeout.Timeout())
	}
	require.NoError(t, near.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
	data := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	n, err := near.Write(data) // the peer reads nothing
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.LessOrEqual(t, n, 1<<20)

	require.NoError(t, near.SetDeadline(time.Time{}))
	go func() { assert.NoError(t, second(near.Write(data[n:]))) }()
	got := make([]byte, len(data))
	_, err = io.ReadFull(far, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))

	// A deadline in the past ends a call that waits.
	ended := make(chan error)
	go func() { ended <- second(near.Read(make([]byte, 1))) }()
	require.NoError(t, near.SetReadDeadline(time.Unix(1, 0)))
	require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)
}

// Where nobody listens, Dial fails as over TCP; and it ends with its context.
func TestDialFails(t *testing.T) {
	s := open(t, soft.Config{}, Config{})
	l := listen(t, s)
	_, err := s.Listen(l.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Close(), net.ErrClosed)
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = s.DialContext(t.Context(), "tcp", l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.DialContext(ctx, "tcp", "127.0.0.1:1")
	require.ErrorIs(t, err, context.Canceled)
	_, err = New(Config{})
	require.ErrorIs(t, err, rdma.ErrInvalid)
	_, err = New(Config{Device: s.cfg.Device, SendBuffer: -1})
	require.ErrorIs(t, err, rdma.ErrRange)
}

// Requests beyond Config.Backlog are rejected, and those beyond MaxConnections; there is room again when
// connections have been accepted and closed. A listener that is closed closes those that wait.
func TestLimits(t *testing.T) {
	server := open(t, soft.Config{}, Config{Backlog: 2, MaxConnections: 3})
	client := open(t, soft.Config{}, Config{})
	l := listen(t, server)
	dial := func() (net.Conn, error) { return client.DialContext(t.Context(), "tcp", l.Addr().String()) }
	var near [3]net.Conn
	var err error
	for i := range 2 {
		near[i], err = dial()
		require.NoError(t, err)
	}
	_, err = dial()
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = l.Accept()
	require.NoError(t, err)
	near[2], err = dial()
	require.NoError(t, err)
	far, err := l.Accept()
	require.NoError(t, err)
	_, err = dial()
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, uint64(2), server.Counters().Refused)
	require.NoError(t, far.Close())
	_, err = near[1].Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	dialUntilFree(t, client, l)
	require.NoError(t, l.Close())
	_, err = near[2].Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// dialUntilFree dials a listener until it has a place.
func dialUntilFree(t *testing.T, s *Stack, l *Listener) {
	for {
		c, err := s.DialContext(t.Context(), "tcp", l.Addr().String())
		if err == nil {
			require.NoError(t, c.Close())
			return
		}
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
}

// A server that restarts can be dialled again, and the old connections have ended.
func TestRestart(t *testing.T) {
	client, addr := open(t, soft.Config{}, Config{}), "127.0.0.1:0"
	for range 3 {
		dev, err := soft.Open(soft.Config{})
		require.NoError(t, err)
		server, err := New(Config{Device: dev})
		require.NoError(t, err)
		l, err := server.Listen(addr)
		require.NoError(t, err)
		addr = l.Addr().String()
		near, err := client.DialContext(t.Context(), "tcp", addr)
		require.NoError(t, err)
		_, err = near.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, server.Close())
		require.NoError(t, dev.Close())
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, near.Close())
	}
}

// A dial that is given up at any time leaves nothing behind.
func TestDialGivenUp(t *testing.T) {
	l := listen(t, open(t, soft.Config{}, Config{}))
	client := open(t, soft.Config{}, Config{})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	for i := range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		if c, err := client.DialContext(ctx, "tcp", l.Addr().String()); err == nil {
			require.NoError(t, c.Close())
		} else {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		cancel()
	}
	for len(client.all(false)) > 0 { // they end by themselves
		time.Sleep(time.Millisecond)
	}
}

// Peers that end in the middle of the handshake take no place for good.
func TestHandshakeEnds(t *testing.T) {
	l := listen(t, open(t, soft.Config{}, Config{Backlog: 1}))
	p := newPeer(t)
	for range 3 {
		_, err := await.Dial(t.Context(), p.rdma, l.Addr().String(), rdma.DialConfig{
			Once: true, OnResponse: func(conn *rdma.Connection) { _ = conn.Close() },
		})
		require.Error(t, err)
	}
	dialUntilFree(t, open(t, soft.Config{}, Config{}), l)
}

// Many connections of a Stack exchange data at the same time, and go and come.
func TestMany(t *testing.T) {
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen(t, open(t, dev, Config{}))
			client := open(t, dev, Config{})
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					c, err := l.Accept()
					if assert.NoError(t, err) {
						_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
						assert.NoError(t, c.Close())
					}
				})
				all.Go(func() {
					c, err := client.DialContext(t.Context(), "tcp", l.Addr().String())
					if !assert.NoError(t, err) {
						return
					}
					for n := range 50 {
						sent, got := bytes.Repeat([]byte{byte(i + n)}, n*100), make([]byte, n*100)
						_, err = c.Write(sent)
						assert.NoError(t, err)
						_, err = io.ReadFull(c, got)
						assert.NoError(t, err)
						assert.True(t, bytes.Equal(sent, got))
					}
					assert.NoError(t, c.Close())
				})
			}
			all.Wait()
		})
	}
}

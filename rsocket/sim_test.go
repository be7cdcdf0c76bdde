package rsocket_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft/sim"
	"github.com/verbena-rdma/verbena/verbs"
)

// stream is one direction of a session. Its bytes follow from its number and their positions.
type stream struct {
	number uint64
	// The other end reads these too.
	offered atomic.Int64 // bytes given to Write, those of a call under way included
	written atomic.Int64 // bytes that Write has accepted
	read    int          // bytes that were read, and are right
	ended   atomic.Bool  // the writer has ended it by CloseWrite or Close, and calls Write no more
	failed  error        // why an end gave up
}

// fill puts the bytes from a position on into p.
func (x *stream) fill(p []byte, at int) {
	for i := range p {
		n := uint64(at + i)
		p[i] = byte(x.number*31 + n*7 + n>>8)
	}
}

// session is a connection, from both ends.
type session struct {
	to, fro stream
	aborts  bool // an end closes the connection before it has read everything
	server  bool // the server's end has begun
	over    [2]bool
}

// plan is what one end of a session does.
type plan struct {
	total   int // bytes to write
	largest int // bytes of one call
	abort   int // close after so many bytes have been read; negative: do not
	random  *rand.Rand
}

func newPlan(r *rand.Rand) plan {
	p := plan{total: r.IntN(1 << r.IntN(19)), abort: -1, random: rand.New(rand.NewPCG(r.Uint64(), 1))}
	p.largest = p.total/40 + 1 + r.IntN(1<<r.IntN(18))
	if r.IntN(8) == 0 {
		p.abort = r.IntN(1 << 16)
	}
	return p
}

// world is a simulation with programs over rsockets.
type world struct {
	*sim.Sim
	sessions []*session
}

// later draws a time soon.
func later(h *sim.Host, r *rand.Rand) time.Time {
	return h.Now().Add(time.Duration(r.IntN(int(200 * time.Millisecond))))
}

// write writes one direction.
func (w *world) write(h *sim.Host, c *rsocket.Conn, x *stream, p plan, r *rand.Rand) {
	buf := make([]byte, p.largest)
	for int(x.written.Load()) < p.total {
		written := int(x.written.Load())
		size := min(1+r.IntN(p.largest), p.total-written)
		x.fill(buf[:size], written)
		x.offered.Store(int64(written + size))
		if r.IntN(8) == 0 {
			_ = c.SetWriteDeadline(later(h, r))
		}
		n, err := c.Write(buf[:size])
		require.LessOrEqual(w, n, size)
		require.True(w, n == size || err != nil, "%d of %d bytes were written, without an error", n, size)
		x.written.Add(int64(n))
		x.offered.Store(int64(written + n))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = c.SetWriteDeadline(time.Time{})
		case err != nil:
			x.failed = fmt.Errorf("write %d of %d: %w", written+n, p.total, err)
			return
		}
		if r.IntN(4) == 0 {
			h.Sleep(time.Duration(r.IntN(int(20 * time.Millisecond))))
		}
	}
	x.ended.Store(true)
	if err := c.CloseWrite(); err != nil {
		x.failed = err
	}
}

// read reads one direction, and checks it.
func (w *world) read(h *sim.Host, c *rsocket.Conn, x *stream, p plan, r *rand.Rand) {
	buf, want := make([]byte, 1<<(10+r.IntN(7))), make([]byte, 1<<16)
	for p.abort < 0 || x.read < p.abort {
		if r.IntN(8) == 0 {
			_ = c.SetReadDeadline(later(h, r))
		}
		n, err := c.Read(buf[:1+r.IntN(len(buf))])
		x.fill(want[:n], x.read)
		require.Equal(w, want[:n], buf[:n], "stream %d from byte %d on", x.number, x.read)
		x.read += n
		require.LessOrEqual(w, x.read, int(x.offered.Load()), "stream %d", x.number)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = c.SetReadDeadline(time.Time{})
		case err == io.EOF:
			require.True(w, x.ended.Load(), "stream %d", x.number)
			require.Equal(w, int(x.written.Load()), x.read, "stream %d has ended", x.number)
			return
		case err != nil:
			x.failed = fmt.Errorf("read %d: %w", x.read, err)
			return
		}
		if r.IntN(4) == 0 {
			h.Sleep(time.Duration(r.IntN(int(20 * time.Millisecond))))
		}
	}
}

// exchange is one end of a session: it writes out, and reads in.
func (w *world) exchange(h *sim.Host, c *rsocket.Conn, s *session, out, in *stream, p plan) {
	var writer sync.WaitGroup
	s.aborts = s.aborts || p.abort >= 0
	forWriter := rand.New(rand.NewPCG(p.random.Uint64(), 2))
	host.Go(goHost{h}, &writer, func() { w.write(h, c, out, p, forWriter) })
	w.read(h, c, in, p, p.random)
	if p.abort < 0 {
		writer.Wait()
	}
	out.ended.Store(true)
	require.NoError(w, ignoreClosed(c.Close()))
	writer.Wait()
}

// goHost lets host.Go start goroutines of a simulated host.
type goHost struct{ *sim.Host }

func (goHost) AfterFunc(time.Duration, func()) host.Timer { panic("not used") }
func (goHost) Random([]byte)                              { panic("not used") }
func (goHost) Until(time.Time) time.Duration              { panic("not used") }
func (goHost) Scheduler() host.Scheduler                  { panic("not used") }

// ignoreClosed leaves out the error of a connection that Stack.Close has closed.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

var simConfig = rsocket.Config{MaxConnections: 64, ReceiveBuffer: 64 << 10, SendBuffer: 64 << 10, KeepAlive: 2 * time.Second, SilenceTimeout: 4 * time.Second}

// serve is the program of a server.
func (w *world) serve(h *sim.Host) func(ctx context.Context, dev verbs.Device) error {
	return func(ctx context.Context, dev verbs.Device) error {
		cfg := simConfig
		cfg.Device = dev
		stack, err := rsocket.New(cfg)
		if err != nil {
			return err
		}
		l, err := stack.Listen(":7471")
		if err != nil {
			return errors.Join(err, stack.Close())
		}
		var calls sync.WaitGroup
		var failure error
		host.Go(goHost{h}, &calls, func() {
			for {
				c, err := l.Accept()
				if err != nil {
					failure = err
					return
				}
				p := newPlan(h.Rand())
				host.Go(goHost{h}, &calls, func() { w.answer(h, c.(*rsocket.Conn), p) })
			}
		})
		<-ctx.Done()
		err = stack.Close()
		calls.Wait()
		if !errors.Is(failure, net.ErrClosed) {
			err = errors.Join(err, failure)
		}
		return err
	}
}

// answer is the server's end of a session, whose number comes first.
func (w *world) answer(h *sim.Host, c *rsocket.Conn, p plan) {
	var first [8]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		_ = c.Close()
		return
	}
	s := w.sessions[binary.BigEndian.Uint64(first[:])]
	s.server = true
	w.exchange(h, c, s, &s.fro, &s.to, p)
	s.over[1] = true
}

// dial is the program of a client.
func (w *world) dial(h *sim.Host, servers []*sim.Host) func(ctx context.Context, dev verbs.Device) error {
	return func(ctx context.Context, dev verbs.Device) error {
		cfg := simConfig
		cfg.Device = dev
		stack, err := rsocket.New(cfg)
		if err != nil {
			return err
		}
		var calls sync.WaitGroup
		for range 2 {
			host.Go(goHost{h}, &calls, func() {
				for ctx.Err() == nil {
					w.session(ctx, h, stack, servers[h.Rand().IntN(len(servers))])
					h.Sleep(time.Duration(h.Rand().IntN(int(300 * time.Millisecond))))
				}
			})
		}
		<-ctx.Done()
		err = stack.Close()
		calls.Wait()
		return err
	}
}

// session is the client's end of a session.
func (w *world) session(ctx context.Context, h *sim.Host, stack *rsocket.Stack, server *sim.Host) {
	number := len(w.sessions)
	s := &session{to: stream{number: uint64(2 * number)}, fro: stream{number: uint64(2*number + 1)}}
	w.sessions = append(w.sessions, s)
	p := newPlan(h.Rand())
	limit := 10 * time.Second
	if h.Rand().IntN(8) == 0 {
		limit = time.Duration(1 + h.Rand().IntN(int(10*time.Millisecond))) // perhaps too short
	}
	ctx, cancel := host.WithTimeout(ctx, host.Of(stack.Device()), limit)
	c, err := stack.Dial(ctx, net.JoinHostPort(server.Addr().String(), "7471"))
	cancel()
	switch {
	case err == nil:
		if _, err = c.Write(binary.BigEndian.AppendUint64(nil, uint64(number))); err == nil {
			w.exchange(h, c, s, &s.to, &s.fro, p)
		} else {
			_ = c.Close()
		}
	case limit < time.Second && errors.Is(err, os.ErrDeadlineExceeded):
		s.aborts, s.over[1] = true, true
		err = nil
	}
	s.to.failed = errors.Join(s.to.failed, err)
	s.over[0] = true
}

// Clients and servers crash, stand still and are cut off. Whatever is read is what was written, and
// all of it if the stream ends. In the end all connections work.
func TestNemesis(t *testing.T) {
	sim.Check(t, 4, func(s *sim.Sim) {
		w := &world{Sim: s}
		s.SetDefaultLink(sim.LinkConfig{Latency: time.Millisecond, Loss: 0.001})
		servers, clients := s.Hosts("server", 2), s.Hosts("client", 3)
		for _, h := range servers {
			h.Run(w.serve(h))
		}
		for _, h := range clients {
			h.Run(w.dial(h, servers))
		}
		chaos := s.Nemesis(sim.Chaos{MaxDown: 3, Interval: 500 * time.Millisecond, Longest: 5 * time.Second, Until: 10 * time.Second})
		s.RunUntil(chaos.Done, time.Minute)
		s.Run(10 * time.Second)
		calm := len(w.sessions)
		s.RunUntil(func() bool { return len(w.sessions) >= calm+40 }, time.Minute)
		last := w.sessions[calm : calm+30]
		s.RunUntil(func() bool {
			return !slices.ContainsFunc(last, func(x *session) bool {
				if !x.aborts {
					require.NoError(s, errors.Join(x.to.failed, x.fro.failed))
				}
				return !x.over[0] || !x.over[1]
			})
		}, time.Minute)
		whole := 0
		for _, x := range last {
			if x.aborts {
				continue
			}
			require.Equal(s, []int{int(x.to.written.Load()), int(x.fro.written.Load())}, []int{x.to.read, x.fro.read})
			whole++
		}
		require.Positive(s, whole)
	})
}

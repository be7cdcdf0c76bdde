package rsocket_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/soak"
)

// Connections over real paths that lose, duplicate and reorder packets are read, written, closed and
// interrupted from many goroutines. What is read is a prefix of what was written, and all of it where
// both ends lived.
func TestSoakStress(t *testing.T) {
	faults := soft.Faults{Loss: 0.01, Duplicate: 0.02, Reorder: 0.05, Corrupt: 0.002}
	for name, c := range map[string]struct {
		device   soft.Config
		changing bool // connections move between shared memory and UDP
	}{
		"UDP":           {device: soft.Config{DisableLocal: true, Faults: faults}},
		"shared memory": {},
		"both":          {changing: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := rsocket.Config{
				MaxConnections: 64, ReceiveMemory: 64*8<<10 + 256<<10, ReceiveBuffer: 128 << 10, SendBuffer: 64 << 10,
				Backlog: 64, Linger: time.Hour, // a slow machine sends everything, too
			}
			w := &stress{T: t, client: open(t, c.device, cfg), server: open(t, c.device, cfg)}
			end := time.Now().Add(soak.Duration(t, 2*time.Second, 10*time.Minute))
			if c.changing {
				w.change(end, faults)
			}
			w.run(end)
		})
	}
}

// stress has the two stacks and what happened on their connections.
type stress struct {
	*testing.T
	client, server *rsocket.Stack
	work           sync.WaitGroup

	mu       sync.Mutex
	sessions []*stressed
}

// stressed is a connection, from both ends.
type stressed struct {
	to, fro        stream
	client, server end
}

// end is what one end of a connection did, or what befell it.
type end struct {
	begun atomic.Bool
	left  atomic.Bool // it has closed the connection, perhaps before it read everything
	reset atomic.Bool // it has reset the connection
	eof   bool        // it has read the end of the data
}

// pause sleeps for a random time.
func pause(r *rand.Rand, most time.Duration) { time.Sleep(time.Duration(r.Int64N(int64(most)))) }

// change turns the faults of both devices on and off.
func (w *stress) change(until time.Time, f soft.Faults) {
	w.work.Go(func() {
		r := rand.New(rand.NewPCG(rand.Uint64(), 1))
		for time.Now().Before(until) {
			for _, s := range []*rsocket.Stack{w.client, w.server} {
				now := soft.Faults{}
				if r.IntN(2) == 0 {
					now = f
				}
				assert.NoError(w, s.Device().(*soft.Device).SetFaults(now))
			}
			pause(r, 100*time.Millisecond)
		}
		for _, s := range []*rsocket.Stack{w.client, w.server} {
			assert.NoError(w, s.Device().(*soft.Device).SetFaults(soft.Faults{}))
		}
	})
}

func (w *stress) run(until time.Time) {
	l := listen(w, w.server)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.AcceptConn()
			if err != nil {
				assert.ErrorIs(w, err, net.ErrClosed)
				return
			}
			accepting.Go(func() { w.answer(c) })
		}
	})
	for range 6 {
		w.work.Go(func() {
			r := rand.New(rand.NewPCG(rand.Uint64(), 2))
			for time.Now().Before(until) {
				w.dial(l.Addr().String(), r)
			}
		})
	}
	w.work.Wait()
	assert.Eventually(w, func() bool { return w.client.Counters().ReceiveMemory+w.server.Counters().ReceiveMemory == 0 },
		5*time.Minute, time.Millisecond, "memory of connections that have ended")
	require.NoError(w, l.Close())
	accepting.Wait()
	w.check()
}

// dial is the client's end of a connection. Some dials have too little time.
func (w *stress) dial(addr string, r *rand.Rand) {
	ctx, cancel := context.Background(), func() {}
	if r.IntN(8) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(int(20*time.Millisecond))))
	}
	defer cancel()
	c, err := w.client.Dial(ctx, addr)
	if err != nil {
		// On a machine that is very slow, the server may not say in time which device has the address.
		if late := errors.Is(err, os.ErrDeadlineExceeded) && ctx != context.Background(); !late {
			assert.ErrorIs(w, err, syscall.ETIMEDOUT)
		}
		return
	}
	s := &stressed{}
	w.mu.Lock()
	number := uint64(len(w.sessions))
	s.to.number, s.fro.number = 2*number, 2*number+1
	w.sessions = append(w.sessions, s)
	w.mu.Unlock()
	_, err = c.Write(binary.BigEndian.AppendUint64(nil, number))
	assert.NoError(w, err)
	w.exchange(c, &s.client, &s.to, &s.fro, r)
}

// answer is the server's end.
func (w *stress) answer(c *rsocket.Conn) {
	var number [8]byte
	if _, err := io.ReadFull(c, number[:]); err != nil { // the dial had too little time, or the client was quick to reset
		assert.NoError(w, c.Close())
		return
	}
	w.mu.Lock()
	s := w.sessions[binary.BigEndian.Uint64(number[:])]
	w.mu.Unlock()
	w.exchange(c, &s.server, &s.fro, &s.to, rand.New(rand.NewPCG(rand.Uint64(), 3)))
}

// exchange reads and writes at the same time. Meanwhile others move the deadlines, ask for addresses,
// and perhaps end the connection.
func (w *stress) exchange(c *rsocket.Conn, e *end, out, in *stream, r *rand.Rand) {
	e.begun.Store(true)
	var data, others sync.WaitGroup
	done := make(chan struct{})
	random := func() *rand.Rand { return rand.New(rand.NewPCG(r.Uint64(), 4)) }
	forWriter, forReader, forDeadlines, forEnd := random(), random(), random(), random()
	data.Go(func() { w.write(c, out, forWriter) })
	data.Go(func() { w.read(c, e, in, forReader) })
	others.Go(func() { w.disturb(c, done, forDeadlines) })
	others.Go(func() { w.interrupt(c, e, done, forEnd) })
	data.Wait()
	close(done)
	others.Wait()
	_ = c.Close() // it may be closed
	c.Wait()
}

// write writes until the end of the data, or of the connection.
func (w *stress) write(c *rsocket.Conn, x *stream, r *rand.Rand) {
	total, largest := r.IntN(1<<(1+r.IntN(18))), 1+r.IntN(1<<(1+r.IntN(17)))
	buf := make([]byte, largest)
	for written := 0; written < total; {
		size := min(1+r.IntN(largest), total-written)
		x.fill(buf[:size], written)
		x.offered.Store(int64(written + size))
		n, err := c.Write(buf[:size])
		if !assert.True(w, n == size || err != nil && n < size, "%d of %d bytes were written: %v", n, size, err) {
			return
		}
		written += n
		x.written.Store(int64(written))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			pause(r, time.Millisecond)
		case err != nil:
			x.failed = err
			return
		}
	}
	if err := c.CloseWrite(); err != nil {
		x.failed = err
	}
}

// read reads until the end of the data, or of the connection, and checks it.
func (w *stress) read(c *rsocket.Conn, e *end, x *stream, r *rand.Rand) {
	buf, want := make([]byte, 1<<(4+r.IntN(13))), make([]byte, 1<<16)
	for {
		n, err := c.Read(buf[:1+r.IntN(len(buf))])
		x.fill(want[:n], x.read)
		x.read += n
		if !assert.Equal(w, want[:n], buf[:n], "stream %d up to byte %d", x.number, x.read) ||
			!assert.LessOrEqual(w, x.read, int(x.offered.Load()), "stream %d", x.number) {
			e.left.Store(true)
			_ = c.Close()
			return
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			pause(r, time.Millisecond)
		case err != nil:
			e.eof = err == io.EOF
			return
		}
	}
}

// disturb moves the deadlines, and calls what needs no turn.
func (w *stress) disturb(c *rsocket.Conn, done chan struct{}, r *rand.Rand) {
	for {
		at := time.Time{}
		if r.IntN(2) == 0 {
			at = time.Now().Add(time.Duration(r.IntN(int(20*time.Millisecond))) - time.Millisecond)
		}
		err := []func(time.Time) error{c.SetDeadline, c.SetReadDeadline, c.SetWriteDeadline}[r.IntN(3)](at)
		if err != nil {
			assert.ErrorIs(w, err, net.ErrClosed)
		}
		_, _ = c.Write(nil)
		_, _ = c.Read(nil)
		assert.NotEqual(w, c.LocalAddr().String(), c.RemoteAddr().String())
		_ = c.Counters()
		select {
		case <-done:
			return
		case <-time.After(time.Duration(r.IntN(int(5 * time.Millisecond)))):
		}
	}
}

// interrupt ends the data, closes the connection or resets it, in some cases.
func (w *stress) interrupt(c *rsocket.Conn, e *end, done chan struct{}, r *rand.Rand) {
	what := r.IntN(8)
	if what > 3 {
		return
	}
	select {
	case <-done:
		return
	case <-time.After(time.Duration(r.IntN(1 << (10 + r.IntN(15))))):
	}
	switch what {
	case 0, 1:
		_ = c.CloseWrite()
		return
	case 2:
		e.reset.Store(true)
		_ = c.SetLinger(0)
	}
	e.left.Store(true)
	_ = c.Close()
}

// check checks what arrived where nothing kept it from that.
func (w *stress) check() {
	whole, closed := 0, 0
	for _, s := range w.sessions {
		for _, d := range []struct {
			x      *stream
			wr, rd *end
		}{{&s.to, &s.client, &s.server}, {&s.fro, &s.server, &s.client}} {
			if d.wr.reset.Load() || d.rd.left.Load() || d.rd == &s.client && !d.wr.begun.Load() {
				continue
			}
			assert.True(w, d.rd.eof, "stream %d has no end", d.x.number)
			assert.EqualValues(w, d.x.written.Load(), d.x.read, "stream %d", d.x.number)
			if whole++; d.wr.left.Load() {
				closed++
			} else if d.x.failed != nil {
				assert.ErrorIs(w, d.x.failed, syscall.EPIPE, "stream %d", d.x.number) // it was ended by CloseWrite
			}
		}
	}
	for _, c := range []rsocket.Counters{w.client.Counters(), w.server.Counters()} {
		assert.Equal(w, [2]uint64{}, [2]uint64{c.ProtocolErrors, c.Refused})
	}
	w.Logf("%d connections, %d whole streams, %d of them up to Close", len(w.sessions), whole, closed)
	assert.Positive(w, whole)
}

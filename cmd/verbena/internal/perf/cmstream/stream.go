// Package cmstream implements byte streams over RDMA connections that the connection manager
// makes. The ends of verbena perf use them for control messages when there is no TCP between
// them.
package cmstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	messageSize = 4096    // bytes of a message
	receives    = 64      // posted
	maxQueue    = 8 << 20 // bytes that wait for Read
	maxConns    = 4       // one client is served; the others are refused
)

// Endpoint dials and accepts connections, on an engine and a goroutine of its own.
type Endpoint struct {
	dev    verbs.Device
	engine *pe.Engine
	rdma   *rdma.Connections
	tasks  *rdma.Pool
	ctx    context.Context // ends when the engine no longer runs
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
	ended  chan error
}

// Open makes an endpoint on a device.
func Open(dev verbs.Device, port int, gid *int) (s *Endpoint, err error) {
	s = &Endpoint{dev: dev, engine: pe.New(pe.Config{}), ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.engine.Close())
		}
	}()
	if s.rdma, err = rdma.New(dev, rdma.Config{Name: "perf control", Engine: s.engine, Path: rdma.Path{Port: port, GIDIndex: gid}, MaxConnections: maxConns}); err != nil {
		return nil, err
	}
	if s.tasks, err = s.rdma.SharedPool(); err != nil {
		return nil, err
	}
	if err = s.rdma.Receive(receives, messageSize, received); err != nil {
		return nil, err
	}
	s.rdma.OnConnection(connectionChanged)
	if err = s.rdma.Start(); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	run, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		err := s.engine.Run(run)
		s.cancel(cmp.Or(err, io.ErrClosedPipe))
		s.ended <- err
	}()
	return s, nil
}

// Close ends all streams.
func (s *Endpoint) Close() error {
	s.stop()
	err := <-s.ended
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, s.engine.Close())
}

// Listen calls accept for each stream that a client opens, on the engine's goroutine, and
// returns the address that it listens on.
func (s *Endpoint) Listen(ctx context.Context, addr string, accept func(*Stream, netip.AddrPort)) (at netip.AddrPort, err error) {
	err = await.Func(ctx, s.engine, func() error {
		l, err := s.rdma.Listen(addr, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
			conn, err := q.Accept(rdma.AcceptConfig{})
			if err != nil {
				_ = q.Reject([]byte("verbena perf is serving other clients")) // fails if the client has given up
				return
			}
			stream, err := s.newStream(conn)
			if err != nil {
				_ = conn.Close()
				return
			}
			accept(stream, conn.PeerAddr())
		}})
		if err == nil {
			at = l.Addr()
		}
		return err
	})
	return at, err
}

// Dial opens a stream to an endpoint that listens.
func (s *Endpoint) Dial(ctx context.Context, addr string, cfg rdma.DialConfig) (stream *Stream, err error) {
	err = await.Func(ctx, s.engine, func() error {
		conn, err := s.rdma.Dial(addr, cfg)
		if err != nil {
			return err
		}
		stream, err = s.newStream(conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := stream.waitReady(ctx); err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return stream, nil
}

// Stream is a connection. Write belongs to one goroutine at a time.
type Stream struct {
	endpoint *Endpoint
	conn     *rdma.Connection
	out      *mmap.Map // the send buffer
	ready    chan struct{}
	done     chan struct{}
	released chan struct{} // the device has released the connection
	once     sync.Once
	err      error // why it ended, once done is closed

	mu           sync.Mutex
	receivedMore sync.Cond
	received     []byte // received, not read yet
	flooded      bool   // the peer sent more than maxQueue
	hasEnded     bool
	deadline     time.Time
}

func (s *Endpoint) newStream(conn *rdma.Connection) (*Stream, error) {
	t := &Stream{endpoint: s, conn: conn, ready: make(chan struct{}), done: make(chan struct{}), released: make(chan struct{})}
	t.receivedMore.L = &t.mu
	var err error
	if t.out, err = mmap.Alloc(s.dev, messageSize, mmap.LocalReadOnly); err != nil {
		return nil, err
	}
	conn.SetUserData(t)
	return t, nil
}

func connectionChanged(conn *rdma.Connection, state rdma.ConnectionState, err error) {
	t, ok := conn.UserData().(*Stream)
	switch state {
	case rdma.Ready:
		if ok {
			close(t.ready)
		}
	case rdma.Failed:
		if ok {
			t.end(err)
		}
		_ = conn.Close()
	case rdma.Closed:
		if ok {
			t.end(cmp.Or(err, io.EOF))
			close(t.released)
		}
	}
}

var errFlood = errors.New("the other end sends more data than allowed")

func received(m *rdma.Message) {
	t, ok := m.Connection().UserData().(*Stream)
	if !ok {
		return
	}
	t.mu.Lock()
	first := !t.flooded
	t.flooded = t.flooded || len(t.received)+m.Length() > maxQueue // stays true, even if Read makes room again
	flooded := t.flooded
	if !flooded {
		t.received = append(t.received, m.Bytes()...)
		t.receivedMore.Broadcast()
	}
	t.mu.Unlock()
	if flooded && first {
		t.end(errFlood)
		_ = t.conn.Close()
	}
}

// end ends the stream. Data that has arrived can still be read.
func (t *Stream) end(err error) {
	t.once.Do(func() {
		t.err = err
		if errors.Is(err, rdma.ErrPeerClosed) {
			t.err = io.EOF
		}
		close(t.done)
		t.mu.Lock()
		t.hasEnded = true
		t.receivedMore.Broadcast()
		t.mu.Unlock()
	})
}

func (t *Stream) waitReady(ctx context.Context) error {
	select {
	case <-t.ready:
		return nil
	case <-t.done:
		return t.err
	case <-t.endpoint.ctx.Done():
		return context.Cause(t.endpoint.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Read implements io.Reader.
func (t *Stream) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.received) == 0 && !t.hasEnded {
		t.receivedMore.Wait()
	}
	if len(t.received) == 0 {
		return 0, t.err
	}
	n := copy(p, t.received)
	if t.received = t.received[n:]; len(t.received) == 0 {
		t.received = nil
	}
	return n, nil
}

// SetWriteDeadline sets the deadline of the following writes.
func (t *Stream) SetWriteDeadline(at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deadline = at
	return nil
}

// Write implements io.Writer. It returns when the peer's device has the data.
func (t *Stream) Write(p []byte) (n int, err error) {
	t.mu.Lock()
	deadline := t.deadline
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(t.endpoint.ctx)
	if !deadline.IsZero() {
		ctx, cancel = context.WithDeadline(t.endpoint.ctx, deadline)
	}
	defer cancel()
	if err := t.waitReady(ctx); err != nil { // an accepted connection is not Ready at once
		return 0, err
	}
	for len(p) > 0 {
		k := min(len(p), messageSize)
		if err := t.send(ctx, p[:k]); err != nil {
			return n, err
		}
		p, n = p[k:], n+k
	}
	return n, nil
}

// send sends a message, and waits for its completion.
func (t *Stream) send(ctx context.Context, p []byte) error {
	done := make(chan error, 1)
	err := t.endpoint.engine.Do(func() {
		select {
		case <-t.done: // Close may have freed the memory
			done <- t.err
			return
		default:
		}
		copy(t.out.Bytes(), p)
		task, err := t.endpoint.tasks.Send(t.conn, bufinv.Source(t.out, 0, len(p)))
		err = pe.SubmitOrFree(task, err, func(task *rdma.Task, err error) {
			_ = task.Free()
			done <- err
		})
		if err != nil {
			done <- err
		}
	})
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		err := fmt.Errorf("the peer did not receive a message: %w", context.Cause(ctx))
		t.end(err) // the task still uses the send buffer
		return err
	}
}

// Close ends the connection, after the data that was written.
func (t *Stream) Close() error {
	err := t.endpoint.engine.Do(func() {
		t.end(io.ErrClosedPipe)
		_ = t.conn.Close()
	})
	if err != nil {
		t.end(err)
		return nil // the endpoint has closed, and the connection with it
	}
	select {
	case <-t.released:
	case <-t.endpoint.ctx.Done():
	}
	return t.out.Close()
}

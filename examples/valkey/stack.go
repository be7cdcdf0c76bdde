// Package valkey is net.Conn and net.Listener over RDMA, in the protocol of Valkey
// (https://valkey.io/topics/RDMA): for clients of Valkey's server, and for servers of its clients.
//
//	dev, err := device.Open("soft-lo")
//	stack, err := valkey.New(valkey.Config{Device: dev})
//	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: stack.DialContext})
//
// Each end registers memory, to which its peer writes, and registers it again when it is full and has been read:
// a peer that does not read makes Write wait. Close ends both directions. A peer that breaks a rule of the
// protocol loses its connection; the error matches ErrProtocol and the Rule, and Counters counts it.
package valkey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	receives  = 128 // how many messages of a peer may be on their way; its device repeats others
	maxWrites = 32  // of a connection at the device; while they are, further data is put together to larger ones
	// Close gives the device all that is left: two writes, since the send buffer is a ring. A command of each
	// opcode can be on its way, too.
	maxTasks = maxWrites + 2 + opcodes
)

// Config configures a Stack. All but Device may be zero.
type Config struct {
	Device         verbs.Device // which Close of the Stack does not close
	MaxConnections int          // at a time; further requests are rejected, and dials fail with rdma.ErrFull. Zero: 256
	Backlog        int          // connections of a Listener that wait for Accept; further requests are rejected. Zero: 128
	ReceiveBuffer  int          // bytes of a connection that its program has not read. Zero: 1 MiB, as Valkey has
	SendBuffer     int          // bytes of a connection that its peer's device has not acknowledged. Zero: 1 MiB
}

// Counters count what has happened on a Stack.
type Counters struct {
	Refused    uint64          // requests of peers that were rejected
	Violations map[Rule]uint64 // connections that have failed, by the rule that the peer broke
}

// Stack makes and accepts connections through one device. It has an engine, which a goroutine of its
// own drives. All methods may be called from any goroutine.
type Stack struct {
	cfg     Config
	engine  *pe.Engine
	rdma    *rdma.Connections
	tasks   *rdma.Pool
	stop    context.CancelFunc
	ended   chan struct{} // closed when the engine has ended
	err     error         // of the engine
	waiting atomic.Int32  // calls of Read and Write that wait

	mu       sync.Mutex
	forgot   sync.Cond // a connection
	closed   bool
	conns    map[*Conn]bool // that use memory
	counters Counters
}

// New makes a Stack on an open device. Errors match rdma.ErrInvalid and rdma.ErrRange, or are those of
// rdma.New and of the device.
func New(cfg Config) (*Stack, error) {
	cfg.MaxConnections, cfg.Backlog = cmp.Or(cfg.MaxConnections, 256), cmp.Or(cfg.Backlog, 128)
	cfg.ReceiveBuffer, cfg.SendBuffer = cmp.Or(cfg.ReceiveBuffer, 1<<20), cmp.Or(cfg.SendBuffer, 1<<20)
	switch {
	case cfg.Device == nil:
		return nil, fmt.Errorf("valkey: make a stack: %w: Config.Device is missing; open one with package device", rdma.ErrInvalid)
	case min(cfg.MaxConnections, cfg.Backlog, cfg.ReceiveBuffer, cfg.SendBuffer) < 0 || max(cfg.ReceiveBuffer, cfg.SendBuffer) > 1<<30:
		return nil, fmt.Errorf("valkey: make a stack: %w: MaxConnections is %d, Backlog is %d, ReceiveBuffer is %d bytes and SendBuffer is %d; none may be negative, and the buffers have at most 1 GiB",
			rdma.ErrRange, cfg.MaxConnections, cfg.Backlog, cfg.ReceiveBuffer, cfg.SendBuffer)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Stack{cfg: cfg, engine: pe.New(pe.Config{}), stop: stop, ended: make(chan struct{}), conns: map[*Conn]bool{}}
	s.forgot.L, s.counters.Violations = &s.mu, map[Rule]uint64{}
	err := s.open()
	go s.drive(ctx)
	if err == nil {
		err = await.State(ctx, s.rdma, pe.Running)
	}
	if err != nil {
		return nil, fmt.Errorf("valkey: make a stack on %s: %w", cfg.Device.Name(), errors.Join(err, s.Close()))
	}
	return s, nil
}

// open makes the context and starts it.
func (s *Stack) open() (err error) {
	s.rdma, err = rdma.New(s.cfg.Device, rdma.Config{
		Name: "valkey", Engine: s.engine, MaxConnections: s.cfg.MaxConnections, SendQueueSize: maxTasks, MaxSGE: 1,
		CloseTimeout: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	s.rdma.OnConnection(connectionChanged)
	s.tasks, err = s.rdma.Pool(s.cfg.MaxConnections*maxTasks, func(t *rdma.Task) { taskEnded(t, nil) }, taskEnded)
	if err == nil {
		err = s.rdma.ReceivePerConnection(receives, commandSize, received)
	}
	if err == nil {
		err = s.rdma.Start()
	}
	return err
}

// drive drives the engine until Close, or until the device has failed.
func (s *Stack) drive(ctx context.Context) {
	err := s.engine.Run(ctx)
	if ctx.Err() != nil {
		err = nil
	}
	s.err = errors.Join(err, s.engine.Close())
	close(s.ended)
	for _, c := range s.all(false) {
		c.gone(s.err)
	}
}

// all are the present connections. closed: there are to be no more.
func (s *Stack) all(closed bool) []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || closed
	return slices.Collect(maps.Keys(s.conns))
}

// Close closes all connections, waits until what was written has been sent, and ends the Stack and its
// listeners. A peer that does not answer delays it by ten seconds.
func (s *Stack) Close() error {
	for _, c := range s.all(true) {
		_ = c.Close()
	}
	s.mu.Lock()
	for len(s.conns) > 0 {
		s.forgot.Wait()
	}
	s.mu.Unlock()
	s.stop()
	<-s.ended
	return s.err
}

// Counters are the present counters.
func (s *Stack) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Counters{s.counters.Refused, maps.Clone(s.counters.Violations)}
}

// DialContext connects to a server on HOST:PORT, whatever the name of the network is: clients take it as their
// dialer. It fails when ctx ends, or after a minute. Errors are *net.OpError, and match syscall.ECONNREFUSED if
// nobody listens, the cause of ctx, and those of rdma.Connections.Dial.
func (s *Stack) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	var c *Conn
	var failure error
	_, err := await.Dial(ctx, s.rdma, addr, rdma.DialConfig{Once: true, OnResponse: func(conn *rdma.Connection) {
		if c, failure = s.newConn(conn, nil); failure != nil {
			_ = conn.Close()
			return
		}
		_ = conn.Established() // it fails only if the peer has withdrawn, which ends the connection
	}})
	if err == nil {
		return c, nil
	}
	_ = await.Func(context.Background(), s.engine, func() error { // a closed engine has no connections
		if c != nil {
			_ = c.Close()
		}
		err = cmp.Or(failure, err)
		return nil
	})
	if errors.Is(err, rdma.ErrNotListening) || errors.Is(err, rdma.ErrRejected) {
		err = fmt.Errorf("%w: %w", syscall.ECONNREFUSED, err)
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: err}
}

// Listener accepts connections. It is a net.Listener; all methods may be called from any goroutine.
type Listener struct {
	stack *Stack
	rdma  *rdma.Listener
	addr  Addr
	ready chan *Conn // for Accept

	// These belong to the engine's goroutine.
	opening int  // connections that are to come into ready
	closed  bool // ready is
}

// Listen listens on an address of the device: HOST:PORT. HOST is an IP address, or empty for all
// addresses of the device. With port 0 a free one is chosen. The ports have nothing to do with those of
// TCP. Errors are *net.OpError, and match those of rdma.Connections.Listen.
func (s *Stack) Listen(addr string) (*Listener, error) {
	l := &Listener{stack: s, ready: make(chan *Conn, s.cfg.Backlog)}
	err := await.Func(context.Background(), s.engine, func() (err error) {
		if l.rdma, err = s.rdma.Listen(addr, rdma.ListenConfig{OnRequest: l.request}); err == nil {
			l.addr = Addr{l.rdma.Addr()}
		}
		return err
	})
	if errors.Is(err, verbs.ErrInUse) {
		err = fmt.Errorf("%w: %w", syscall.EADDRINUSE, err)
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	return l, nil
}

// request answers a peer's request, on the engine's goroutine.
func (l *Listener) request(q *rdma.ConnectRequest) {
	if len(l.ready)+l.opening < cap(l.ready) {
		if conn, err := q.Accept(rdma.AcceptConfig{}); err == nil {
			if _, err = l.stack.newConn(conn, l); err == nil {
				l.opening++
				return
			}
			_ = conn.Close()
		}
	}
	l.stack.mu.Lock()
	l.stack.counters.Refused++
	l.stack.mu.Unlock()
	_ = q.Reject(nil) // it fails if the connection was accepted, and is being closed
}

// established gives a connection to Accept, on the engine's goroutine.
func (l *Listener) established(c *Conn) {
	if l.opening--; l.closed {
		_ = c.Close()
		return
	}
	l.ready <- c // it has a place
}

// Accept waits for the next connection. The error is a *net.OpError that matches net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.stack.ended:
	case c, ok := <-l.ready:
		if ok {
			return c, nil
		}
	}
	return nil, &net.OpError{Op: "accept", Net: network, Addr: l.addr, Err: net.ErrClosed}
}

// Addr is the address that the listener listens on.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close ends the listener, and closes the connections that wait for Accept. Closing again, or after the Stack,
// fails with an error that matches net.ErrClosed.
func (l *Listener) Close() error {
	err := await.Func(context.Background(), l.stack.engine, func() error { // it fails if the Stack is closed
		if l.closed {
			return net.ErrClosed
		}
		l.closed = true
		close(l.ready)
		for c := range l.ready {
			_ = c.Close()
		}
		_ = l.rdma.Close()
		return nil
	})
	if err != nil {
		return &net.OpError{Op: "close", Net: network, Addr: l.addr, Err: net.ErrClosed}
	}
	return nil
}

package rsocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/profiling"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rsocket/internal/buffers"
	"github.com/verbena-rdma/verbena/rsocket/internal/limits"
	"github.com/verbena-rdma/verbena/verbs"
)

// None switches a function off in a Config, where zero means the default.
const None = rdma.None

// Config configures a Stack. All but Device may be zero.
type Config struct {
	// Device is the device, which Close of the Stack does not close.
	Device verbs.Device
	// Path is that of rdma.Config, for all connections of the Stack: the device's port, the address
	// to dial from, and how packets are sent.
	Path rdma.PathConfig
	// MaxConnections is how many connections can exist at a time, until all of their data has been
	// sent after Close. Requests beyond it are rejected, and Dial fails with rdma.ErrFull. Zero:
	// 16,384, on adapters 1,024, or what the device's completion queues or half of ReceiveMemory
	// or of SendMemory allow.
	MaxConnections int
	// ReceiveMemory is how many bytes of receive memory all connections hold at most: 8 KiB for
	// each of MaxConnections, and the rest for those to which data comes fast. When little is left,
	// connections grow less, and then no more: they are slower, but none stops or is refused. Zero:
	// 1 GiB.
	ReceiveMemory int
	// ReceiveBuffer is how many bytes a connection holds at most of what its program has not
	// read. Receive memory starts at 8 KiB, and grows while data comes fast. Zero: 2 MiB.
	ReceiveBuffer int
	// SendBuffer is how many bytes a connection holds at most of what its peer's device has not
	// acknowledged; Write waits then. Zero: 1 MiB.
	SendBuffer int
	// SendMemory is how many bytes of send memory all connections hold at most: 4 KiB for each of
	// MaxConnections, and the rest for those whose peers have much to acknowledge. Of the rest, a
	// connection may use at most half of what is free. When little is left, connections are slower,
	// but none stops. Memory that is no longer needed is freed. Zero: 1 GiB.
	SendMemory int
	// Backlog limits the connections of a Listener that are established and wait for Accept.
	// Handshakes in progress count against it. The limit is for each address of peers: there are twice
	// Backlog places, and an address (of IPv6: a /64 network) may take one while it holds fewer than
	// are free. So one address keeps no others out; about as many as the base-2 logarithm of the
	// places can still take all. Requests beyond it wait until Accept makes room, as with TCP, and fail
	// with ETIMEDOUT at the peer after a minute. They are limited in the same way, for each device; those
	// beyond that limit are rejected, and counted as Refused. Zero: 1,024.
	Backlog int
	// KeepAlive is how long a peer may be silent before its device is asked whether it is there.
	// Without an answer for SilenceTimeout, the connection fails with ECONNRESET. Zero: 15 s. None:
	// never.
	KeepAlive time.Duration
	// SilenceTimeout is how long a peer's device may answer neither data nor a keepalive before
	// the connection fails with ECONNRESET. The software device is a part of the peer's process:
	// while a debugger has stopped that, it answers nothing. (A process that has ended is noticed
	// sooner: through shared memory at once, by UDP some seconds after a write or a keepalive.)
	// Zero: two minutes. Adapters answer for a process that stands still; a Stack on one gives up
	// after some seconds.
	SilenceTimeout time.Duration
	// Linger is how long a closed connection goes on sending what Write has accepted. Zero: 10
	// s. None: it sends nothing more.
	Linger time.Duration
	// Log receives connections (debug) and failures (warn). The zero value is silent.
	Log zerolog.Logger
}

// Limits of Config.ReceiveBuffer and SendBuffer.
const (
	minBuffer = 64 << 10
	maxBuffer = 256 << 20
)

const defaultBacklog = 1024

func (c *Config) complete() error {
	c.ReceiveBuffer, c.SendBuffer = cmp.Or(c.ReceiveBuffer, 2<<20), cmp.Or(c.SendBuffer, 1<<20)
	c.Backlog = cmp.Or(c.Backlog, defaultBacklog)
	c.SilenceTimeout = cmp.Or(c.SilenceTimeout, 2*time.Minute)
	c.KeepAlive, c.Linger = cmp.Or(c.KeepAlive, 15*time.Second), cmp.Or(c.Linger, 10*time.Second)
	switch {
	case c.Device == nil:
		return fmt.Errorf("%w: Config.Device is missing; open one with package device, or use the functions Listen and Dial", ErrInvalid)
	case min(c.MaxConnections, c.ReceiveMemory, c.SendMemory, c.Backlog) < 0:
		return fmt.Errorf("%w: MaxConnections is %d, ReceiveMemory is %d bytes, SendMemory is %d bytes and Backlog is %d; none may be negative", ErrRange, c.MaxConnections, c.ReceiveMemory, c.SendMemory, c.Backlog)
	case min(c.ReceiveBuffer, c.SendBuffer) < minBuffer || max(c.ReceiveBuffer, c.SendBuffer) > maxBuffer:
		return fmt.Errorf("%w: ReceiveBuffer is %d bytes and SendBuffer is %d; each must be %d to %d", ErrRange, c.ReceiveBuffer, c.SendBuffer, minBuffer, maxBuffer)
	case c.SilenceTimeout < 0:
		return fmt.Errorf("%w: SilenceTimeout is %v; it must be positive, or zero for two minutes", ErrRange, c.SilenceTimeout)
	case c.KeepAlive < 0 && c.KeepAlive != None || c.Linger < 0 && c.Linger != None:
		return fmt.Errorf("%w: KeepAlive is %v and Linger is %v; each must be positive, zero or None", ErrRange, c.KeepAlive, c.Linger)
	}
	return nil
}

// Stack makes and accepts connections through one device. It has an engine, which one goroutine of
// its own drives. All methods may be called from any goroutine.
type Stack struct {
	cfg        Config
	ownsDevice bool // Close closes it
	host       host.Host
	engine     *pe.Engine
	rdma       *rdma.Connections
	tasks      *rdma.Pool
	memory     *buffers.Memory // to receive
	chunks     *buffers.Pool   // to send
	zone       string          // the network interface, of link-local addresses

	stopEngine context.CancelFunc
	driver     sync.WaitGroup // the goroutine that drives the engine
	ended      chan struct{}  // closed when the engine has ended
	closed     error          // result of the engine's Close, and of Close

	accepted, dialled, refused, protocolErrors atomic.Uint64
	closedInPlace                              atomic.Int64 // closed connections that still have their places
	waiting                                    atomic.Int32 // goroutines that wait for data or room of a connection

	mu        sync.Mutex
	changed   sync.Cond // conns, dead or over has changed
	closing   bool
	dead      bool             // the engine has ended
	over      bool             // Close has ended
	empty     chan struct{}    // closed when conns is empty or the engine has ended; nil: nobody waits
	failure   error            // why it has, if that was not Close
	conns     fifo.List[*Conn] // that use resources
	listeners fifo.List[*listening]
}

// New makes a Stack on an open device. Errors match ErrInvalid, ErrRange and ErrNotSupported, or
// are those of rdma.New and of the device.
func New(cfg Config) (*Stack, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("rsocket: make a stack: %w", err)
	}
	s := &Stack{cfg: cfg, host: host.Of(cfg.Device), engine: pe.New(pe.Config{Log: cfg.Log}), ended: make(chan struct{})}
	s.changed.L = &s.mu
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("rsocket: make a stack on %s: %w", cfg.Device.Name(), errors.Join(err, s.engine.Close()))
	}
	return s, nil
}

// open makes the context and starts it.
func (s *Stack) open() error {
	needs := limits.Needs{Completions: receiveQueue + reservedReceives + maxUnderWay + 1, Memory: []limits.Memory{
		{Name: "ReceiveMemory", Bytes: &s.cfg.ReceiveMemory, For: func(connections int) int { return connections * buffers.Smallest }},
		{Name: "SendMemory", Bytes: &s.cfg.SendMemory, For: buffers.SendMemoryFor},
	}}
	if err := needs.Complete(s.cfg.Device, &s.cfg.MaxConnections); err != nil {
		return err
	}
	port, err := s.cfg.Device.QueryPort(max(s.cfg.Path.Port, 1))
	if err != nil {
		return err
	}
	s.zone = port.Interface
	s.rdma, err = rdma.New(s.cfg.Device, rdma.Config{
		Name: "rsocket", Engine: s.engine, Path: s.cfg.Path, MaxConnections: s.cfg.MaxConnections,
		ConnectTimeout: openTimeout, Keepalive: s.cfg.KeepAlive, SilenceTimeout: s.cfg.SilenceTimeout,
		SendQueueSize: maxUnderWay, MaxSGE: 1,
	})
	if err != nil {
		return err
	}
	s.memory = buffers.NewMemory(s.cfg.Device, s.rdma.PD(), s.cfg.ReceiveMemory-s.cfg.MaxConnections*buffers.Smallest)
	s.chunks = buffers.NewPool(s.cfg.Device, s.cfg.SendMemory, s.cfg.MaxConnections, func(d time.Duration, f func()) host.Timer {
		return s.host.AfterFunc(d, func() { _ = s.engine.Do(f) }) // a closed engine's memory is freed by Close
	})
	s.rdma.OnConnection(connectionChanged)
	if s.tasks, err = s.rdma.Pool(s.cfg.MaxConnections*maxUnderWay, sent, sendFailed); err == nil {
		err = s.rdma.ReceivePerConnection(receiveQueue+reservedReceives, 0, received)
	}
	if err == nil {
		err = s.rdma.Start()
	}
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stopEngine = stop
	host.Go(s.host, &s.driver, func() { s.drive(ctx) })
	if err := await.State(ctx, s.rdma, pe.Running); err != nil {
		stop()
		s.driver.Wait()
		return err
	}
	return nil
}

// drive drives the engine until Close, or until the context has failed, and closes it. Then no
// callback comes any more, and nothing at the device uses memory.
func (s *Stack) drive(ctx context.Context) {
	profiling.Label("engine", s.cfg.Device.Name(), s.rdma.Name())
	err := s.engine.Run(ctx)
	s.closed = s.engine.Close()
	s.mu.Lock()
	s.dead = true
	if ctx.Err() == nil {
		s.failure = err
	}
	s.noteChange()
	listeners, conns := s.listeners.Values(), s.conns.Values()
	s.mu.Unlock()
	close(s.ended)
	for _, l := range listeners {
		l.stackFailed(s.closedError())
	}
	for _, c := range conns {
		c.gone(err)
	}
}

// Device is the device that the Stack uses.
func (s *Stack) Device() verbs.Device { return s.cfg.Device }

// Close closes all listeners and connections, waits until what was written has been sent, for
// Config.Linger at most, and ends the Stack. Closing again waits for the first call.
func (s *Stack) Close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	listeners, conns := s.listeners.Values(), s.conns.Values()
	s.mu.Unlock()
	if !first {
		s.wait(func() bool { return s.over })
		return s.closed
	}
	for _, l := range listeners {
		if l.end(net.ErrClosed) { // the listener, and not this part alone
			_ = l.closeParts()
		}
	}
	for _, c := range conns {
		c.close()
	}
	s.wait(func() bool { return s.dead || s.conns.Len() == 0 })
	s.stopEngine()
	s.driver.Wait()
	s.wait(func() bool { return s.conns.Len() == 0 }) // calls of Read and Write that use memory are returning
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.over = errors.Join(s.closed, s.memory.Close(), s.chunks.Close()), true
	if s.ownsDevice {
		s.closed = errors.Join(s.closed, s.cfg.Device.Close())
	}
	s.changed.Broadcast()
	return s.closed
}

// wait waits until the condition holds.
func (s *Stack) wait(holds func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !holds() {
		host.Wait(s.host, &s.changed)
	}
}

// register adds a connection or a listener, unless the Stack is closed or has limit of them.
func register[T any](s *Stack, list *fifo.List[T], e *fifo.Node[T], v T, limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.dead {
		return s.closedError()
	}
	if list.Len() >= limit {
		return fmt.Errorf("%w: all %d connections are in use%s; close some, or raise Config.MaxConnections", rdma.ErrFull, limit, s.closingText())
	}
	e.Value = v
	list.Push(e)
	return nil
}

// free is how many more connections can exist.
func (s *Stack) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.MaxConnections - s.conns.Len()
}

// closingText says how many connections are closed and still have their places.
func (s *Stack) closingText() string {
	if n := s.closedInPlace.Load(); n > 0 {
		return fmt.Sprintf(", %d of them closed and not ended yet (see Config.Linger)", n)
	}
	return ""
}

// forget removes what register has added.
func forget[T any](s *Stack, list *fifo.List[T], e *fifo.Node[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list.Remove(e)
	s.noteChange()
}

// noteChange wakes those who wait for a change of conns or dead. s.mu is held.
func (s *Stack) noteChange() {
	s.changed.Broadcast()
	if s.empty != nil && (s.dead || s.conns.Len() == 0) {
		close(s.empty)
		s.empty = nil
	}
}

// drained returns a channel that is closed when no connection is left, or the engine has ended.
func (s *Stack) drained() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.empty == nil {
		s.empty = make(chan struct{})
	}
	empty := s.empty
	s.noteChange()
	return empty
}

// addr is an address of a peer or of this end.
func (s *Stack) addr(a netip.AddrPort) *Addr {
	if a.Addr().IsLinkLocalUnicast() {
		a = netip.AddrPortFrom(a.Addr().WithZone(s.zone), a.Port())
	}
	return &Addr{a}
}

// closedError is why nothing can be done with a Stack that is closing or dead.
func (s *Stack) closedError() error {
	if s.failure != nil {
		return fmt.Errorf("the stack has failed: %w: %w", net.ErrClosed, s.failure)
	}
	return fmt.Errorf("the stack is closed: %w", net.ErrClosed)
}

// reason is the error of a call, or that the Stack was closed meanwhile.
func (s *Stack) reason(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.closing || s.rdma.State() != pe.Running) && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("%w: %w", s.closedError(), err)
	}
	return err
}

func (s *Stack) isDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

package rsocket

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
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// None switches a function off in a Config, where zero means the default.
const None = rdma.None

// The defaults and limits of a Config.
const (
	DefaultMaxConnections = 256
	DefaultReceiveBuffer  = 1 << 20
	DefaultSendBuffer     = 1 << 20
	DefaultBacklog        = 128
	DefaultKeepAlive      = 15 * time.Second
	DefaultLinger         = 10 * time.Second

	MinBuffer = 64 << 10
	MaxBuffer = 256 << 20
)

const (
	// receiveQueue is how many data messages a peer may have under way, and reservedReceives how
	// many control messages beside them.
	receiveQueue     = 64
	reservedReceives = 4
	// maxDataUnderWay is how many data messages of a connection are at the device at a time. While
	// that many are, further writes are put together to larger messages.
	maxDataUnderWay = 16
	// maxControlUnderWay is for an SGL message, a shutdown and a disconnect message.
	maxControlUnderWay = 3
	maxUnderWay        = maxDataUnderWay + maxControlUnderWay
)

// Config configures a Stack. All but Device may be zero.
type Config struct {
	// Device is the device, which Close of the Stack does not close.
	Device verbs.Device
	// Name appears in errors and logs. Empty: "rsocket".
	Name string
	// MaxConnections is how many connections can exist at a time; requests beyond it are
	// rejected. Zero: 16,384, or as many as the device has completion queue entries for.
	MaxConnections int
	// ReceiveBuffer is how many bytes a connection holds at most of what its program has not
	// read. Receive memory starts at 8 KiB, and grows while data comes fast. Zero: 1 MiB.
	ReceiveBuffer int
	// SendBuffer is how many bytes a connection holds at most of what its peer's device has not
	// acknowledged; Write waits then. A connection that has sent everything holds no send
	// memory. Zero: 1 MiB.
	SendBuffer int
	// Backlog is how many connections of a Listener can wait for Accept; requests beyond it are
	// rejected. Zero: 128.
	Backlog int
	// KeepAlive is how long a peer may be silent before its device is asked whether it is still
	// there. A connection whose peer does not answer fails with ECONNRESET. Zero: 15 s. None:
	// never.
	KeepAlive time.Duration
	// Linger is how long a closed connection goes on sending what Write has accepted. Zero: 10
	// s. None: it sends nothing more.
	Linger time.Duration
	// Log receives connections made and lost (debug), and failures (warn). The zero value is
	// silent.
	Log zerolog.Logger
}

func (c *Config) complete() error {
	switch {
	case c.Device == nil:
		return fmt.Errorf("%w: Config.Device is missing; open one with package device, or use the functions Listen and Dial", ErrInvalid)
	case c.MaxConnections < 0 || c.Backlog < 0:
		return fmt.Errorf("%w: MaxConnections is %d and Backlog is %d; neither may be negative", ErrRange, c.MaxConnections, c.Backlog)
	}
	c.Name = cmp.Or(c.Name, "rsocket")
	c.Backlog = cmp.Or(c.Backlog, DefaultBacklog)
	for _, b := range []struct {
		name     string
		size     *int
		standard int
	}{{"ReceiveBuffer", &c.ReceiveBuffer, DefaultReceiveBuffer}, {"SendBuffer", &c.SendBuffer, DefaultSendBuffer}} {
		if *b.size = cmp.Or(*b.size, b.standard); *b.size < MinBuffer || *b.size > MaxBuffer {
			return fmt.Errorf("%w: %s is %d bytes; it must be %d to %d", ErrRange, b.name, *b.size, MinBuffer, MaxBuffer)
		}
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{{"KeepAlive", &c.KeepAlive, DefaultKeepAlive}, {"Linger", &c.Linger, DefaultLinger}} {
		if *d.value = cmp.Or(*d.value, d.standard); *d.value < 0 && *d.value != None {
			return fmt.Errorf("%w: %s is %v; it must be positive, zero or None", ErrRange, d.name, *d.value)
		}
	}
	return nil
}

// connectionsOf is how many connections a device has room for.
func connectionsOf(dev verbs.Device) (int, error) {
	caps, err := rdma.QueryCapabilities(dev, verbs.RC)
	if err != nil {
		return 0, err
	}
	if !caps.ByAddress {
		return 0, fmt.Errorf("%w: %s has no connection manager", ErrNotSupported, dev.Name())
	}
	attr, err := dev.Query()
	if err != nil {
		return 0, err
	}
	const entries = receiveQueue + reservedReceives + maxUnderWay + 1
	return min(caps.MaxConnections, (attr.MaxCQE-rdma.SharedTasks)/entries), nil
}

// Counters counts what a Stack has done.
type Counters struct {
	Accepted       uint64 // connections that peers have made
	Dialled        uint64 // connections that this program has made
	Refused        uint64 // requests rejected: no room, or invalid private data
	ProtocolErrors uint64 // connections ended since the peer violated the protocol
}

// Stack makes and accepts connections through one device. It has an engine, which one goroutine of
// its own drives. All methods may be called from any goroutine.
type Stack struct {
	cfg    Config
	host   host.Host
	engine *pe.Engine
	rdma   *rdma.Connections
	tasks  *rdma.Pool
	chunks chunkPool

	stopEngine context.CancelFunc
	goroutine  sync.WaitGroup
	ended      chan struct{} // closed when the engine has ended

	accepted, dialled, refused, protocolErrors atomic.Uint64

	mu        sync.Mutex
	changed   sync.Cond // conns or dead has changed
	closing   bool
	dead      bool  // the engine has ended
	failure   error // why it has, if that was not Close
	serial    uint64
	conns     map[*Conn]struct{} // whose resources are in use
	listeners map[*Listener]struct{}
}

// New makes a Stack on an open device. Errors match ErrInvalid, ErrRange and ErrNotSupported, or
// are those of rdma.New and of the device.
func New(cfg Config) (*Stack, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("rsocket: make a stack: %w", err)
	}
	s := &Stack{
		cfg: cfg, host: host.Of(cfg.Device), engine: pe.New(pe.Config{Log: cfg.Log}), ended: make(chan struct{}),
		conns: make(map[*Conn]struct{}), listeners: make(map[*Listener]struct{}),
	}
	s.changed.L = &s.mu
	s.chunks.dev = cfg.Device
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("rsocket: make a stack on %s: %w", cfg.Device.Name(), errors.Join(err, s.engine.Close()))
	}
	return s, nil
}

// open makes the context and starts it.
func (s *Stack) open() error {
	room, err := connectionsOf(s.cfg.Device)
	if err != nil {
		return err
	}
	s.cfg.MaxConnections = cmp.Or(s.cfg.MaxConnections, min(room, DefaultMaxConnections))
	if s.cfg.MaxConnections > room {
		return fmt.Errorf("%w: MaxConnections is %d, but the device has room for %d", ErrRange, s.cfg.MaxConnections, room)
	}
	s.rdma, err = rdma.New(s.cfg.Device, rdma.Config{
		Name: s.cfg.Name, Engine: s.engine, MaxConnections: s.cfg.MaxConnections, Keepalive: s.cfg.KeepAlive, Log: s.cfg.Log,
		Queues: rdma.Queues{SendQueueSize: maxUnderWay, MaxSendSGE: 1},
	})
	if err != nil {
		return err
	}
	if s.tasks, err = s.rdma.Pool(s.cfg.MaxConnections*maxUnderWay, sent, sendFailed); err != nil {
		return err
	}
	if err := s.rdma.ReceivePerConnection(receiveQueue+reservedReceives, 0, received); err != nil {
		return err
	}
	s.rdma.OnConnection(connectionChanged)
	if err := s.rdma.Start(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stopEngine = stop
	host.Go(s.host, &s.goroutine, func() { s.drive(ctx) })
	if err := await.State(ctx, s.rdma, pe.Running); err != nil {
		stop()
		s.goroutine.Wait()
		return err
	}
	return nil
}

// drive drives the engine until Close, or until the context has failed. Then no callback comes any
// more, and nothing at the device uses memory.
func (s *Stack) drive(ctx context.Context) {
	err := s.engine.Run(ctx)
	s.mu.Lock()
	s.dead = true
	if ctx.Err() == nil {
		s.failure = err
	}
	conns := slices.Collect(maps.Keys(s.conns))
	s.changed.Broadcast()
	s.mu.Unlock()
	slices.SortFunc(conns, func(a, b *Conn) int { return cmp.Compare(a.serial, b.serial) })
	for _, c := range conns {
		c.end(err)
	}
	close(s.ended)
}

// Device is the device that the Stack uses.
func (s *Stack) Device() verbs.Device { return s.cfg.Device }

// Counters returns the counters.
func (s *Stack) Counters() Counters {
	return Counters{
		Accepted: s.accepted.Load(), Dialled: s.dialled.Load(), Refused: s.refused.Load(), ProtocolErrors: s.protocolErrors.Load(),
	}
}

// Close closes all listeners and connections, waits until what was written has been sent, for
// Config.Linger at most, and ends the Stack. Closing again waits for the first call.
func (s *Stack) Close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	listeners, conns := slices.Collect(maps.Keys(s.listeners)), slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	if !first {
		<-s.ended
		return nil
	}
	for _, l := range listeners {
		_ = l.Close()
	}
	slices.SortFunc(conns, func(a, b *Conn) int { return cmp.Compare(a.serial, b.serial) })
	for _, c := range conns {
		_ = c.Close()
	}
	s.mu.Lock()
	for len(s.conns) > 0 && !s.dead {
		host.Wait(s.host, &s.changed)
	}
	s.mu.Unlock()
	s.stopEngine()
	s.goroutine.Wait()
	s.mu.Lock()
	for len(s.conns) > 0 { // calls of Read and Write that use memory are returning
		host.Wait(s.host, &s.changed)
	}
	s.mu.Unlock()
	return errors.Join(s.engine.Close(), s.chunks.close())
}

// begin registers a connection, unless the Stack is closed.
func (s *Stack) begin(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.dead {
		return s.closedError()
	}
	c.serial = s.serial
	s.serial++
	s.conns[c] = struct{}{}
	return nil
}

// end forgets a connection whose resources have been released.
func (s *Stack) end(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.changed.Broadcast()
}

// closedError is why nothing can be done with the Stack any more. s.mu is held.
func (s *Stack) closedError() error {
	if s.failure != nil {
		return fmt.Errorf("the stack has failed: %w: %w", net.ErrClosed, s.failure)
	}
	return fmt.Errorf("the stack is closed: %w", net.ErrClosed)
}

package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config configures an Agent.
type Config struct {
	// Devices are those that the agent uses, 1 to 8. They stay the caller's.
	Devices []verbs.Device
	// Transport is verbs.RC or verbs.SRD, the same at all agents. Zero: RC, or SRD where the first device lacks RC.
	Transport verbs.QPType
	// Listen is the address at which other agents dial this one, as for rdma.Connections.Listen, on
	// each device; with SRD any text, since Agent.Addrs then tells it. Empty: none; the agent dials only.
	Listen string
	// MaxConnections is how many connections each device has at a time, dialled and accepted. An address (of IPv6: its
	// /64 network) gets as many as those that were accepted leave free: one alone, half. Zero: 256.
	MaxConnections int
	// Depth is how many pieces of items a device has at a time for one peer. Zero: 64.
	Depth int
	// Piece is the most bytes that travel in one request. Zero: 256 KiB.
	Piece int
	// DialTimeout is how long Dial and items wait for a peer, which may not have been started, with one device; the next
	// device then has as long. Zero: ten seconds.
	DialTimeout time.Duration
	// SilenceTimeout is how long a peer may be silent until a connection through a software device ends, whose pieces
	// then go to another device: see rdma.Config, also for the zero value. It is for RC.
	SilenceTimeout time.Duration
	// CacheBytes is how much memory the agent keeps registered of what items use and Register was not called
	// for; the least recently used goes first. More is registered while items need it. Zero: there is no such
	// cache, and Submit fails with ErrNotRegistered. What is in the cache stays pinned until it is evicted or the
	// agent is closed: Go memory is not freed before, and other memory must not be unmapped before.
	CacheBytes int
	// CacheEntries is how many slices the cache has at most. Zero: 1024.
	CacheEntries int
	// Log receives which connections are made and lost. The zero value is silent.
	Log zerolog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if n := len(c.Devices); n < 1 || n > maxDevices {
		return c, fmt.Errorf("%w: an agent has 1 to %d devices, not %d", ErrInvalid, maxDevices, n)
	} else if slices.Contains(c.Devices, nil) {
		return c, fmt.Errorf("%w: one of Config.Devices is nil", ErrInvalid)
	}
	c.MaxConnections, c.Depth, c.Piece = cmp.Or(c.MaxConnections, 256), cmp.Or(c.Depth, 64), cmp.Or(c.Piece, 256<<10)
	c.CacheEntries = cmp.Or(c.CacheEntries, 1024)
	c.DialTimeout = cmp.Or(c.DialTimeout, 10*time.Second)
	caps, err := rdma.QueryCapabilities(c.Devices[0], verbs.RC)
	if err != nil {
		return c, err
	}
	if !caps.Transports.Has(verbs.RC) && c.Transport == verbs.RC {
		c.Transport = verbs.SRD
	}
	switch {
	case c.Transport != verbs.RC && c.Transport != verbs.SRD:
		return c, fmt.Errorf("%w: Config.Transport is %v, and can be RC or SRD", ErrInvalid, c.Transport)
	case c.Depth < 0 || c.Depth > poolSize/2:
		return c, fmt.Errorf("%w: Config.Depth is %d, and can be 0 to %d", ErrRange, c.Depth, poolSize/2)
	case c.Piece < 0 || c.Piece > 1<<30:
		return c, fmt.Errorf("%w: Config.Piece is %d, and can be 0 to %d", ErrRange, c.Piece, 1<<30)
	case c.MaxConnections < 0:
		return c, fmt.Errorf("%w: Config.MaxConnections is %d, and cannot be negative", ErrRange, c.MaxConnections)
	case c.CacheBytes < 0 || c.CacheEntries < 0:
		return c, fmt.Errorf("%w: Config.CacheBytes is %d and Config.CacheEntries %d, and neither can be negative", ErrRange, c.CacheBytes, c.CacheEntries)
	case c.DialTimeout < 0:
		return c, fmt.Errorf("%w: Config.DialTimeout is %v, and cannot be negative", ErrRange, c.DialTimeout)
	}
	return c, nil
}

// Agent moves data between the memory of this program and that of other agents.
type Agent struct {
	cfg       Config
	host      host.Host
	epoch     uint64 // random: no other agent has it, at the same addresses or elsewhere
	devices   []*localDevice
	addrs     []Addr // of the devices, if the agent listens
	directory *Segment

	stop  context.CancelFunc
	over  <-chan struct{} // closed by stop
	notes chan received   // that have come
	ended sync.WaitGroup
	once  sync.Once // Close

	// mu guards what follows, and all peers, batches and segments. No call that may wait is made
	// with it.
	mu       sync.Mutex
	closed   error               // why the agent has ended
	segments []*Segment          // by address
	cached   []*Segment          // because an item needed them; by address, then by size; they may overlap
	idle     fifo.List[*Segment] // those of them that no item uses, the least recently used first
	names    []*record           // of the published ones, by name
	peers    []*Peer             // that are open
	spare    []*piece            // to use again
	incoming map[pathID]*incoming
	absent   fifo.List[*incoming] // those without a connection, the latest last
	pieces   int                  // cut and not ended
	counters Counters
	dialing  [2]int // paths; the second are those whose latest attempt has failed
	toDial   [2]fifo.Queue[*path]
}

// Open opens an agent. It returns when the agent listens on all devices. Its errors match ErrInvalid
// and ErrRange, or are those of package rdma.
func Open(cfg Config) (*Agent, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, host: host.Of(cfg.Devices[0]), incoming: map[pathID]*incoming{}, notes: make(chan received, maxNotes*len(cfg.Devices))}
	a.epoch = max(host.Uint64(a.host), 1)
	ctx, stop := context.WithCancel(context.Background())
	a.stop, a.over = stop, ctx.Done()
	if err := a.open(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	a.ended.Add(len(a.devices))
	for _, d := range a.devices {
		a.host.Go(func() { d.run(ctx) })
	}
	return a, nil
}

// open opens the devices, and listens on them.
func (a *Agent) open() (err error) {
	for i, dev := range a.cfg.Devices {
		d := &localDevice{agent: a, index: i, device: dev, engine: pe.New(pe.Config{Log: a.cfg.Log})}
		a.devices = append(a.devices, d)
		if err = d.open(); err != nil {
			return fmt.Errorf("open a transfer agent on %s: %w", dev.Name(), err)
		}
	}
	if a.directory, err = a.Register("", make([]byte, directoryLen), mmap.RemoteRead); err != nil {
		return err
	}
	writeDirectory(a.directory.mem, nil)
	if a.cfg.Listen == "" {
		return nil
	}
	for _, d := range a.devices { // one after the other, since a peer may dial as soon as one listens
		addr, err := d.transport.listen(a.cfg.Listen)
		if err != nil {
			return fmt.Errorf("open a transfer agent on %s: %w", d.device.Name(), err)
		}
		a.addrs = append(a.addrs, addr)
	}
	return nil
}

// Addrs are the addresses at which other agents dial this one, by device.
func (a *Agent) Addrs() []Addr { return a.addrs }

// Addr is the address of a device of an agent.
type Addr struct {
	AddrPort netip.AddrPort // of its device
	QPN      uint32         // of its endpoint, which the device chooses; zero without SRD
}

// String is IP:PORT or, with SRD, IP:PORT/QPN.
func (a Addr) String() string {
	if a.QPN == 0 {
		return a.AddrPort.String()
	}
	return fmt.Sprintf("%v/%d", a.AddrPort, a.QPN)
}

// parseAddr reads the address of an endpoint.
func parseAddr(text string) (a Addr, err error) {
	at, qpn, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(qpn, 10, 24)
	if err == nil {
		a.AddrPort, err = netip.ParseAddrPort(at)
	}
	if a.QPN = uint32(n); err != nil || n == 0 {
		return a, fmt.Errorf("%w: the address of an agent with SRD is IP:PORT/QPN, as its Addrs has it", ErrInvalid)
	}
	return a, nil
}

// Close ends all items that have not ended, with ErrClosed, all connections and all segments. It
// returns when no device can touch the memory any more. Closing again does nothing.
func (a *Agent) Close() (err error) {
	a.once.Do(func() {
		a.mu.Lock()
		a.end(fmt.Errorf("%w: the agent", ErrClosed))
		a.mu.Unlock()
		a.ended.Wait()
		for _, d := range a.devices {
			err = errors.Join(err, d.close())
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, p := range slices.Clone(a.peers) {
			p.end(a.closed)
		}
		for _, s := range slices.Concat(a.segments, a.cached) {
			err = errors.Join(err, s.release())
		}
		a.counters.CacheBytes = 0
	})
	return err
}

// end ends all work that waits. The lock is held.
func (a *Agent) end(err error) {
	a.closed = cmp.Or(a.closed, err)
	a.stop()
	for _, p := range a.peers {
		p.endWork(a.closed)
	}
}

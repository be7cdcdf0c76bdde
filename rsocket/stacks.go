package rsocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/rsocket/internal/hosts"
	"github.com/verbena-rdma/verbena/rsocket/internal/shared"
)

// Stacks listens and dials on the devices by which the system reaches the addresses (package
// device/route), with a Stack on each device that was needed. All methods may be called from any
// goroutine.
type Stacks struct {
	device  string // empty: by the system's routes
	cfg     Config
	set     shared.Values[*Stack]
	counted counted
	log     atomic.Pointer[zerolog.Logger] // in place of that of cfg; nil: that
}

// defaults has the stacks of the functions Listen and Dial.
var defaults = newStacks("", Config{}, false)

// NewStacks makes Stacks with the settings of cfg, whose Device is ignored. device is a name, as
// device.Open takes it, of the only device to use; empty: those by which the system reaches the
// addresses. Listen and Dial open the devices, which stay open until Close, and fail with the errors
// of device.Open and New.
func NewStacks(device string, cfg Config) *Stacks { return newStacks(device, cfg, true) }

func newStacks(device string, cfg Config, keep bool) *Stacks {
	s := &Stacks{device: device, cfg: cfg}
	s.set = shared.Values[*Stack]{Open: s.open, Close: s.closeStack, Dead: (*Stack).isDead, Drained: (*Stack).drained, Keep: keep}
	return s
}

// open opens a device and makes the only stack on it: a second open device of an interface would have
// another UDP port than the one to which other hosts send.
func (s *Stacks) open(name string) (*Stack, error) {
	dev, err := device.Open(name)
	if err != nil {
		return nil, errors.Join(err) // it names the device: neterr.Innermost stops at a list
	}
	cfg := s.cfg
	cfg.Device, cfg.Log = dev, s.logger()
	stack, err := New(cfg)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	stack.ownsDevice = true
	s.counted.add(dev.Name(), stack)
	return stack, nil
}

// logger is where stacks that are opened now log.
func (s *Stacks) logger() zerolog.Logger {
	if log := s.log.Load(); log != nil {
		return *log
	}
	return s.cfg.Log
}

func (s *Stacks) closeStack(stack *Stack) error {
	defer s.counted.remove(stack)
	return stack.Close()
}

// Close closes all stacks, as Stack.Close does, and their devices. Listen and Dial fail afterwards.
func (s *Stacks) Close() error { return s.set.End() }

// Listen listens on HOST:PORT, as Stack.Listen does, on the device through which the system reaches
// HOST. With an empty HOST, 0.0.0.0 or [::], it listens at all addresses of this host, loopback
// included, and at those that come later (route.Serve): Listener.Addrs has those of now. Listen fails if one
// of them cannot be served, and names it; of those that come later, Config.Log or SetLogger's is told.
func (s *Stacks) Listen(addr string) (*Listener, error) {
	l := newListener(s.cfg.Backlog)
	list, port, err := hosts.ToListen(addr)
	switch {
	case err != nil:
	case list[0] == "" && s.device == "":
		err = l.listenEverywhere(s, port)
	default:
		var dev string
		if dev, err = hosts.Device(s.device, list[0]); err == nil {
			err = l.addDevice(s, dev, list, port)
		}
	}
	if err != nil {
		return nil, listenError(addr, err)
	}
	return l, nil
}

// addDevice listens on a device.
func (l *Listener) addDevice(s *Stacks, dev string, list []string, port string) error {
	stack, err := s.set.Acquire(context.Background(), dev)
	if err != nil {
		return err
	}
	p, err := l.add(stack.Value, stack)
	if err == nil {
		if err = p.listenAtFirst(list, port); err != nil {
			p.close()
		}
	}
	if err != nil {
		_ = stack.Release() // err says why it is not used
	}
	return err
}

// listenEverywhere listens at all addresses of this host.
func (l *Listener) listenEverywhere(s *Stacks, number string) error {
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return err
	}
	l.all = true
	log := s.logger()
	everywhere, err := route.Serve(uint16(port), route.ServeConfig{
		Open: func(dev string) (route.Part, error) {
			stack, err := s.set.Acquire(context.Background(), dev)
			if err != nil {
				return nil, err
			}
			p, err := l.add(stack.Value, stack)
			if err != nil {
				return nil, errors.Join(err, stack.Release())
			}
			return p, nil
		},
		Failed: func(err error) {
			if !errors.Is(err, net.ErrClosed) { // the listener is being closed
				log.Warn().Err(err).Msg("cannot listen at all addresses")
			}
		},
		Log: log,
	})
	if err != nil {
		l.end(net.ErrClosed)
		return err
	}
	l.mu.Lock()
	failure := l.failure // the stacks are being closed
	if failure == nil {
		l.everywhere, l.addr = everywhere, &Addr{netip.AddrPortFrom(netip.IPv6Unspecified(), everywhere.Port())}
	}
	l.mu.Unlock()
	if failure != nil {
		return errors.Join(failure, everywhere.Close())
	}
	return nil
}

// Dial connects to HOST:PORT, as Stack.Dial does, on the device through which the system reaches HOST.
func (s *Stacks) Dial(ctx context.Context, addr string) (*Conn, error) {
	return dial(ctx, addr, func(ctx context.Context, host, addr string) (*Conn, error) {
		if host == "" && s.device == "" { // this host
			host = "127.0.0.1"
			addr = host + addr
		}
		dev, err := hosts.Device(s.device, host)
		if err != nil {
			return nil, err
		}
		stack, err := s.set.Acquire(ctx, dev)
		if err != nil {
			return nil, err
		}
		c, err := stack.Value.dial(ctx, addr)
		if err != nil {
			go func() { _ = stack.Release() }() // it may wait
			return nil, err
		}
		c.shared = stack
		return c, nil
	})
}

// DialContext is Dial for clients that take a dialer: see the function DialContext.
func (s *Stacks) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return dialer(ctx, network, addr, s.Dial)
}

// SetLogger sets where the stacks of Listen and Dial log, as Config.Log does for others. It holds for
// later calls of Listen, and for stacks that are opened later, whose goroutines write at the same time.
// The zero value is silent.
func SetLogger(log zerolog.Logger) { defaults.log.Store(&log) }

// Listen is Stacks.Listen with the default Config, on stacks that all calls of Listen and Dial share.
// They are closed with their last listener and connection, whose Close waits until what was written
// has been sent, or until another call of Listen or Dial uses the stack.
func Listen(addr string) (*Listener, error) { return defaults.Listen(addr) }

// Dial is Stacks.Dial on the stacks of Listen.
func Dial(ctx context.Context, addr string) (*Conn, error) { return defaults.Dial(ctx, addr) }

// DialContext is Dial in the form that clients with a dialer of the program's take, such as
// http.Transport.DialContext. network is "tcp" or "rdma", which mean the same here: such clients ask
// for TCP. Others fail with a net.UnknownNetworkError. After an error, the net.Conn is nil.
func DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return dialer(ctx, network, addr, Dial)
}

package rsocket

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/verbs"
)

// Listen listens on HOST:PORT, as Stack.Listen does, on a Stack that all calls of Listen and Dial
// share: on the device through which the system reaches HOST (package device/route). With an empty
// HOST it listens on the device of the interface that leads away from this machine and on that of
// the loopback interface. The Stack has the default Config, and is closed with its last listener
// and connection.
func Listen(addr string) (*Listener, error) {
	hosts, port, err := resolve(context.Background(), addr)
	if err != nil {
		return nil, listenError(addr, err)
	}
	devices := []string{route.DefaultDevice(), "soft-lo"}
	if a, err := netip.ParseAddr(hosts[0]); err == nil && !a.IsUnspecified() {
		r, err := route.Find("", a)
		if err != nil {
			return nil, listenError(addr, err)
		}
		devices = []string{r.Device}
	}
	l := newListener(defaultBacklog)
	for _, dev := range slices.Compact(devices) {
		s, err := acquire(dev)
		if err == nil {
			if err = l.add(s.stack, hosts, port, s); err != nil {
				s.release()
			}
		}
		if err != nil {
			_ = l.Close() // it may listen on another device
			return nil, listenError(addr, err)
		}
		_, port, _ = net.SplitHostPort(l.addr.String()) // the same at each device
	}
	return l, nil
}

// Dial connects to HOST:PORT, as Stack.Dial does, on a Stack that all calls of Listen and Dial
// share: on the device through which the system reaches HOST. If HOST is a name, its addresses are
// tried in turn.
func Dial(ctx context.Context, addr string) (c *Conn, err error) {
	hosts, port, err := resolve(ctx, addr)
	for _, h := range hosts {
		var s *shared
		if s, err = acquireFor(cmp.Or(h, "127.0.0.1")); err != nil {
			continue
		}
		if c, err = s.stack.Dial(ctx, net.JoinHostPort(h, port)); err == nil {
			c.shared = s
			return c, nil
		}
		if s.release(); ctx.Err() != nil {
			break
		}
	}
	if _, named := errors.AsType[*net.OpError](err); !named {
		err = opError("dial", addressOf(addr), kindOf(ctx, err))
	}
	return nil, err
}

// DialContext is Dial in the form that clients with a dialer of the program's take, such as
// http.Transport.DialContext. network is "tcp" or "rdma", which mean the same here: such clients ask
// for TCP. Others fail with a net.UnknownNetworkError. After an error, the net.Conn is nil.
func DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return dialer(ctx, network, addr, Dial)
}

// acquireFor returns the shared stack of the device through which the system reaches an address.
func acquireFor(host string) (*shared, error) {
	a, err := netip.ParseAddr(host)
	if err != nil {
		return nil, err
	}
	r, err := route.Find("", a)
	if err != nil {
		return nil, err
	}
	return acquire(r.Device)
}

// shared is a Stack that Listen and Dial use.
type shared struct {
	device string
	dev    verbs.Device
	stack  *Stack
	users  int // listeners, connections and calls of Dial; stacks.mu guards it
}

// stacks has the stacks of Listen and Dial, by device.
var stacks struct {
	mu       sync.Mutex
	byDevice map[string]*shared
}

// acquire returns the shared stack of a device. The caller releases it.
func acquire(name string) (*shared, error) {
	stacks.mu.Lock()
	defer stacks.mu.Unlock()
	if s := stacks.byDevice[name]; s != nil {
		s.users++
		return s, nil
	}
	dev, err := device.Open(name)
	if err != nil {
		return nil, err
	}
	stack, err := New(Config{Device: dev})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	s := &shared{device: name, dev: dev, stack: stack, users: 1}
	if stacks.byDevice == nil {
		stacks.byDevice = make(map[string]*shared)
	}
	stacks.byDevice[name] = s
	return s, nil
}

// retain is for one more user. s may be nil.
func (s *shared) retain() *shared {
	if s != nil {
		stacks.mu.Lock()
		s.users++
		stacks.mu.Unlock()
	}
	return s
}

// release closes the stack behind its last user. s may be nil. It does not wait: it is called on
// the goroutine of the stack's engine, too.
func (s *shared) release() {
	if s == nil {
		return
	}
	stacks.mu.Lock()
	defer stacks.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(stacks.byDevice, s.device)
		go func() { _ = errors.Join(s.stack.Close(), s.dev.Close()) }()
	}
}

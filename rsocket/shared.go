package rsocket

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
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
	l, err := listen(addr)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: addressOf(addr), Err: err}
	}
	return l, nil
}

func listen(addr string) (*Listener, error) {
	addrs, err := resolve(addr)
	if err != nil {
		return nil, err
	}
	name, port, err := net.SplitHostPort(addrs[0])
	if err != nil {
		return nil, err
	}
	devices := []string{route.DefaultDevice(), loopback}
	if a, err := netip.ParseAddr(name); err == nil && !a.IsUnspecified() {
		r, err := route.Find("", a)
		if err != nil {
			return nil, err
		}
		devices = []string{r.Device, r.Device}
	}
	l := newListener(DefaultBacklog)
	for i, dev := range devices {
		if i > 0 && dev == devices[0] {
			break
		}
		var s *shared
		if s, err = acquire(dev); err == nil {
			if err = l.add(s.stack, net.JoinHostPort(name, port), s); err != nil {
				s.release()
			}
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		_, port, _ = net.SplitHostPort(l.addr.String()) // the same at each device
	}
	return l, nil
}

// loopback is the device of the loopback interface.
const loopback = "soft-lo"

// Dial connects to HOST:PORT, as Stack.Dial does, on a Stack that all calls of Listen and Dial
// share: on the device through which the system reaches HOST. If HOST is a name, its addresses are
// tried in turn.
func Dial(ctx context.Context, addr string) (*Conn, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		if _, ok := errors.AsType[*net.OpError](err); ok {
			return nil, err
		}
		return nil, &net.OpError{Op: "dial", Net: network, Addr: addressOf(addr), Err: dialError(ctx, err)}
	}
	return c, nil
}

func dial(ctx context.Context, addr string) (c *Conn, err error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	list, err := route.LookUp(ctx, cmp.Or(name, "localhost"))
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		var r *route.Route
		if r, err = route.Find("", a); err != nil {
			continue
		}
		var s *shared
		if s, err = acquire(r.Device); err != nil {
			continue
		}
		if c, err = s.stack.Dial(ctx, net.JoinHostPort(a.String(), port)); err == nil {
			c.shared = s
			return c, nil
		}
		if s.release(); ctx.Err() != nil {
			break
		}
	}
	return nil, err
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

package rsocket

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/rsocket/internal/neterr"
	"github.com/verbena-rdma/verbena/rsocket/internal/shared"
)

// stacks has the stacks of Listen and Dial, by device. A second open device of an interface would
// have another UDP port than the one to which other hosts send.
var stacks = shared.Values[*Stack]{
	Open: func(name string) (*Stack, error) {
		dev, err := device.Open(name)
		if err != nil {
			return nil, err
		}
		s, err := New(Config{Device: dev})
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
		return s, nil
	},
	Close: func(s *Stack) { _ = errors.Join(s.Close(), s.cfg.Device.Close()) },
	Dead: func(s *Stack) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.dead
	},
}

// deviceFor is the device through which the system reaches an address.
func deviceFor(host string) (string, error) {
	a, err := netip.ParseAddr(host)
	if err != nil {
		return "", err
	}
	r, err := route.Find("", a)
	if err != nil {
		return "", err
	}
	return r.Device, nil
}

// Listen listens on HOST:PORT, as Stack.Listen does, on a Stack that all calls of Listen and Dial
// share: on the device through which the system reaches HOST (package device/route). With an empty
// HOST, 0.0.0.0 or [::], it listens on the device of the interface that leads away from this machine
// and on that of the loopback interface. The Stack has the default Config, and is closed with its
// last listener and connection, whose Close waits until what was written has been sent.
func Listen(addr string) (*Listener, error) {
	hosts, port, err := resolve(context.Background(), addr)
	if err != nil {
		return nil, listenError(addr, err)
	}
	devices := []string{route.DefaultDevice(), "soft-lo"}
	if a, err := netip.ParseAddr(hosts[0]); err == nil && !a.IsUnspecified() {
		if devices[0], err = deviceFor(hosts[0]); err != nil {
			return nil, listenError(addr, err)
		}
		devices = devices[:1]
	}
	l := newListener(defaultBacklog)
	for _, dev := range slices.Compact(devices) {
		s, err := stacks.Acquire(context.Background(), dev)
		if err == nil {
			if err = l.add(s.Value, hosts, port, s); err != nil {
				s.Release()
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
		var dev string
		var s *shared.Ref[*Stack]
		if dev, err = deviceFor(cmp.Or(h, "127.0.0.1")); err != nil {
			continue
		}
		if s, err = stacks.Acquire(ctx, dev); err != nil {
			continue
		}
		if c, err = s.Value.Dial(ctx, net.JoinHostPort(h, port)); err == nil {
			c.shared = s
			return c, nil
		}
		go s.Release() // it may wait
		if ctx.Err() != nil {
			break
		}
	}
	if _, named := errors.AsType[*net.OpError](err); !named {
		err = opError("dial", addressOf(addr), neterr.Of(ctx, err))
	}
	return nil, err
}

// DialContext is Dial in the form that clients with a dialer of the program's take, such as
// http.Transport.DialContext. network is "tcp" or "rdma", which mean the same here: such clients ask
// for TCP. Others fail with a net.UnknownNetworkError. After an error, the net.Conn is nil.
func DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return dialer(ctx, network, addr, Dial)
}

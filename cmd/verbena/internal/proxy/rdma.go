package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/device/route"
	"github.com/verbena-rdma/verbena/rsocket"
	"github.com/verbena-rdma/verbena/verbs"
)

// rdma is the network of rsockets. It has its own stacks, since their Close waits until what was
// written has been sent.
type rdma struct {
	device string // empty: by the system's routes
	max    int    // connections of each stack that are not in a listener's queue
	log    zerolog.Logger

	mu     sync.Mutex
	stacks map[string]*stack // by device
}

// queued is how many connections of a listener can wait while -max are open.
const queued = 128

// stack is an rsocket.Stack and its device.
type stack struct {
	*rsocket.Stack
	dev verbs.Device
}

// on returns the stack on a device.
func (r *rdma) on(name string) (*rsocket.Stack, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.stacks[name]; s != nil {
		return s.Stack, nil
	}
	dev, err := device.Open(name)
	if err != nil {
		return nil, err
	}
	s, err := rsocket.New(rsocket.Config{Device: dev, MaxConnections: r.max + queued, Backlog: queued, Log: r.log})
	if err != nil {
		if errors.Is(err, rsocket.ErrRange) {
			err = fmt.Errorf("%w; lower -max", err)
		}
		return nil, errors.Join(err, dev.Close())
	}
	if r.stacks == nil {
		r.stacks = map[string]*stack{}
	}
	r.stacks[name] = &stack{s, dev}
	return s, nil
}

// close waits until what was written has been sent, for some seconds at most.
func (r *rdma) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []error
	for _, s := range r.stacks {
		list = append(list, s.Close(), s.dev.Close())
	}
	return errors.Join(list...)
}

// listen listens on the devices that have the address.
func (r *rdma) listen(ctx context.Context, a address) (net.Listener, error) {
	l, err := r.listenOn(ctx, bindHost(a), a.port)
	switch {
	case err == nil:
		return l, nil
	case a.host == "" && r.device != "":
		return nil, fmt.Errorf("listen on %v of %s: %w; if the device has no loopback address, write %v to listen on all of its addresses", a, r.device, err, a.with("*"))
	}
	return nil, fmt.Errorf("listen on %v: %w", a, err)
}

func (r *rdma) listenOn(ctx context.Context, host string, port uint16) (net.Listener, error) {
	devices := []string{r.device}
	ip, err := netip.ParseAddr(host)
	if all := host == "" || err == nil && ip.IsUnspecified(); r.device == "" && all {
		devices = []string{route.DefaultDevice(), loopbackDevice}
	} else if r.device == "" {
		list, err := route.LookUp(ctx, host)
		if err != nil {
			return nil, err
		}
		found, err := route.Find("", list[0])
		if err != nil {
			return nil, err
		}
		devices[0], host = found.Device, list[0].String()
	}
	var parts []net.Listener
	for i, name := range devices {
		if i > 0 && name == devices[0] {
			break
		}
		s, err := r.on(name)
		if err == nil {
			var part *rsocket.Listener
			if part, err = s.Listen(address{host: host, port: port}.hostPort()); err == nil {
				port = part.Addr().(*rsocket.Addr).Port() // the same at each device
				parts = append(parts, part)
			}
		}
		if err != nil {
			for _, part := range parts {
				_ = part.Close()
			}
			return nil, err
		}
	}
	return joinListeners(parts), nil
}

// loopbackDevice is the software device for programs on one machine.
const loopbackDevice = "soft-lo"

// dial tries the addresses of a host in turn.
func (r *rdma) dial(ctx context.Context, a address) (stream, error) {
	list, err := route.LookUp(ctx, a.host)
	if err != nil {
		return nil, err
	}
	for _, ip := range list {
		c, e := r.dialAddress(ctx, a, ip)
		if e == nil {
			return c, nil
		}
		if err = cmp.Or(err, e); ctx.Err() != nil { // the first address is the one that the system prefers
			break
		}
	}
	return nil, err
}

func (r *rdma) dialAddress(ctx context.Context, a address, ip netip.Addr) (stream, error) {
	found, err := route.Find(r.device, ip)
	if err != nil {
		return nil, err
	}
	s, err := r.on(found.Device)
	if err != nil {
		return nil, err
	}
	c, err := s.Dial(ctx, a.with(ip.String()).hostPort())
	if err != nil {
		return nil, err
	}
	return c, nil
}
